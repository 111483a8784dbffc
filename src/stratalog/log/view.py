"""Reading a log: an immutable view of it, which readers take once and use as long as they like.

The writer publishes a new view after every change; a view keeps its segments' files open, so it
goes on answering the same whatever is appended, cleaned or deleted meanwhile (LOG-12).

Invariants
- I1  log start <= every offset that is answered < log end.
- I2  Batches come in the order of their offsets, each once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from stratalog.base.errors import CorruptionError, OffsetOutOfRangeError
from stratalog.record.batch import Batch
from stratalog.record.batch import batches as batches_of
from stratalog.record.values import BatchHeader, Record
from stratalog.segment import txn_index
from stratalog.segment.log_file import PlacedHeader
from stratalog.segment.segment import Segment, TimestampOffset
from stratalog.segment.segments import Segments
from stratalog.segment.txn_index import AbortedTxn

READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Stored bytes that begin with a whole batch and may end in a part of one (LOG-8).

    `position` is where they lie in the `.log` of the segment at `base_offset`. Empty at the end.
    """

    base_offset: int
    position: int
    data: memoryview

    def batches(self) -> Iterator[Batch]:
        """The whole batches; their position counts from the chunk's start."""
        return batches_of(self.data)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LogView:
    """A log at one moment. `last_stable_offset`: where read_committed readers must stop.

    Who only wants to know whether a log has changed since keeps a weak reference: a view keeps the
    files of segments open that have been replaced.
    """

    segments: Segments
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int

    def read(self, offset: int, max_bytes: int = READ_BYTES) -> Chunk:
        """About `max_bytes` from the first batch that reaches `offset` on (LOG-8, LOG-10).

        Larger if that batch alone is larger (LOG-9); it may begin below `offset`. Raises
        `OffsetOutOfRangeError` below the log start or past the log end, `CorruptionError`.
        """
        self._check_range(offset)
        found = self._find(offset)
        if found is None:
            active = self.segments.active
            return Chunk(active.base_offset, active.size_bytes, memoryview(b""))
        segment, placed = found
        data = segment.read_chunk(placed, max_bytes)
        return Chunk(segment.base_offset, placed.position, data)

    def read_batches(
        self, offset: int, max_bytes: int = READ_BYTES, end_offset: int | None = None
    ) -> Iterator[Batch]:
        """The batches from the first that reaches `offset` up to the log end (or `end_offset`).

        `max_bytes` is the unit of reading. A batch's position is that in its file. Raises
        `OffsetOutOfRangeError` at once, `CorruptionError` on the way; checksums are the caller's
        choice (`Batch.crc_ok`).
        """
        self._check_range(offset)
        end = self.log_end_offset if end_offset is None else min(end_offset, self.log_end_offset)
        return (batch for _, batch in self._batches(offset, max_bytes, end))

    def _batches(self, offset: int, max_bytes: int, end: int) -> Iterator[tuple[Segment, Batch]]:
        for segment, segment_end in self._from(offset):
            first = segment.find(offset) if segment.base_offset < end else None
            if first is None:
                continue
            previous = segment.base_offset - 1
            for batch in segment.batches(first.position, max_bytes):
                _check_place(segment, batch.position, batch.header, previous, segment_end)
                previous = batch.header.last_offset
                # The offset of a compressed message of magic 0 or 1 is that of its last record.
                if batch.header.base_offset >= end and batch.header.magic >= 2:
                    return
                yield segment, batch
                if batch.header.next_offset >= end:
                    return

    def read_records(
        self, offset: int, max_bytes: int = READ_BYTES, end_offset: int | None = None
    ) -> Iterator[Record]:
        """The data records from `offset` on; transaction markers are left out, aborted data is not.

        Raises as `read_batches`; a batch that fails its checksum is damage.
        """
        self._check_range(offset)
        end = self.log_end_offset if end_offset is None else min(end_offset, self.log_end_offset)
        return (
            record
            for segment, batch in self._batches(offset, max_bytes, end)
            if not batch.header.is_control
            for record in segment.records_of(_sound(segment, batch))
            if offset <= record.offset < end
        )

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record with a timestamp of at least `timestamp` ms (LOG-11), if any."""
        for segment, end in self._from(self.log_start_offset):
            if _largest_timestamp(segment, end) >= timestamp:
                found = segment.find_timestamp(timestamp, self.log_start_offset)
                if found is not None:
                    _check_offset(segment, found.offset, end)
                    return found
        return None

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """The first record with the log's largest timestamp (LOG-11); None without timestamps."""
        best: TimestampOffset | None = None
        for segment, end in self._from(self.log_start_offset):
            if best is None or _largest_timestamp(segment, end) > best.timestamp:
                found = segment.latest_record(self.log_start_offset)
                if found is not None:
                    _check_offset(segment, found.offset, end)
                if found is not None and (best is None or found.timestamp > best.timestamp):
                    best = found
        return best

    def aborted_between(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """The aborted transactions that touch [start_offset, end_offset), by marker offset."""
        found: list[AbortedTxn] = []
        for segment in self.segments.from_offset(start_offset):
            found += txn_index.aborted_between(segment.aborted, start_offset, end_offset)
            # Later markers belong to transactions that begin at or past the end.
            if any(entry.last_stable_offset >= end_offset for entry in segment.aborted):
                break
        return found

    def _find(self, offset: int) -> tuple[Segment, PlacedHeader] | None:
        for segment, end in self._from(offset):
            placed = segment.find(offset)
            if placed is not None:
                _check_place(segment, placed.position, placed.header, segment.base_offset - 1, end)
                return segment, placed
        return None

    def _from(self, offset: int) -> Iterator[tuple[Segment, int]]:
        """The segments that may hold `offset` or anything above it, and where each ends."""
        segments = self.segments.from_offset(offset)
        first = len(self.segments) - len(segments)
        for slot, segment in enumerate(segments, start=first):
            yield segment, self.segments.end_of(slot, self.log_end_offset)

    def _check_range(self, offset: int) -> None:
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} lies outside [{self.log_start_offset}, {self.log_end_offset}]"
            )


