"""What a snapshot reads: all of a partition, or what is new, and what of the old is to be checked.

    as_of_bound   what somebody said -> where each partition ends
    plan          a partition as it is now, and as it was -> what is to be done with it

An incremental snapshot reads [the last one's end, the end). That alone would miss what a cleaning
or a deletion did meanwhile: a tombstone may have come, deleted its key, and gone. But then the
record that it deleted is gone, too, out of a segment that the last snapshot has seen: so segments
are compared with what they were, the offsets in those that were cleaned are read again, and a row
stays only while its record does. An incremental snapshot hence holds the rows of a full one at the
same offsets, whatever has happened (SPK-7); no length of retention has to be known for it.

All of that is true of one log. A log that was begun anew, or cut and written on, can have other
records at the same offsets, even with the same times. So either a segment is as it was, or Kafka's
topic id is the same; and others differ only where the cleaner says that it has been. Else the
partition is taken whole.

Invariants
- N1  Rows below the log start go: a full snapshot would not have them.
- N2  What cannot be built upon is taken whole, and the reason is told.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from stratalog.base.errors import UsageError
from stratalog.base.limits import LATEST_MS
from stratalog.clean.job import Order
from stratalog.log.checkpoint import read_checkpoint
from stratalog.log.topic_id import read_topic_id
from stratalog.log.view import LogView
from stratalog.pipeline import planning
from stratalog.pipeline.as_of import AsOf as AsOfPoint
from stratalog.pipeline.latest_frame import part_of, part_with_ledger
from stratalog.pipeline.options import Bound, BoundKind, SourceOptions, read_options
from stratalog.pipeline.places import Place, opened_parts
from stratalog.pipeline.planning import LatestPart, Piece, Range
from stratalog.pipeline.schema import HEADERS_COLUMN, PLAIN_COLUMNS
from stratalog.pipeline.snapshot_manifest import Manifest, PartitionSnapshot, SegmentMark
from stratalog.record.checksum import crc32c
from stratalog.record.layout import MAGIC_V2
from stratalog.segment.names import (
    CLEANER_OFFSET_CHECKPOINT,
    MAX_OFFSET,
    TopicPartition,
)
from stratalog.segment.segment import Segment

AsOf = int | str | datetime | Mapping[str, Mapping[str, int]] | None
"""An offset of each partition, offsets by topic and partition, or a time; None: the log end."""

BUCKET_BYTES = 256 << 20
"""Bytes of log for which a partition gets another bucket."""

_TAIL_BYTES = 4096
_MOST_SHOWN = 20
_NOT_HERE = (
    *("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp", "view"),
    *("startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "isolation", "tombstones"),
    *("columns", "includeMetadata", "failOnDataLoss", "maxRecordsPerPartition"),
)


# ---------------------------------------------------------------- what was asked for


def snapshot_options(text: Mapping[str, str]) -> SourceOptions:
    """The source's options as a snapshot takes them. Raises `UsageError`."""
    refused = {name.lower(): name for name in _NOT_HERE}
    for name in text:
        if name.lower() in refused:
            raise UsageError(f"a snapshot has no option {refused[name.lower()]}")
    options = read_options({**text, "view": "latest"})
    has_headers = HEADERS_COLUMN in options.columns
    return replace(options, columns=(*PLAIN_COLUMNS, *([HEADERS_COLUMN] if has_headers else ())))


def as_of_bound(as_of: AsOf, places: Sequence[Place]) -> Bound:
    """Where partitions end. Raises `UsageError`.

    Text is an offset, `@` and ms since 1970, a time as in ISO 8601 (without a zone: UTC), or JSON
    like {"topic":{"0":23}}, as in `endingOffsets`. A time ends a partition before its first record
    with that timestamp or a later one, as a consumer's `offsetsForTimes` finds it.
    """
    given = _read(as_of.strip()) if isinstance(as_of, str) else as_of
    if given is None:
        return Bound("as-of", BoundKind.LATEST)
    if isinstance(given, datetime):
        moment = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
        timestamp = round(moment.timestamp() * 1000)
        if not 0 <= timestamp <= LATEST_MS:
            raise UsageError(f"as-of: {given} is no time that a record can have")
        return Bound("as-of", BoundKind.TIMESTAMP, timestamp=timestamp)
    if isinstance(given, Mapping):
        ending = read_options({"path": ".", "endingOffsets": json.dumps(given)}).ending
        return replace(ending, option="as-of")
    if not 0 <= given <= MAX_OFFSET:
        raise UsageError(f"as-of: {given} is no offset")
    return Bound("as-of", BoundKind.OFFSETS, {place.topic_partition: given for place in places})


