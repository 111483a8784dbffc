"""One segment of a log, as an immutable value over an open file.

A `Segment` says how many bytes of its file count; the active segment is published anew after every
append, with the same file and indexes and a larger size. So a reader that holds one sees exactly
what was there when it was published (LOG-12).

Invariants
- I1  Lookups never trust an index further than the batch that it points to: if that is no batch, or
      lies past the offset, the walk starts at the file's beginning.
- I2  With a guard, no batch is answered, stepped over or measured before its block was held against
      the segment's digest (`guard`); damage is a `CorruptionError`, never a shorter answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import FileSystem, read_file
from stratalog.base.limits import CHUNK_BYTES, MAX_TXN_INDEX_BYTES
from stratalog.record.batch import Batch
from stratalog.record.batch import batches as batches_of
from stratalog.record.values import Record
from stratalog.segment import digest, txn_index
from stratalog.segment.digest import NO_FILE, Digest, FileSum
from stratalog.segment.guard import Guard
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
    of the last append); `aborted` are the entries of the `.txnindex`; `guard` holds what is read
    against the segment's digest, None: nothing does.
    """

    base_offset: int
    size_bytes: int
    modified_ms: int
    log: LogFile
    indexes: SegmentIndexes
    aborted: tuple[AbortedTxn, ...] = ()
    guard: Guard | None = None

    def headers(self, position: int = 0) -> Iterator[PlacedHeader]:
        """The batch headers from `position` on. Raises `CorruptionError`."""
        if self.guard is None:
            return self.log.headers(position, self.size_bytes)
        return self._guarded_headers(self.guard, position)

    def batches(self, position: int = 0, window_bytes: int = CHUNK_BYTES) -> Iterator[Batch]:
        """The batches from `position` on, which must be a batch's start; theirs is the position in
        the file. `window_bytes` is the unit of reading. Raises `CorruptionError`; checksums are the
        caller's business.
        """
        if self.guard is None:
            return self.log.batches(position, self.size_bytes, window_bytes)
        return self._guarded_batches(self.guard, position, window_bytes)

    def read_chunk(self, placed: PlacedHeader, max_bytes: int) -> memoryview:
        """About `max_bytes` from a batch on: all of that batch, the last one may be a part (LOG-8,
        LOG-9). Ends before damage; raises `CorruptionError` for damage to the batch itself.
        """
        data = self.log.whole_batches(placed.position, self.size_bytes, max_bytes)
        if self.guard is not None:
            data, damage = _checked(self.guard, placed.position, data)
            if damage is not None and len(data) < placed.header.size_bytes:
                raise damage
        if len(data) < placed.header.size_bytes:
            raise CorruptionError(
                "the file is shorter than it was", file=self.log.path, position=placed.position
            )
        return data

    def check_digest(self) -> None:
        """Hold the whole log against the digest, as far as no reader has done so yet.

        Reads headers, not records; checks nothing without a digest. Raises `CorruptionError`.
        """
        if self.guard is not None:
            self.guard.check(0, self.size_bytes)
            self.guard.check_end(self.size_bytes)

    def _guarded_headers(self, guard: Guard, position: int) -> Iterator[PlacedHeader]:
        while (end := guard.run_end(position, 0)) is not None and position < self.size_bytes:
            guard.check(position, end)
            start = position
            for placed in self.log.headers(position, min(end, self.size_bytes)):
                yield placed
                position = placed.end
            self._check_run(guard, start, position, end)
        yield from self.log.headers(position, self.size_bytes)
        guard.check_end(self.size_bytes)

    def _guarded_batches(self, guard: Guard, position: int, window_bytes: int) -> Iterator[Batch]:
        while (
            end := guard.run_end(position, window_bytes)
        ) is not None and position < self.size_bytes:
            start = position
            data = self.log.read(start, min(end, self.size_bytes) - start)
            data, damage = _checked(guard, start, data)
            try:
                for batch in batches_of(data):
                    yield Batch(batch.header, batch.data, start + batch.position)
                    position = start + batch.position + batch.header.size_bytes
            except CorruptionError as error:
                raise error.located(self.log.path, start) from None
            if damage is not None:
                raise damage
            self._check_run(guard, start, position, end)
        yield from self.log.batches(position, self.size_bytes, window_bytes)
        guard.check_end(self.size_bytes)

    def _check_run(self, guard: Guard, start: int, position: int, end: int) -> None:
        """A walk from a batch's start through right blocks ends where they do."""
        guard.check_end(self.size_bytes)
        if position != end and guard.run_end(start, 0) is not None:
            raise CorruptionError("no batch begins here", file=self.log.path, position=start)

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
        # Another segment's file would be stepped over in silence.
        first = next(self.headers(), None)
        if first is not None and first.header.base_offset < self.base_offset:
            reason = f"offset {first.header.base_offset} does not belong here"
            raise CorruptionError(reason, file=self.log.path, position=0)
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
        """The whole batch at a header's place. Raises `CorruptionError`, also for its checksum."""
        if self.guard is not None:
            self.guard.check(placed.position, placed.end)
        data = self.log.read(placed.position, placed.header.size_bytes)
        if len(data) < placed.header.size_bytes:
            raise CorruptionError(
                "batch ends past the end of the file", file=self.log.path, position=placed.position
            )
        batch = Batch(placed.header, data, placed.position)
        if not batch.crc_ok():
            raise CorruptionError(
                "batch fails its checksum", file=self.log.path, position=placed.position
            )
        return batch

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


