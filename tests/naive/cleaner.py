"""Kafka's log cleaner, written for reading and not for speed: what one round makes of a directory.

The round in order: the cleanable range; the offset map (a dict of keys, no hashing); the groups;
then every batch of every group, first to last, with the state of transactions carried along. The
offsets: `first_dirty <= end_offset <= first_uncleanable`; the map speaks for
[first_dirty, end_offset), the range that is copied is [log start, end of end_offset's segment).
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.naive import codecs, files
from tests.naive.files import Aborted, Segment
from tests.naive.plan import Inputs, Range, cleanable_range, group_segments, overlapping
from tests.naive.records import (
    Batch,
    Record,
    _legacy_body,
    _read_varint,
    build_legacy,
    build_v2,
    parse_log,
)
from tests.naive.transactions import Transactions, collect_aborted
from tests.naive.versions import VersionMap, build_version_map, strategy_of


@dataclass(frozen=True)
class OffsetMap:
    offsets: Mapping[bytes, int]
    latest_offset: int
    full: bool

    def supersedes(self, record: Record) -> bool:
        assert record.key is not None
        return record.offset < self.offsets.get(record.key, -1)

    def outranks_later(self, record: Record) -> bool:
        return False  # what comes later is newer


@dataclass(frozen=True)
class Group:
    """One output segment: named by `base`, made from the segments `sources`."""

    base: int
    sources: tuple[int, ...]
    data: bytes
    mtime_ms: int
    aborted: tuple[Aborted, ...]

    @property
    def batches(self) -> list[Batch]:
        return parse_log(self.data)


@dataclass(frozen=True)
class Result:
    """`cleaned` is False if there was nothing to do; then `groups` is empty and `end_offset` is
    `first_dirty`. `checkpoint` is the one to write (None: none). `drops` counts records by reason:
    superseded, tombstone, aborted, control, no_key; `dropped_bytes` their bytes. `next_expiry_ms`:
    the first deadline of what stays and goes when it has come."""

    cleaned: bool
    range: Range
    end_offset: int
    map_entries: int
    map_full: bool
    groups: tuple[Group, ...]
    checkpoint: int | None
    records_read: int
    records_kept: int
    drops: Mapping[str, int]
    next_expiry_ms: int | None = None
    dropped_bytes: Mapping[str, int] = field(default_factory=Counter)


def clean(partition: Path, inputs: Inputs) -> Result:
    """What a round of cleaning makes of the partition; nothing is written."""
    segments = files.read_segments(partition)
    bounds = cleanable_range(segments, inputs)
    if bounds.cleanable_bytes == 0 or bounds.ratio <= inputs.min_dirty_ratio:
        return Result(
            False, bounds, bounds.first_dirty, 0, False, (), bounds.checkpoint, 0, 0, Counter()
        )
    by_offset = strategy_of(inputs.settings) == "offset"
    build_map = build_offset_map if by_offset else build_version_map
    offset_map = build_map(segments, bounds, inputs)
    end_offset = offset_map.latest_offset + 1
    cleaning = Cleaning(segments, bounds, offset_map, inputs)
    groups = [
        cleaning.clean_group(group)
        for group in group_segments(segments, bounds, end_offset, inputs)
    ]
    return Result(
        True,
        bounds,
        end_offset,
        len(offset_map.offsets),
        offset_map.full,
        tuple(groups),
        end_offset,
        cleaning.records_read,
        cleaning.records_kept,
        cleaning.drops,
        min(cleaning.deadlines_ms, default=None),
        cleaning.dropped_bytes,
    )


def build_offset_map(segments: Sequence[Segment], bounds: Range, inputs: Inputs) -> OffsetMap:
    start, end = bounds.first_dirty, bounds.first_uncleanable
    dirty = overlapping(segments, start, end)
    transactions = Transactions()
    transactions.add(collect_aborted(segments, start, end, inputs.log_start_offset))
    offsets: dict[bytes, int] = {}
    latest = -1
    for number, segment in enumerate(dirty):
        for batch in segment.batches:
            if batch.control:
                transactions.read_control(batch)
            elif not transactions.read_data(batch):
                for record in batch.records():
                    if record.key is not None and record.offset >= start:
                        if len(offsets) >= inputs.map_limit:
                            return OffsetMap(offsets, latest, True)
                        offsets[record.key] = latest = record.offset
            if batch.last_offset >= start:
                latest = batch.last_offset
        latest = (dirty[number + 1].base if number + 1 < len(dirty) else end) - 1
    return OffsetMap(offsets, latest, False)


class Cleaning:
    """The second pass; its state runs through the groups in order."""

    def __init__(
        self,
        segments: Sequence[Segment],
        bounds: Range,
        offset_map: OffsetMap | VersionMap,
        inputs: Inputs,
    ) -> None:
        self.segments = segments
        self.bounds = bounds
        self.map = offset_map
        self.inputs = inputs
        self.retention_ms = inputs.number("delete.retention.ms")
        self.transactions = Transactions()
        self.drops: Counter[str] = Counter()
        self.dropped_bytes: Counter[str] = Counter()
        self.records_read = 0
        self.records_kept = 0
        self.deadlines_ms: list[int] = []
        self.by_segment = inputs.settings.get("tombstone.horizon") == "segment"
        cleaned = overlapping(segments, 0, bounds.first_dirty)
        self.legacy_horizon_ms = cleaned[-1].mtime_ms - self.retention_ms if cleaned else 0

    def clean_group(self, group: Sequence[Segment]) -> Group:
        data = b""
        aborted: list[Aborted] = []
        for number, segment in enumerate(group):
            upper = group[number + 1].base if number + 1 < len(group) else segment.next_offset
            self.transactions.add(
                collect_aborted(self.segments, segment.base, upper, self.inputs.log_start_offset)
            )
            for batch in segment.batches:
                data += self.clean_batch(batch, segment, aborted)
        sources = tuple(segment.base for segment in group)
        return Group(sources[0], sources, data, group[-1].mtime_ms, tuple(aborted))

    def clean_batch(self, batch: Batch, segment: Segment, aborted: list[Aborted]) -> bytes:
        """What the output holds in the batch's place."""
        marker_of_nothing = False
        if batch.control:
            marker_of_nothing, entry = self.transactions.read_control(batch)
            if entry is not None:
                aborted.append(entry)
            discard = marker_of_nothing and self.is_over(batch, segment, batch.last_offset)
        else:
            discard = self.transactions.read_data(batch)
        keep_header = self.must_keep_header(batch)
        records = batch.records()
        if not discard or keep_header:
            self.records_read += len(records)  # Kafka does not look into what it drops whole
        reasons = [self.drop_reason(record, batch, segment, discard) for record in records]
        self.count_drops(batch, reasons)
        kept = [record for record, why in zip(records, reasons, strict=True) if why is None]
        self.records_kept += len(kept)
        if not kept:
            return emptied(batch) if keep_header and batch.magic == 2 else b""
        has_tombstone = any(record.value is None for record in kept)
        needs_horizon = (
            batch.magic == 2
            and (has_tombstone or marker_of_nothing)
            and batch.horizon_ms is None
            and not self.by_segment
        )
        horizon = self.inputs.now_ms + self.retention_ms if needs_horizon else batch.horizon_ms
        waits = marker_of_nothing or any(
            not batch.control
            and r.value is None
            and r.offset <= self.map.latest_offset
            and not self.is_over(batch, segment, r.offset)
            for r in kept
        )
        if waits and horizon is not None and not self.by_segment:
            self.deadlines_ms.append(horizon)
        if len(kept) == len(records) and not needs_horizon:
            return batch.raw
        return rewritten(batch, kept, horizon)

    def must_keep_header(self, batch: Batch) -> bool:
        if batch.last_offset + 1 == self.bounds.first_uncleanable:
            return True
        active = (self.inputs.active_producers or {}).get(batch.producer_id)
        if batch.producer_id == -1 or active is None:
            return False
        epoch, last_data_offset = active
        if last_data_offset is None:
            return batch.control and batch.producer_epoch == epoch
        return batch.last_offset == last_data_offset

    def count_drops(self, batch: Batch, reasons: Sequence[str | None]) -> None:
        """A record counts its bytes before compression; but a batch that goes as a whole, for one
        reason, what it takes in the file, of format 2 without its header."""
        if not any(reasons):
            return
        sizes = record_sizes(batch)
        if len(set(reasons)) == 1:
            whole = len(batch.raw) - (61 if batch.magic == 2 else 0)
            sizes = [whole] + [0] * (len(sizes) - 1)
        for reason, size in zip(reasons, sizes, strict=True):
            if reason is not None:
                self.drops[reason] += 1
                self.dropped_bytes[reason] += size

    def drop_reason(
        self, record: Record, batch: Batch, segment: Segment, discard: bool
    ) -> str | None:
        if discard:
            return "control" if batch.control else "aborted"
        if batch.control or record.offset > self.map.latest_offset:
            return None
        if record.key is None:
            return "no_key"
        if self.map.supersedes(record):
            return "superseded"
        if record.value is not None:
            return None
        forgotten = record.offset in self.inputs.forgotten
        if not forgotten and not self.is_over(batch, segment, record.offset):
            return None
        return None if self.map.outranks_later(record) else "tombstone"

    def is_over(self, batch: Batch, segment: Segment, offset: int) -> bool:
        """Whether the time of the batch's tombstone or marker at `offset` has come."""
        if self.by_segment and offset >= self.bounds.first_dirty:
            return False
        if batch.magic < 2 or self.by_segment:
            return segment.mtime_ms <= self.legacy_horizon_ms
        return batch.horizon_ms is not None and batch.horizon_ms <= self.inputs.now_ms


