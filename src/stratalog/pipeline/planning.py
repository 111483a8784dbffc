"""Which bytes of which segments hold the records that were asked for.

    resolve       bounds of the user's -> offsets [start, end) of each partition
    pieces_of     a range of offsets -> runs of bytes, one a segment, larger ones cut

`source_tasks` makes tasks of them.

A piece is cut where a batch begins that the segment's index names, or, if somebody limits a task's
records, at an offset. It says both the bytes to read and the offsets that count in them, so that a
batch across a cut is read twice and each of its records given once. Offsets that are missing are
normal: a log is cleaned.

Invariants
- P1  The pieces' offset ranges are disjoint and together the whole range.
- P2  The bytes of a piece hold every batch that reaches into its range of offsets.
- P3  A piece names the file that it was made for: whoever finds another one plans anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from stratalog.base.errors import CorruptionError, OffsetOutOfRangeError, UsageError
from stratalog.log.view import LogView
from stratalog.pipeline.as_of import AsOf
from stratalog.pipeline.options import Bound, BoundKind, SourceOptions, View
from stratalog.pipeline.parts import Parts
from stratalog.pipeline.places import Place
from stratalog.record.layout import MAGIC_V2
from stratalog.segment.names import MAX_OFFSET, TopicPartition
from stratalog.segment.segment import Segment
from stratalog.segment.txn_index import AbortedTxn

_SPARSE = 4
"""Offsets a record from which on a batch is not cut into tasks."""


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets [start, end) of a partition. `follows`: its end is wherever the log ends."""

    start: int
    end: int
    follows: bool = True

    def within(self, low: int, high: int) -> Range:
        """The part of it in [low, high)."""
        start = max(self.start, low)
        return replace(self, start=start, end=max(start, min(self.end, high)))


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes [start_position, end_position) of one segment's log, and the offsets that count there.

    `next_base` is where the next segment begins; `file_id` that of the log file, which lies in
    `directory`; `aborted` holds the aborted transactions that readers of committed data must pass
    over.
    """

    place: Place
    base_offset: int
    next_base: int
    file_id: int
    start_position: int
    end_position: int
    first_offset: int
    end_offset: int
    directory: str
    aborted: tuple[AbortedTxn, ...] = ()

    @property
    def size_bytes(self) -> int:
        return self.end_position - self.start_position

    @property
    def is_of_ledger(self) -> bool:
        """Whether it lies in a generation of a ledger, not in the raw log."""
        return self.directory != self.place.path


@dataclass(frozen=True, slots=True)
class LatestPart:
    """A partition whose latest values are wanted: `pieces` as they were when it was planned.
    `with_ledger`: what a ledger holds is taken from there; `as_of`: see `as_of.AsOf`."""

    place: Place
    range: Range
    pieces: tuple[Piece, ...]
    with_ledger: bool = False
    as_of: AsOf | None = None

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)


# ---------------------------------------------------------------- bounds


def check_bounds(options: SourceOptions, places: Iterable[Place]) -> None:
    """Refuse a bound by partition that does not name exactly the chosen ones, as Spark does."""
    there = {place.topic_partition for place in places}
    for bound in (options.starting, options.ending):
        if bound.kind not in (BoundKind.OFFSETS, BoundKind.TIMESTAMPS):
            continue
        named = set(bound.values)
        if named != there:
            missing = ", ".join(map(str, sorted(there - named)))
            surplus = ", ".join(map(str, sorted(named - there)))
            raise UsageError(
                f"{bound.option} must name every partition that is read: "
                + (f"{missing} is missing" if missing else f"{surplus} is not read")
                + "; -1 stands for latest"
                + (", -2 for earliest" if bound is options.starting else "")
            )


def resolve(
    options: SourceOptions, place: Place, view: Parts | LogView
) -> tuple[Range, str | None]:
    """The offsets to read, and what was lost if that was pardoned.

    Raises `UsageError`: no record at or past a starting time; `OffsetOutOfRangeError`: offsets that
    the log does not have any more, or not yet (`failOnDataLoss`).
    """
    key = place.topic_partition
    low, high = view.log_start_offset, view.log_end_offset
    last = view.last_stable_offset if options.is_committed else high
    start = _offset_at(options.starting, key, view, last)
    if start is None:
        if not options.latest_if_no_time:
            raise UsageError(
                f"{options.starting.option}: {key} has no record at or past that time; "
                "startingOffsetsByTimestampStrategy=latest reads nothing of it then"
            )
        start = last
    given = _offset_at(options.ending, key, view, last)
    end = last if given is None else given
    loss = None
    for bound, offset in ((options.starting, start), (options.ending, end)):
        if bound.kind is BoundKind.OFFSETS and not low <= offset <= high:
            loss = (
                f"{bound.option}: {key} has offsets {low} to {high}, not {offset}: data was lost, "
                "or never there"
            )
    if loss is not None and options.fail_on_data_loss:
        raise OffsetOutOfRangeError(f"{loss}; failOnDataLoss=false reads what is there")
    start = max(start, low)
    end = min(end, last)
    return Range(start, max(start, end), options.ending.kind is BoundKind.LATEST), loss


def _offset_at(bound: Bound, key: TopicPartition, view: Parts | LogView, last: int) -> int | None:
    """None: there is no record at or past the time."""
    if bound.kind is BoundKind.EARLIEST:
        return view.log_start_offset
    if bound.kind is BoundKind.LATEST:
        return last
    if bound.kind is BoundKind.OFFSETS:
        offset = bound.values[key]
        return {-2: view.log_start_offset, -1: last}.get(offset, offset)
    timestamp = bound.timestamp if bound.kind is BoundKind.TIMESTAMP else bound.values[key]
    found = view.offset_for_timestamp(timestamp)
    return None if found is None else found.offset


# ---------------------------------------------------------------- pieces


def plan_place(
    options: SourceOptions,
    place: Place,
    parts: Parts,
    bounds: Range,
    least_ms: int | None = None,
) -> list[Piece]:
    """The pieces of one partition as the options want them cut; `least_ms`: segments whose records
    are all older are not wanted. Raises `CorruptionError`."""
    if options.view is View.LATEST:
        return [piece for _, piece in pieces_in(place, parts, bounds.start, bounds.end)]
    max_bytes = options.partition_bytes
    if options.min_partitions is not None:
        max_bytes = max(1, min(max_bytes, parts.size_bytes // options.min_partitions))
    return [
        piece
        for view, start, end in parts.ranges(bounds.start, bounds.end)
        for piece in pieces_of(
            place,
            view,
            start,
            end,
            max_bytes=max_bytes,
            max_records=options.max_records,
            is_committed=options.is_committed,
            least_ms=least_ms,
        )
    ]


def pieces_in(
    place: Place, parts: Parts, start: int, end: int, *, is_committed: bool = False
) -> list[tuple[Segment, Piece]]:
    """The pieces of offsets [start, end), uncut, each with its segment, whose file is open."""
    found: list[tuple[Segment, Piece]] = []
    for view, low, high in parts.ranges(start, end):
        for piece in pieces_of(place, view, low, high, is_committed=is_committed):
            segment = view.segments.get(piece.base_offset)
            assert segment is not None
            found.append((segment, piece))
    return found


def pieces_of(
    place: Place,
    view: LogView,
    start: int,
    end: int,
    *,
    max_bytes: int | None = None,
    max_records: int | None = None,
    is_committed: bool = False,
    least_ms: int | None = None,
) -> list[Piece]:
    """The bytes that hold offsets [start, end), in their order.

    Those of a segment are cut into parts of about `max_bytes` and of at most `max_records` offsets.
    Raises `CorruptionError`.
    """
    found: list[Piece] = []
    segments = view.segments
    for slot, segment in enumerate(segments):
        segment_end = segments.end_of(slot, MAX_OFFSET)
        if segment_end <= start or segment.base_offset >= end or segment.size_bytes == 0:
            continue
        if least_ms is not None and segment.max_timestamp()[0] < least_ms:
            continue
        first, past = max(start, segment.base_offset), min(end, segment_end)
        cuts = {first, past}
        if max_bytes is not None:
            cuts.update(c for c in _cuts_by_size(segment, max_bytes) if first < c < past)
        if max_records is not None:
            cuts.update(_cuts_by_count(segment, first, past, max_records))
        bounds = sorted(cuts)
        for low, high in pairwise(bounds):
            piece = _piece(place, segment, segment_end, low, high)
            if piece is not None:
                if is_committed:
                    piece = replace(piece, aborted=tuple(view.aborted_between(low, high)))
                found.append(piece)
    return found


def _piece(
    place: Place, segment: Segment, next_base: int, first_offset: int, end_offset: int
) -> Piece | None:
    """None: there is no batch in that range of offsets."""
    start_position, end_position = 0, segment.size_bytes
    if first_offset > segment.base_offset:
        first = segment.find(first_offset)
        if first is None:
            return None
        start_position = first.position
    if end_offset < next_base:
        past = segment.find(end_offset)
        if past is not None:
            # A compressed message of magic 0 or 1 is known by its last offset: it may begin below.
            begins_below = past.header.base_offset < end_offset or past.header.magic < MAGIC_V2
            end_position = past.end if begins_below else past.position
    if start_position >= end_position:
        return None
    return Piece(
        place,
        segment.base_offset,
        next_base,
        segment.log.file_id(),
        start_position,
        end_position,
        first_offset,
        end_offset,
        os.path.dirname(segment.log.path),
    )


def _cuts_by_size(segment: Segment, max_bytes: int) -> list[int]:
    """Offsets at which batches begin, about `max_bytes` apart; the index says where they lie."""
    parts = -(-segment.size_bytes // max_bytes)
    if parts < 2:
        return []
    index, _ = segment.indexes.entries()
    step = segment.size_bytes / parts
    cuts = []
    for number in range(1, parts):
        slot = int(index.positions.searchsorted(round(number * step)))
        if slot == len(index):
            break
        try:
            placed = segment.find(int(index.offsets[slot]))
        except CorruptionError:
            continue  # whoever reads it says so
        if placed is not None and placed.header.magic >= MAGIC_V2:
            cuts.append(placed.header.base_offset)
    return cuts


def _cuts_by_count(segment: Segment, first: int, past: int, max_records: int) -> list[int]:
    """Offsets between which lie at most `max_records` records, or a single batch that was cleaned
    to less than a quarter. Gaps cost no cut, however wide."""
    cuts: list[int] = []
    low, wanted = first, first + max_records
    while wanted < past and (placed := segment.find(wanted)) is not None:
        header = placed.header
        cut = wanted
        if header.magic >= MAGIC_V2:
            # A batch that was cleaned may have few records in a range of billions: it is not cut.
            is_sparse = header.last_offset_delta >= _SPARSE * header.records_count
            fits = is_sparse or header.records_count <= max_records
            if header.base_offset >= wanted or (fits and header.base_offset > low):
                cut = header.base_offset
            elif fits:
                cut = header.next_offset
        if cut >= past:
            break
        cuts.append(cut)
        low, wanted = cut, cut + max_records
    return cuts
