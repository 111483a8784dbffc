"""A group of segments -> one new segment, as `.part` files beside the log.

Chunks are decided on any thread and take their turn here in file order; a turn only fixes where
the bytes go and folds the indexes, the writing itself happens side by side.

Invariants
- W1  The bytes and indexes depend on the group and the context only, not on threads or engine.
- W2  Nothing is written as long as a group of one segment comes out as it went in; if it does so
      to the end, the segment stays (CMP-19), and `CleanedGroup.unchanged` says so.
- W3  What `finish` returns is on disk: files fsynced, with the last source's time (CMP-11). Their
      directory entries are the swap's business.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import File, FileSystem
from stratalog.clean.chunk import Bytes, Chunk, ChunkReader, Int64s, Scratch
from stratalog.clean.decide import DecideContext, DecidedChunk, decide_chunk
from stratalog.clean.job import CleanedGroup, SourceSegment, Volume
from stratalog.segment import index_builder, txn_index
from stratalog.segment.names import FileKind, part_name
from stratalog.segment.txn_index import AbortedTxn

_COPY_BYTES = 1 << 20


class GroupRewriter:
    """Rewrites one group; any number of threads call `work` until it answers 0, one calls
    `finish`. Stateful: `_lock` guards the place reached in the sources and in the output."""

    def __init__(
        self,
        filesystem: FileSystem,
        context: DecideContext,
        group: Sequence[SourceSegment],
        *,
        tag: str,
        attempt: int,
        writes: bool,
    ):
        """`tag` and `attempt` name the `.part` files; without `writes` nothing touches the disk."""
        self._context = context
        self._group = tuple(group)
        self._writes = writes
        self._lock = threading.Condition()
        job = context.job
        self._readers = [
            ChunkReader.of(filesystem, job.directory, segment, job.spec) for segment in self._group
        ]
        self._reading = 0
        self._next_taken = 0
        self._next_placed = 0
        self._failed = False
        self._output = GroupOutput(filesystem, context, self._group, tag, attempt)
        self._position = 0
        self._is_copy = may_stay(context, self._group)
        # What each source gave so far; the group's volume is their sum.
        self._volumes = [Volume(bytes_before=segment.size_bytes) for segment in self._group]
        self._next_expiry_ms: int | None = None

    def work(self, scratch: Scratch) -> int:
        """Decide and write the next chunk; its size in bytes, 0 if there is none left.

        Raises `CorruptionError`.
        """
        taken = self._take(scratch)
        if taken is None:
            return 0
        turn, source, chunk = taken
        try:
            decided = decide_chunk(chunk, self._context, self._group[source], scratch)
            position = self._place(turn, source, decided)
            if position is not None and len(decided.out) > 0:
                self._output.pwrite(decided.out, position)
        except BaseException:
            with self._lock:
                self._failed = True
                self._lock.notify_all()
            raise
        return chunk.size_bytes

    def finish(self) -> CleanedGroup:
        """Close the group once all chunks are written: indexes, times, fsync."""
        parts: tuple[tuple[str, str], ...] = ()
        try:
            if self._writes and not self._is_copy:
                parts = self._finish_files()
        finally:
            self.close()
        return CleanedGroup(
            tuple(segment.base_offset for segment in self._group),
            self._group[-1].modified_ms,
            sum(self._volumes, Volume()),
            self._is_copy,
            parts,
            tuple(self._volumes),
            self._next_expiry_ms,
        )

    def close(self) -> None:
        """Let go of the files; what was written of an unfinished group stays as a stray part."""
        for reader in self._readers:
            reader.close()
        self._output.close()

    def _take(self, scratch: Scratch) -> tuple[int, int, Chunk] | None:
        """(the chunk's turn, its source's place in the group, the chunk)."""
        with self._lock:
            while not self._failed and self._reading < len(self._readers):
                chunk = self._readers[self._reading].take(scratch)
                if chunk is not None:
                    turn = self._next_taken
                    self._next_taken += 1
                    return turn, self._reading, chunk
                self._reading += 1
        return None

    def _place(self, turn: int, source: int, decided: DecidedChunk) -> int | None:
        """Wait for the chunk's turn; where its bytes go, or None if nothing is to be written."""
        with self._lock:
            while self._next_placed != turn and not self._failed:
                self._lock.wait()
            if self._failed:
                return None
            position = self._position
            self._volumes[source] += Volume(
                decided.records_before,
                decided.records_after,
                bytes_after=len(decided.out),
                drops=decided.drops,
                dropped_bytes=decided.dropped_bytes,
                markers_after=decided.markers_after,
            )
            self._next_expiry_ms = earlier(self._next_expiry_ms, decided.next_expiry_ms)
            self._output.fold(decided.written, position)
            if self._is_copy and not decided.unchanged:
                self._is_copy = False
                if self._writes:
                    # The first change of a single segment: what was passed over is needed.
                    self._output.copy_source(0, position)
            if self._writes and not self._is_copy:
                self._output.create()
            self._position += len(decided.out)
            self._next_placed += 1
            self._lock.notify_all()
            return position if self._output.is_created else None

    def _finish_files(self) -> tuple[tuple[str, str], ...]:
        with self._lock:
            return self._output.finish()