def _checked(
    guard: Guard, position: int, data: memoryview
) -> tuple[memoryview, CorruptionError | None]:
    """What of `data`, read from `position`, comes before any damage; and the damage."""
    try:
        guard.check_data(position, data)
    except CorruptionError as error:
        assert error.position is not None
        return data[: max(error.position - position, 0)], error
    return data, None


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
    *,
    use_digest: bool = True,
) -> tuple[AbortedTxn, ...]:
    """The entries of a segment's `.txnindex`; none without the file.

    Raises `CorruptionError`, naming the file, for one that does not decode, or is not the one that
    the segment's digest knows (RCV-4); `use_digest` false: that is not asked.
    """
    path = segment_path(directory, base_offset, FileKind.TXN_INDEX, state)
    try:
        content: bytes | None = read_file(filesystem, path, MAX_TXN_INDEX_BYTES)
    except FileNotFoundError:
        content = None
    if use_digest and state is FileState.FINAL:
        known = _known_txn_index(filesystem, directory, base_offset)
        found = NO_FILE if content is None else FileSum.of(content)
        # No file and an empty one say the same.
        if known is not None and found != known and max(found.size_bytes, known.size_bytes) > 0:
            raise CorruptionError("not the transaction index that was written", file=path)
    try:
        return () if content is None else txn_index.decode(content, base_offset)
    except CorruptionError as error:
        raise error.located(path) from None


def _known_txn_index(filesystem: FileSystem, directory: str, base_offset: int) -> FileSum | None:
    head = digest.load_head(filesystem, directory, base_offset)
    if head is None:
        return None
    try:
        log = filesystem.stat(segment_path(directory, base_offset, FileKind.LOG))
    except FileNotFoundError:
        return None
    if (log.file_id, log.size_bytes) != (head.file_id, head.covered_bytes):
        return None
    return head.index_sum(FileKind.TXN_INDEX)


def open_segment(
    filesystem: FileSystem,
    directory: str,
    base_offset: int,
    *,
    interval_bytes: int = 4096,
    repair: bool = False,
    aborted: tuple[AbortedTxn, ...] | None = None,
    state: FileState = FileState.FINAL,
    use_digest: bool = True,
    known_digest: Digest | None = None,
) -> Segment:
    """A segment that no longer changes, from its files.

    `repair`: indexes that had to be made anew (RCV-4) are written to disk. `aborted` replaces what
    the `.txnindex` holds. With another `state` than FINAL (a swap is about to rename the files)
    everything is loaded at once, and no digest is asked. `use_digest` false: what a crash left may
    be younger than the digest; it is ignored, and removed if `repair`. `known_digest` replaces what
    the digest file holds. Raises `FileNotFoundError` for a missing log, `CorruptionError` for a
    damaged `.txnindex`.
    """
    path = segment_path(directory, base_offset, FileKind.LOG, state)
    log = LogFile.open(filesystem, path)
    size_bytes = log.size_bytes()
    stat = filesystem.stat(path)
    if aborted is None:
        aborted = load_aborted(filesystem, directory, base_offset, state, use_digest=use_digest)
    guard = None
    if state is FileState.FINAL and use_digest:
        guard = Guard(filesystem, directory, base_offset, log, stat.file_id, known_digest)
    elif state is FileState.FINAL and repair:
        digest.remove_digest(filesystem, directory, base_offset)
    indexes = StoredIndexes(
        filesystem,
        directory,
        base_offset,
        log,
        size_bytes,
        interval_bytes,
        repair=repair,
        state=state,
        guard=guard,
    )
    if state is not FileState.FINAL:
        indexes.retire()
    elif repair:
        indexes.check()
    return Segment(base_offset, size_bytes, stat.modified_ms, log, indexes, aborted, guard)