def _check_place(
    segment: Segment, position: int, header: BatchHeader, previous: int, end: int
) -> None:
    """Whether a batch may follow `previous` in a segment that ends before `end` (I2)."""
    if not previous < header.base_offset <= header.last_offset < end:
        reason = f"offsets {header.base_offset} to {header.last_offset} do not belong here"
        raise CorruptionError(reason, file=segment.log.path, position=position)


def _check_offset(segment: Segment, offset: int, end: int) -> None:
    if not segment.base_offset <= offset < end:
        raise CorruptionError(f"offset {offset} does not belong here", file=segment.log.path)


def _largest_timestamp(segment: Segment, end: int) -> int:
    timestamp, offset = segment.max_timestamp()
    if timestamp >= 0:
        _check_offset(segment, offset, end)
    return timestamp


def _sound(segment: Segment, batch: Batch) -> Batch:
    if not batch.crc_ok():
        raise CorruptionError(
            "batch fails its checksum", file=segment.log.path, position=batch.position
        )
    return batch


class LogReads(ABC):
    """What an open log answers from its current view; reads go without any lock (LOG-12)."""

    __slots__ = ()

    @property
    @abstractmethod
    def view(self) -> LogView:
        """The log as it is now; keep it to go on seeing that."""

    @property
    def segments(self) -> Segments:
        return self.view.segments

    @property
    def log_start_offset(self) -> int:
        """The earliest offset (LOG-11)."""
        return self.view.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The latest offset (LOG-11): that of the next record."""
        return self.view.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the earliest open transaction, else the log end."""
        return self.view.last_stable_offset

    def read(self, offset: int, max_bytes: int = READ_BYTES) -> Chunk:
        """See `LogView.read`."""
        return self.view.read(offset, max_bytes)

    def read_batches(
        self, offset: int, max_bytes: int = READ_BYTES, end_offset: int | None = None
    ) -> Iterator[Batch]:
        """See `LogView.read_batches`."""
        return self.view.read_batches(offset, max_bytes, end_offset)

    def read_records(
        self, offset: int, max_bytes: int = READ_BYTES, end_offset: int | None = None
    ) -> Iterator[Record]:
        """See `LogView.read_records`."""
        return self.view.read_records(offset, max_bytes, end_offset)

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """See `LogView.offset_for_timestamp`."""
        return self.view.offset_for_timestamp(timestamp)

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """See `LogView.offset_of_max_timestamp`."""
        return self.view.offset_of_max_timestamp()