def record_sizes(batch: Batch) -> list[int]:
    """Bytes of each record once unpacked: with its length, in the old formats its whole message."""
    if batch.magic < 2:
        if not batch.codec:
            return [len(batch.raw)]
        _, value = _legacy_body(batch)
        return [len(inner.raw) for inner in parse_log(codecs.decompress(batch.codec, value or b""))]
    data = batch.raw[61:]
    if batch.codec:
        data = codecs.decompress(batch.codec, data)
    ends = [0]
    for _ in range(batch.count):
        length, start = _read_varint(data, ends[-1])
        ends.append(start + length)
    return [end - start for start, end in pairwise(ends)]


def rewritten(batch: Batch, kept: Sequence[Record], horizon_ms: int | None) -> bytes:
    if batch.magic < 2:
        return build_legacy(
            kept, magic=batch.magic, codec=batch.codec, append_time=batch.append_time
        )
    return build_v2(
        kept,
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        codec=batch.codec,
        leader_epoch=batch.leader_epoch,
        append_time_ms=batch.max_timestamp if batch.append_time else None,
        horizon_ms=horizon_ms,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        transactional=batch.transactional,
        control=batch.control,
    )


def emptied(batch: Batch) -> bytes:
    """The header alone, which keeps the batch's offsets and its producer's last sequence."""
    return build_v2(
        [],
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        leader_epoch=batch.leader_epoch,
        append_time_ms=batch.max_timestamp if batch.append_time else None,
        max_timestamp=batch.max_timestamp,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        transactional=batch.transactional,
        control=batch.control,
    )


