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
from dataclasses import dataclass
from pathlib import Path

from tests.naive import files
from tests.naive.files import Aborted, Segment
from tests.naive.plan import Inputs, Range, cleanable_range, group_segments, overlapping
from tests.naive.records import Batch, Record, build_legacy, build_v2, parse_log
from tests.naive.transactions import Transactions, collect_aborted


@dataclass(frozen=True)
class OffsetMap:
    offsets: Mapping[bytes, int]
    latest_offset: int
    full: bool


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
    superseded, tombstone, aborted, control, no_key."""

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


def clean(partition: Path, inputs: Inputs) -> Result:
    """What a round of cleaning makes of the partition; nothing is written."""
    segments = files.read_segments(partition)
    bounds = cleanable_range(segments, inputs)
    if bounds.cleanable_bytes == 0 or bounds.ratio <= inputs.min_dirty_ratio:
        return Result(
            False, bounds, bounds.first_dirty, 0, False, (), bounds.checkpoint, 0, 0, Counter()
        )
    offset_map = build_offset_map(segments, bounds, inputs)
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
        offset_map: OffsetMap,
        inputs: Inputs,
    ) -> None:
        self.segments = segments
        self.bounds = bounds
        self.map = offset_map
        self.inputs = inputs
        self.retention_ms = inputs.number("delete.retention.ms")
        self.transactions = Transactions()
        self.drops: Counter[str] = Counter()
        self.records_read = 0
        self.records_kept = 0
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
            horizon = batch.horizon_ms
            discard = marker_of_nothing and horizon is not None and horizon <= self.inputs.now_ms
        else:
            discard = self.transactions.read_data(batch)
        keep_header = self.must_keep_header(batch)
        records = batch.records()
        if not discard or keep_header:
            self.records_read += len(records)  # Kafka does not look into what it drops whole
        kept = [record for record in records if self.keeps(record, batch, segment, discard)]
        self.records_kept += len(kept)
        if not kept:
            return emptied(batch) if keep_header and batch.magic == 2 else b""
        has_tombstone = any(record.value is None for record in kept)
        needs_horizon = (
            batch.magic == 2 and (has_tombstone or marker_of_nothing) and batch.horizon_ms is None
        )
        if len(kept) == len(records) and not needs_horizon:
            return batch.raw
        horizon = self.inputs.now_ms + self.retention_ms if needs_horizon else batch.horizon_ms
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

    def keeps(self, record: Record, batch: Batch, segment: Segment, discard: bool) -> bool:
        reason = self.drop_reason(record, batch, segment, discard)
        if reason is not None:
            self.drops[reason] += 1
        return reason is None

    def drop_reason(
        self, record: Record, batch: Batch, segment: Segment, discard: bool
    ) -> str | None:
        if discard:
            return "control" if batch.control else "aborted"
        if batch.control or record.offset > self.map.latest_offset:
            return None
        if record.key is None:
            return "no_key"
        if record.offset < self.map.offsets.get(record.key, -1):
            return "superseded"
        if record.value is not None:
            return None
        if batch.magic == 2:
            horizon = batch.horizon_ms
            return None if horizon is None or self.inputs.now_ms < horizon else "tombstone"
        return None if segment.mtime_ms > self.legacy_horizon_ms else "tombstone"


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