def _read(text: str) -> int | datetime | Mapping[str, Mapping[str, int]] | None:
    if re.fullmatch(r"[0-9]{1,19}", text, re.ASCII) is not None:
        return int(text)
    if re.fullmatch(r"@[0-9]{1,18}", text, re.ASCII) is not None:
        if int(text[1:]) > LATEST_MS:
            raise UsageError(f"as-of: {text} is no time that a record can have")
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=int(text[1:]))
    try:
        if text.startswith("{"):
            found = json.loads(text)
            assert isinstance(found, dict)
            return found
        return datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"as-of is {text!r}; it must be an offset, @MS (since 1970), a time like "
            '2026-01-31T12:00:00Z, or {"topic":{"0":23}}'
        ) from None


def shown_as_of(as_of: AsOf) -> str | None:
    """For the manifest."""
    if as_of is None or isinstance(as_of, str):
        return as_of
    if isinstance(as_of, datetime):
        return as_of.isoformat()
    return json.dumps(as_of) if isinstance(as_of, Mapping) else str(as_of)


# ---------------------------------------------------------------- a partition


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """What becomes of a partition. `part`: what is read anew; `previous`: what that is added to,
    None if it is taken whole, for `reason` if there was something to build upon; `rewritten`: the
    ranges below the previous end that are not as they were, with the pieces that are left of them;
    `log_start`, `marks` and `topic_id` as of now."""

    part: LatestPart
    end_offset: int
    log_start: int
    marks: tuple[SegmentMark, ...]
    buckets: int
    previous: PartitionSnapshot | None = None
    reason: str | None = None
    rewritten: tuple[tuple[Range, tuple[Piece, ...]], ...] = ()
    topic_id: str = ""

    @property
    def key(self) -> TopicPartition:
        return self.part.place.topic_partition

    @property
    def is_unchanged(self) -> bool:
        """Whether the previous files are as good as new ones, without a look at them."""
        if self.previous is None or self.part.pieces or self.rewritten:
            return False
        return (
            all(file.least_offset >= self.log_start for file in self.previous.files)
            and self.end_offset >= self.previous.end_offset
        )