def write_result(result: Result, before: Path, after: Path, inputs: Inputs) -> None:
    """Make `after` (a new partition directory) what `before` is once the round is over, beside it
    the checkpoint file of its log directory."""
    shutil.copytree(before, after)
    for path in (p for p in before.parent.iterdir() if p.is_file()):
        shutil.copy2(path, after.parent / path.name)
    replace_segments(result, after, inputs)
    if result.checkpoint is not None:
        path = after.parent / "cleaner-offset-checkpoint"
        offsets = {**files.read_checkpoint(path), before.name: result.checkpoint}
        path.write_text(files.encode_checkpoint(offsets))


def replace_segments(result: Result, partition: Path, inputs: Inputs) -> None:
    """Put the groups in the place of their sources. Snapshots of bases that vanish go."""
    for group in result.groups:
        for base in group.sources:
            for suffix in (".log", ".index", ".timeindex", ".txnindex"):
                (partition / files.name(base, suffix)).unlink(missing_ok=True)
            if base != group.base:
                (partition / files.name(base, ".snapshot")).unlink(missing_ok=True)
        files.write_segment(
            partition,
            group.base,
            group.data,
            group.aborted,
            interval_bytes=inputs.number("index.interval.bytes"),
            mtime_ms=group.mtime_ms,
        )
