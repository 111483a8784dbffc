"""What a round of cleaning, and retention, may take from a log: the rules, said naively.

A step is judged by what the log held before it and after it. Whatever went has to have a reason
that holds at the step's time and settings; so by induction from the first step on, everything that
is to stay is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tests.clean.machine_model import LogModel, Seen, SeenSegment, fold
from tests.naive import retention
from tests.naive.records import Batch, Record
from tests.naive.versions import Settings, version_of

NEVER_MS = (1 << 63) - 1
FORGOTTEN = 0
"""The horizon of a tombstone that is to go at once (CLN-11)."""


@dataclass(frozen=True)
class Rules:
    """The settings that decide, as a step found them."""

    now_ms: int
    policy: frozenset[str]
    versions: Settings
    min_lag_ms: int
    delete_retention_ms: int
    by_segment: bool
    retain_keyless: bool
    retention_ms: int
    retention_bytes: int

    @property
    def new_horizon_ms(self) -> int:
        return self.now_ms + self.delete_retention_ms


def first_dirty(before: Seen) -> int:
    point = before.point
    return point if point is not None and before.start <= point <= before.end else before.start


def uncleanable_from(before: Seen, rules: Rules) -> int:
    """Where a round has to end at the latest (CMP-3)."""
    bounds = [before.stable, before.active_base]
    for segment, after in pairwise(before.segments):
        is_young = segment.largest_ms > rules.now_ms - rules.min_lag_ms
        if rules.min_lag_ms > 0 and after.base > first_dirty(before) and is_young:
            bounds.append(segment.base)
            break
    bases = [segment.base for segment in before.segments if segment.base <= min(bounds)]
    return max(bases, default=min(bounds))


def cleaned_wrongly(model: LogModel, before: Seen, after: Seen, rules: Rules) -> Iterator[str]:
    """What a round took that it must not have; `after` may be in the middle of it."""
    end = uncleanable_from(before, rules)
    yield from _horizons_wrong(model, after, rules, end)
    newest = _newest(before.visible(model, end), rules)
    for offset, (segment, batch, record) in before.records.items():
        if offset < after.start or offset in after.records:
            continue
        if offset >= end:
            yield f"offset {offset} went, which lies past {end}"
        elif not _may_go(model, before, segment, batch, record, newest, rules, end):
            yield f"{record} went"
    for offset, (segment, batch) in before.markers.items():
        if offset >= after.start and offset not in after.markers:
            yield from _marker_wrong(model, before, after, segment, batch, rules, end)


def _newest(records: list[Record], rules: Rules) -> dict[bytes, tuple[int, int]]:
    newest: dict[bytes, tuple[int, int]] = {}
    for record in records:
        if record.key is not None:
            mine = version_of(record, rules.versions), record.offset
            newest[record.key] = max(mine, newest.get(record.key, mine))
    return newest


def _may_go(
    model: LogModel,
    before: Seen,
    segment: SeenSegment,
    batch: Batch,
    record: Record,
    newest: dict[bytes, tuple[int, int]],
    rules: Rules,
    end: int,
) -> bool:
    if model.is_aborted(batch.base_offset):
        return True
    if record.key is None:
        return not rules.retain_keyless
    mine = version_of(record, rules.versions), record.offset
    if newest.get(record.key, mine) > mine:
        return True
    return record.value is None and _time_is_up(model, before, segment, record.offset, rules, end)


def _time_is_up(
    model: LogModel, before: Seen, segment: SeenSegment, offset: int, rules: Rules, end: int
) -> bool:
    """Whether a tombstone or marker may go (CMP-8)."""
    if model.horizons.get(offset) == FORGOTTEN:
        return True
    if rules.by_segment:
        dirty = min(first_dirty(before), end)
        clean = [one for one in before.segments if one.base < dirty]
        horizon_ms = clean[-1].modified_ms - rules.delete_retention_ms if clean else 0
        return segment.modified_ms <= horizon_ms
    return model.horizons.get(offset, NEVER_MS) <= rules.now_ms


def _marker_wrong(
    model: LogModel,
    before: Seen,
    after: Seen,
    segment: SeenSegment,
    batch: Batch,
    rules: Rules,
    end: int,
) -> Iterator[str]:
    offset = batch.base_offset
    firsts = set(model.txn_of[offset].firsts)
    left = [
        other.base_offset
        for one in after.segments
        for other in one.batches
        if other.base_offset in firsts and other.last_offset >= after.start
    ]
    if left and any(first in left for first in firsts):
        yield f"the marker at {offset} went before its data at {left} (CMP-14)"
    if offset >= end:
        yield f"the marker at {offset} went, which lies past {end}"
    if not _time_is_up(model, before, segment, offset, rules, end):
        yield f"the marker at {offset} went before its time"


def _horizons_wrong(model: LogModel, after: Seen, rules: Rules, end: int) -> Iterator[str]:
    """Note the horizons that a round has set, and say which are wrong: too early is a tombstone
    that a slow reader misses, and one that is moved might never come."""
    for segment in after.segments:
        for batch in segment.batches:
            if batch.horizon_ms is None:
                continue
            known = model.batch_horizons.get(batch.base_offset)
            if known is None:
                model.batch_horizons[batch.base_offset] = batch.horizon_ms
                if batch.horizon_ms != rules.new_horizon_ms or batch.base_offset >= end:
                    yield f"batch {batch.base_offset} may go from {batch.horizon_ms} on"
            elif known != batch.horizon_ms:
                yield f"batch {batch.base_offset}: horizon {known} became {batch.horizon_ms}"
            offsets = [record.offset for record in batch.records()]
            for offset in offsets:
                model.horizons.setdefault(offset, batch.horizon_ms)


def cleaned_too_little(model: LogModel, after: Seen) -> Iterator[str]:
    """Below the checkpoint each key stands once, and nothing that was aborted (CMP-2, CMP-14)."""
    seen: dict[bytes, int] = {}
    for offset, (_, batch, record) in after.records.items():
        if offset >= (after.point or 0):
            break
        if model.is_aborted(batch.base_offset):
            yield f"aborted: {record}"
        elif record.key is not None:
            if record.key in seen:
                yield f"{record.key!r} stands at {seen[record.key]} and at {offset}"
            seen[record.key] = offset


def fold_changed(model: LogModel, before: Seen, after: Seen, rules: Rules, end: int) -> str | None:
    """CMP-18, below `end`, of keys whose newest record did not fall below the log start."""
    newest = _newest(before.visible(model, end), rules)
    gone = {key for key, (_, offset) in newest.items() if offset < after.start}
    states = []
    for one in (before, after):
        records = [r for r in one.visible(model, end) if r.key not in gone]
        states.append(fold(records, rules.versions))
    return None if states[0] == states[1] else f"the fold {states[0]} became {states[1]}"


def retained_start(before: Seen, rules: Rules) -> int:
    """Where the log starts after retention (RET-2 to RET-7)."""
    segments = [
        retention.Segment(
            one.base,
            one.modified_ms,
            [
                retention.Record(batch.base_offset, batch.max_timestamp, len(batch.raw))
                for batch in one.batches
            ],
        )
        for one in before.segments
    ]
    log = retention.Log(segments, before.start, before.end)
    retention.retain(
        log, set(rules.policy), rules.retention_ms, rules.retention_bytes, rules.now_ms
    )
    return log.start


def deleted_wrongly(
    model: LogModel, before: Seen, after: Seen, rules: Rules, cleaning: Rules | None
) -> Iterator[str]:
    """What retention took too early (RET-*), where a round may have run just before it."""
    if after.start < before.start:
        yield f"the log start went back from {before.start} to {after.start}"
    end, newest = 0, {}
    if cleaning is not None:
        end = uncleanable_from(before, cleaning)
        newest = _newest(before.visible(model, end), cleaning)
    for offset, (segment, batch, record) in before.records.items():
        if offset >= after.start:
            break
        is_old = 0 <= rules.retention_ms < rules.now_ms - record.timestamp
        is_much = 0 <= rules.retention_bytes <= after.size_bytes
        if "delete" in rules.policy and (is_old or is_much):
            continue
        if offset >= end or cleaning is None:
            yield f"retention took {record}"
        elif not _may_go(model, before, segment, batch, record, newest, cleaning, end):
            yield f"retention or the round took {record}"


def dirtiness(before: Seen, rules: Rules) -> tuple[int, float, int | None]:
    """Cleanable bytes, the dirty ratio, and the first uncleaned segment's timestamp (CLN-2)."""
    dirty, end = first_dirty(before), uncleanable_from(before, rules)
    clean_bytes = cleanable_bytes = 0
    first_ms: int | None = None
    for segment in before.segments:
        if segment.base < dirty:
            clean_bytes += segment.size_bytes
        if segment.base < end and before.end_of(segment) > dirty and dirty < end:
            cleanable_bytes += segment.size_bytes
        is_first = segment.base <= dirty < before.end_of(segment)
        if (is_first or first_ms is None) and segment.batches and before.end_of(segment) > dirty:
            first_ms = segment.batches[0].max_timestamp if first_ms is None else first_ms
    total = clean_bytes + cleanable_bytes
    return cleanable_bytes, cleanable_bytes / total if total else 0.0, first_ms