def plan(
    options: SourceOptions,
    place: Place,
    view: LogView,
    older: Manifest | None,
    *,
    is_restless: bool = False,
) -> PlannedPartition:
    """What is to be done with a partition as it is now; `is_restless`: it was replaced under a
    snapshot's eyes before, and is taken whole. Raises `UsageError`, `CorruptionError`."""
    bounds = _bounds(options, place, view)
    end, low = bounds.end, view.log_start_offset
    previous, reason = _base(options, place, older, end, is_restless)
    buckets = max(1, -(-view.segments.size_bytes // BUCKET_BYTES))
    marks, topic_id = marks_of(view, end), read_topic_id(place.filesystem(), place.path)
    rewritten = None if previous is None else _rewritten(place, view, previous, low, topic_id)
    if previous is None or rewritten is None:
        part = part_of(options, place, view, bounds)
        reason = reason if previous is None else "it may be another log"
        return PlannedPartition(part, end, low, marks, buckets, None, reason, (), topic_id)
    start = min(max(previous.end_offset, low), end)
    part = part_of(options, place, view, replace(bounds, start=start))
    return PlannedPartition(
        part, end, low, marks, previous.buckets, previous, None, rewritten, topic_id
    )


def plan_with_ledger(
    options: SourceOptions, place: Place, older: Manifest | None
) -> PlannedPartition | None:
    """A partition whose ledger answers below its horizon, which is taken whole each time: what a
    ledger has instead of the log is not known from the log's segments. None: it has no ledger, or
    one of another order of versions, and the raw log has it all.

    Raises `UsageError` where nothing answers as of then, `CorruptionError`.
    """
    as_of = _as_of(options.ending, place)
    order = options.ledger_order
    with opened_parts(place, with_ledger=True, order=order) as (parts, _):
        if parts.is_raw:
            return None
    with opened_parts(place, with_ledger=True, as_of=as_of, order=order) as (parts, end):
        at_end = replace(options, ending=Bound("as-of", BoundKind.LATEST))
        bounds, _ = planning.resolve(at_end, place, parts)
        part = part_with_ledger(place, parts, bounds, end, as_of)
        buckets = max(1, -(-parts.size_bytes // BUCKET_BYTES))
        low = parts.log_start_offset
    reason = None if older is None else "it has a ledger"
    return PlannedPartition(part, part.range.end, low, (), buckets, None, reason)


def _as_of(bound: Bound, place: Place) -> AsOfPoint | None:
    """Where a partition ends, as reads of ledgers have it; None: at its end."""
    if bound.kind is BoundKind.OFFSETS:
        offset = bound.values[place.topic_partition]
        return None if offset < 0 else AsOfPoint(offset=offset)
    if bound.kind is BoundKind.TIMESTAMPS:
        return AsOfPoint(time_ms=bound.values[place.topic_partition])
    return AsOfPoint(time_ms=bound.timestamp) if bound.kind is BoundKind.TIMESTAMP else None


def _base(
    options: SourceOptions, place: Place, older: Manifest | None, end: int, is_restless: bool
) -> tuple[PartitionSnapshot | None, str | None]:
    """What can be built upon, or why nothing can."""
    if older is None:
        return None, None
    key = place.topic_partition
    previous = next((found for found in older.partitions if found.key == key), None)
    if previous is None:
        return None, "it is new"
    if older.columns != options.columns:
        return None, "the columns are others"
    if (older.order, older.version_header) != (options.order.value, options.version_header):
        return None, "the order of versions is another"
    if options.order is not Order.OFFSET:
        return None, "by an order of versions an older record may win"
    if end < previous.end_offset:
        return None, f"the last snapshot goes further, to {previous.end_offset}"
    return (
        (None, "it was replaced while it was read, or begun anew since")
        if is_restless
        else (previous, None)
    )


def _bounds(options: SourceOptions, place: Place, view: LogView) -> Range:
    bound, key = options.ending, place.topic_partition
    if bound.kind is BoundKind.OFFSETS:
        offset = bound.values[key]
        if offset > view.log_end_offset:
            hint = _by_partition(bound, key, view.log_end_offset)
            raise UsageError(f"as-of {offset}: {key} ends at {view.log_end_offset}; {hint}")
        if 0 <= offset < view.log_start_offset:
            hint = _by_partition(bound, key, view.log_start_offset)
            raise UsageError(f"as-of {offset}: {key} begins at {view.log_start_offset}; {hint}")
    return planning.resolve(options, place, view)[0]


def _by_partition(bound: Bound, key: TopicPartition, offset: int) -> str:
    """How to say the same with another offset for one partition."""
    if len(bound.values) > _MOST_SHOWN:
        return 'give each partition its own, like {"topic":{"0":23,"1":-1}} (-1: its end)'
    ends: dict[str, dict[str, int]] = {}
    for other, end in sorted({**bound.values, key: offset}.items()):
        ends.setdefault(other.topic, {})[str(other.partition)] = end
    text = json.dumps(ends, separators=(",", ":"))
    return f"by partition that is --as-of '{text}' (-1: its end)"


# ---------------------------------------------------------------- segments, then and now


def marks_of(view: LogView, end: int) -> tuple[SegmentMark, ...]:
    """The segments below `end`, as far as they lie below it. Raises `CorruptionError`."""
    segments = view.segments
    return tuple(
        _mark(segment, min(segments.end_of(slot, view.log_end_offset), end), end)
        for slot, segment in enumerate(segments)
        if segment.base_offset < end
    )


def _mark(segment: Segment, next_offset: int, end: int) -> SegmentMark:
    size_bytes = segment.size_bytes
    past = segment.find(end)
    if past is not None:
        begins_below = past.header.base_offset < end or past.header.magic < MAGIC_V2
        size_bytes = past.end if begins_below else past.position
    tail = segment.log.read(max(0, size_bytes - _TAIL_BYTES), min(size_bytes, _TAIL_BYTES))
    tail_crc = crc32c(bytes(tail))
    return SegmentMark(
        segment.base_offset, next_offset, segment.log.file_id(), size_bytes, tail_crc
    )


def _rewritten(
    place: Place, view: LogView, previous: PartitionSnapshot, low: int, topic_id: str
) -> tuple[tuple[Range, tuple[Piece, ...]], ...] | None:
    """The ranges of offsets below the previous end that are not as they were, and their pieces.

    None if nothing says that it is the same log: no segment is as it was and there is no topic id,
    or a segment is another of which the cleaner's checkpoint does not know.
    """
    end = previous.end_offset
    if topic_id != previous.topic_id:
        return None
    if end <= low:
        return ()  # nothing of it is left: all rows lie below the log start
    known = set(previous.segments)
    cleaned_below = _cleaned_below(place)
    found: list[Range] = []
    covered, is_same = low, topic_id != ""
    for mark in marks_of(view, end):
        first, past = max(mark.base_offset, low), mark.next_offset
        if past <= low:
            continue
        if first > covered:
            found.append(Range(covered, first))
        if mark in known:
            is_same = True
        elif past > cleaned_below:
            return None
        else:
            found.append(Range(first, past))
        covered = past
    if covered < end:
        found.append(Range(covered, end))
    if not is_same:
        return None
    return tuple(
        (
            bounds,
            tuple(planning.pieces_of(place, view, bounds.start, bounds.end, is_committed=True)),
        )
        for bounds in found
    )


def _cleaned_below(place: Place) -> int:
    """The cleaner checkpoint; 0 without one. Raises `StorageIOError`."""
    path = os.path.join(place.log_dir, CLEANER_OFFSET_CHECKPOINT)
    return read_checkpoint(place.filesystem(), path).get(place.topic_partition, 0)