class GroupOutput:
    """The new segment of a group while it comes into being, as `.part` files. Stateful; the index
    and time entries are folded in file order, bytes may be written in any."""

    def __init__(
        self,
        filesystem: FileSystem,
        context: DecideContext,
        group: Sequence[SourceSegment],
        tag: str,
        attempt: int,
    ):
        self._filesystem = filesystem
        self._context = context
        self._group = group
        self._tag = tag
        self._attempt = attempt
        self._log: File | None = None
        self._index = index_builder.IndexState(
            group[0].base_offset, context.job.spec.index_interval_bytes
        )
        self._offset_entries = bytearray()
        self._time_entries = bytearray()

    @property
    def is_created(self) -> bool:
        """Whether there is a log file to write to."""
        return self._log is not None

    def create(self) -> None:
        """Make the log file, unless that was done."""
        if self._log is None:
            self._log = self._filesystem.open(self._path(FileKind.LOG), "create")

    def pwrite(self, data: Bytes | memoryview, position: int) -> None:
        """Write batches at `position` of the log file, which was created."""
        assert self._log is not None
        self._log.pwrite(data, position)

    def fold(self, written: Int64s, position: int) -> None:
        """Take the next batches into the indexes: rows as in `DecidedChunk.written`, at `position`
        of the log file."""
        positions, sizes, last_offsets, max_timestamps = written.T
        self._index, entries = index_builder.extend(
            self._index, positions + position, sizes, last_offsets, max_timestamps
        )
        self._add(entries)

    def copy_source(self, start: int, end: int) -> None:
        """Bytes [start, end) of a single source, counted from its first, come to the same place of
        the log file."""
        self.create()
        source = self._group[0]
        path, first = source.file_path(self._context.job.directory), source.start
        copy_bytes(self._filesystem, path, first + start, first + end, self.pwrite, start)

    def finish(self) -> tuple[tuple[str, str], ...]:
        """Write the indexes, fsync, set the last source's time; (kind, name) of each file."""
        self.create()  # it is not there yet if nothing stayed of a group that had no chunk at all
        assert self._log is not None
        self._index, entries = index_builder.finish(self._index)
        self._add(entries)
        contents = {
            FileKind.OFFSET_INDEX: bytes(self._offset_entries),
            FileKind.TIME_INDEX: bytes(self._time_entries),
        }
        aborted = _retained_aborted(self._context, self._group)
        if aborted:
            contents[FileKind.TXN_INDEX] = txn_index.encode(aborted)
        self._log.fsync()
        for kind, content in contents.items():
            file = self._filesystem.open(self._path(kind), "create")
            try:
                file.pwrite(content, 0)
                file.fsync()
            finally:
                file.close()
        kinds = (FileKind.LOG, *contents)
        for kind in kinds:
            self._filesystem.set_modified(self._path(kind), self._group[-1].modified_ms)
        return tuple((kind.value, os.path.basename(self._path(kind))) for kind in kinds)

    def close(self) -> None:
        """Let go of the log file."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _add(self, entries: index_builder.IndexEntries) -> None:
        offset_bytes, time_bytes = entries.encode(self._group[0].base_offset)
        self._offset_entries += offset_bytes
        self._time_entries += time_bytes

    def _path(self, kind: FileKind) -> str:
        name = part_name(self._group[0].base_offset, kind, self._tag, self._attempt)
        return os.path.join(self._context.job.directory, name)


def may_stay(context: DecideContext, group: Sequence[SourceSegment]) -> bool:
    """Whether nothing is to be written for a group in which nothing changes (CMP-19)."""
    is_single = len(group) == 1 and group[0].may_stay
    return is_single and not txn_index_changes(context, group)


def txn_index_changes(context: DecideContext, group: Sequence[SourceSegment]) -> bool:
    """Whether some of the group's aborted ranges go: its .txnindex is then to be made anew."""
    start, end = group[0].base_offset, group[-1].next_offset
    before = [txn for txn in context.job.aborted if start <= txn.last_offset < end]
    return _retained_aborted(context, group) != before


def _retained_aborted(context: DecideContext, group: Sequence[SourceSegment]) -> list[AbortedTxn]:
    return context.markers.retained_between(group[0].base_offset, group[-1].next_offset)


def copy_bytes(
    filesystem: FileSystem,
    path: str,
    start: int,
    end: int,
    pwrite: Callable[[memoryview, int], None],
    position: int,
) -> None:
    """Bytes [start, end) of the file at `path`, written by `pwrite` from `position` on.

    Raises `CorruptionError` if the file ends before.
    """
    source = filesystem.open(path, "read")
    try:
        buffer = bytearray(_COPY_BYTES)
        while start < end:
            view = memoryview(buffer)[: end - start]
            if source.pread_into(view, start) < len(view):
                raise CorruptionError("file ends early", file=path, position=start)
            pwrite(view, position)
            start += len(view)
            position += len(view)
    finally:
        source.close()


def earlier(one: int | None, other: int | None) -> int | None:
    """The earlier of two times, of which None never comes."""
    return min((time_ms for time_ms in (one, other) if time_ms is not None), default=None)