def left_undone(
    model: LogModel, seen: Seen, rules: Rules, min_ratio: float, max_lag_ms: int
) -> Iterator[str]:
    """What a cleaner that has nothing to do should still do (CLN-2, CMP-9)."""
    cleanable_bytes, ratio, first_ms = dirtiness(seen, rules)
    if cleanable_bytes and ratio > min_ratio:
        yield f"the dirty ratio is {ratio}, above {min_ratio}"
    if cleanable_bytes and first_ms is not None and 1 <= first_ms < rules.now_ms - max_lag_ms:
        yield f"the first uncleaned segment is from {first_ms}"
    if rules.by_segment:
        return
    end = min(uncleanable_from(seen, rules), seen.point or 0)
    for offset, (_, batch, record) in seen.records.items():
        horizon_ms = model.horizons.get(offset, NEVER_MS)
        is_tombstone = offset < end and record.value is None and record.key is not None
        if rules.versions["compaction.strategy"] != "offset":
            # One that outranks a later record is held until that one has gone (CMP-17).
            later = [r for at, (_, _, r) in seen.records.items() if at > offset]
            is_tombstone = is_tombstone and all(r.key != record.key for r in later)
        if is_tombstone and batch.horizon_ms is not None and horizon_ms <= rules.now_ms:
            yield f"the tombstone at {offset} could go from {horizon_ms} on"
