"""One segment of a log, as an immutable value over an open file.

A `Segment` says how many bytes of its file count; the active segment is published anew after every
append, with the same file and indexes and a larger size. So a reader that holds one sees exactly
what was there when it was published (LOG-12).

Invariants
- I1  Lookups never trust an index further than the batch that it points to: if that is no batch, or
      lies past the offset, the walk starts at the file's beginning.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import FileSystem, read_file
from stratalog.base.limits import MAX_TXN_INDEX_BYTES
from stratalog.record.batch import Batch
from stratalog.record.values import Record
from stratalog.segment import txn_index
from stratalog.segment.indexes import SegmentIndexes, StoredIndexes
from stratalog.segment.log_file import LogFile, PlacedHeader
from stratalog.segment.names import FileKind, FileState, file_name
from stratalog.segment.txn_index import AbortedTxn


@dataclass(frozen=True, slots=True)
class TimestampOffset:
    """A record's timestamp (ms) and offset."""

    timestamp: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """`size_bytes` of `log` count; `modified_ms` is the `.log` file's time (for the active segment:
    of the last append); `aborted` are the entries of the `.txnindex`.
    """

    base_offset: int
    size_bytes: int
    modified_ms: int
    log: LogFile
    indexes: SegmentIndexes
    aborted: tuple[AbortedTxn, ...] = ()

    def headers(self, position: int = 0) -> Iterator[PlacedHeader]:
        """The batch headers from `position` on. Raises `CorruptionError`."""
        return self.log.headers(position, self.size_bytes)

    def batches(self, position: int = 0) -> Iterator[Batch]:
        """The batches from `position` on; theirs is the position in the file."""
        return self.log.batches(position, self.size_bytes)

    def find(self, offset: int) -> PlacedHeader | None:
        """The first batch that reaches `offset`; None if all end below it.

        Raises `CorruptionError`.
        """
        start = self.indexes.position_before(offset)
        if start > 0 and not self._is_batch_below(start, offset):
            start = 0
        for placed in self.headers(start):
            if placed.header.last_offset >= offset:
                return placed
        return None

    def find_timestamp(self, timestamp: int, start_offset: int) -> TimestampOffset | None:
        """The first record at or past `start_offset` whose timestamp is >= `timestamp` (LOG-11).

        Raises `CorruptionError`.
        """
        hint = self.indexes.offset_before(timestamp)
        first = self.find(max(hint, start_offset))
        if first is None:
            return None
        for placed in self.headers(first.position):
            if placed.header.max_timestamp < timestamp:
                continue
            for record in self.records_of(self.read_batch(placed)):
                if record.timestamp >= timestamp and record.offset >= start_offset:
                    return TimestampOffset(record.timestamp, record.offset)
        return None

    def read_batch(self, placed: PlacedHeader) -> Batch:
        """The whole batch at a header's place."""
        data = self.log.read(placed.position, placed.header.size_bytes)
        if len(data) < placed.header.size_bytes:
            raise CorruptionError(
                "batch ends past the end of the file", file=self.log.path, position=placed.position
            )
        return Batch(placed.header, data, placed.position)

    def latest_record(self, start_offset: int) -> TimestampOffset | None:
        """The first record with the largest timestamp, of those from `start_offset` on (LOG-11).

        Raises `CorruptionError`.
        """
        timestamp, offset = self.max_timestamp()
        placed = self.find(max(offset, start_offset)) if timestamp >= 0 else None
        best = self._latest_of(placed, start_offset) if placed is not None else None
        if best is not None and best.timestamp == timestamp:
            return best
        # That record was cleaned away, or lies below the start: look at the batches, latest first.
        best = None
        first = self.find(start_offset)
        rest = [] if first is None else list(self.headers(first.position))
        for placed in sorted(rest, key=lambda item: -item.header.max_timestamp):
            if best is not None and placed.header.max_timestamp < best.timestamp:
                break
            found = self._latest_of(placed, start_offset)
            if found is not None and (best is None or _is_later(found, best)):
                best = found
        return best

    def _latest_of(self, placed: PlacedHeader, start_offset: int) -> TimestampOffset | None:
        best: TimestampOffset | None = None
        for record in self.records_of(self.read_batch(placed)):
            if record.offset >= start_offset and record.timestamp >= 0:
                found = TimestampOffset(record.timestamp, record.offset)
                if best is None or _is_later(found, best):
                    best = found
        return best

    def records_of(self, batch: Batch) -> Iterator[Record]:
        """The records of one of this segment's batches; damage in it names the file."""
        try:
            yield from batch.records()
        except CorruptionError as error:
            raise error.located(self.log.path) from None

    def max_timestamp(self) -> tuple[int, int]:
        """The largest timestamp (ms) and the last offset of its batch; -1 if there is none."""
        return self.indexes.max_timestamp()

    def largest_timestamp_ms(self) -> int:
        """The time that retention and lags go by (RET-2): largest timestamp, else the file's."""
        timestamp, _ = self.max_timestamp()
        return timestamp if timestamp > 0 else self.modified_ms

    def _is_batch_below(self, position: int, offset: int) -> bool:
        try:
            placed = next(self.headers(position), None)
        except CorruptionError:
            return False
        return placed is not None and self.base_offset <= placed.header.base_offset <= offset


def _is_later(one: TimestampOffset, other: TimestampOffset) -> bool:
    return (one.timestamp, -one.offset) > (other.timestamp, -other.offset)


def segment_path(
    directory: str, base_offset: int, kind: FileKind, state: FileState = FileState.FINAL
) -> str:
    """The path of one of a segment's files."""
    return os.path.join(directory, file_name(base_offset, kind, state))


def load_aborted(
    filesystem: FileSystem,
    directory: str,
    base_offset: int,
    state: FileState = FileState.FINAL,
) -> tuple[AbortedTxn, ...]:
    """The entries of a segment's `.txnindex`; none without the file.

    Raises `CorruptionError`, naming the file.
    """
    path = segment_path(directory, base_offset, FileKind.TXN_INDEX, state)
    try:
        return txn_index.decode(read_file(filesystem, path, MAX_TXN_INDEX_BYTES), base_offset)
    except FileNotFoundError:
        return ()
    except CorruptionError as error:
        raise error.located(path) from None


def open_segment(
    filesystem: FileSystem,
    directory: str,
    base_offset: int,
    *,
    interval_bytes: int = 4096,
    repair: bool = False,
    aborted: tuple[AbortedTxn, ...] | None = None,
    state: FileState = FileState.FINAL,
) -> Segment:
    """A segment that no longer changes, from its files.

    `repair`: indexes that had to be made anew (RCV-4) are written to disk. `aborted` replaces what
    the `.txnindex` holds. With another `state` than FINAL (a swap is about to rename the files)
    everything is loaded at once. Raises `FileNotFoundError` for a missing log, `CorruptionError`
    for a damaged `.txnindex`.
    """
    path = segment_path(directory, base_offset, FileKind.LOG, state)
    log = LogFile.open(filesystem, path)
    size_bytes = log.size_bytes()
    if aborted is None:
        aborted = load_aborted(filesystem, directory, base_offset, state)
    indexes = StoredIndexes(
        filesystem,
        directory,
        base_offset,
        log,
        size_bytes,
        interval_bytes,
        repair=repair,
        state=state,
    )
    if state is not FileState.FINAL:
        indexes.retire()
    elif repair:
        indexes.check()
    modified_ms = filesystem.stat(path).modified_ms
    return Segment(base_offset, size_bytes, modified_ms, log, indexes, aborted)
