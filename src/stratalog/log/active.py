"""The segment being written: its three files and what rolling needs to know of it.

Invariants
- I1  Files are written at positions that memory knows, log first, indexes last; memory changes
      only when all of it is written. So an append that fails leaves nothing that counts, and what
      it left in the files is cut off, or written over by the next one.
- I2  If cutting off fails too, the segment takes no more appends (`broken`): the log must be opened
      again, which looks at its tail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.base.errors import StorageIOError, StratalogError
from stratalog.base.filesystem import FileSystem
from stratalog.log.roll import ActiveFacts
from stratalog.log.tail import Tail
from stratalog.segment import offset_index, time_index, txn_index
from stratalog.segment.index_builder import IndexState
from stratalog.segment.indexes import GrowingIndexes
from stratalog.segment.log_file import LogFile
from stratalog.segment.names import SEGMENT_KINDS, FileKind
from stratalog.segment.segment import Segment, open_segment, segment_path
from stratalog.segment.txn_index import AbortedTxn

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ActiveSegment:
    """Belongs to its log, whose lock guards it. `size_bytes` counts what was appended whole."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        log: LogFile,
        indexes: GrowingIndexes,
        *,
        size_bytes: int,
        aborted: tuple[AbortedTxn, ...],
        first_timestamp: int,
        created_ms: int,
        modified_ms: int,
    ):
        self._filesystem = filesystem
        self._directory = directory
        self.log = log
        self.indexes = indexes
        self.size_bytes = size_bytes
        self.aborted = aborted
        self.first_timestamp = first_timestamp
        self.created_ms = created_ms
        self.modified_ms = modified_ms
        self.broken = False

    @classmethod
    def create(
        cls,
        filesystem: FileSystem,
        directory: str,
        base_offset: int,
        *,
        interval_bytes: int,
        now_ms: int,
    ) -> ActiveSegment:
        """A new, empty segment. Raises `StorageIOError`."""
        indexes = GrowingIndexes(
            filesystem,
            directory,
            IndexState(base_offset, interval_bytes),
            offset_index.empty(base_offset),
            time_index.empty(base_offset),
        )
        path = segment_path(directory, base_offset, FileKind.LOG)
        log = LogFile.open(filesystem, path, "create")
        return cls(
            filesystem,
            directory,
            log,
            indexes,
            size_bytes=0,
            aborted=(),
            first_timestamp=-1,
            created_ms=now_ms,
            modified_ms=now_ms,
        )

    @classmethod
    def resume(
        cls,
        filesystem: FileSystem,
        directory: str,
        tail: Tail,
        now_ms: int,
    ) -> ActiveSegment:
        """Go on with the last segment of a log, which was loaded as writable."""
        segment = tail.segment
        first = next(segment.headers(), None)
        indexes = GrowingIndexes(
            filesystem, directory, tail.state, *tail.entries, rewrite=tail.entries_changed
        )
        return cls(
            filesystem,
            directory,
            segment.log,
            indexes,
            size_bytes=segment.size_bytes,
            aborted=segment.aborted,
            first_timestamp=-1 if first is None else first.header.max_timestamp,
            created_ms=now_ms,
            modified_ms=segment.modified_ms,
        )

    @property
    def base_offset(self) -> int:
        return self.indexes.state.base_offset

    def facts(self) -> ActiveFacts:
        """What `roll` decides by."""
        return ActiveFacts(
            self.base_offset,
            self.size_bytes,
            self.indexes.offset_entries,
            self.indexes.time_entries,
            self.first_timestamp,
            self.created_ms,
        )

    def value(self) -> Segment:
        """The segment as of now, for readers."""
        return Segment(
            self.base_offset,
            self.size_bytes,
            self.modified_ms,
            self.log,
            self.indexes,
            self.aborted,
        )

    def append(
        self,
        data: Buffer,
        rows: list[tuple[int, int, int]],
        aborted: tuple[AbortedTxn, ...],
        now_ms: int,
    ) -> None:
        """Add whole batches; `rows`: (size, last offset, max timestamp) of each.

        All or nothing (I1). Raises `StorageIOError`.
        """
        if self.broken:
            raise StorageIOError(f"{self.log.path}: an earlier write failed; open the log again")
        placed: list[tuple[int, int, int, int]] = []
        end = self.size_bytes
        for size_bytes, last_offset, max_timestamp in rows:
            placed.append((end, size_bytes, last_offset, max_timestamp))
            end += size_bytes
        try:
            self.log.write(data, self.size_bytes)
            if aborted:
                self._write_aborted(aborted)
            self.indexes.append(placed)
        except StratalogError:
            self._cut_off(bool(aborted))
            raise
        if self.size_bytes == 0:
            # Kafka looks at the largest timestamp of the whole first append.
            self.first_timestamp = max(max_timestamp for _, _, max_timestamp in rows)
        self.size_bytes = end
        self.aborted += aborted
        self.modified_ms = now_ms

    def seal(self) -> Segment:
        """Write the closing time entry, close the index files; the segment as a stored one."""
        self.indexes.finish()
        self.indexes.close()
        return open_segment(
            self._filesystem,
            self._directory,
            self.base_offset,
            interval_bytes=self.indexes.state.interval_bytes,
            repair=True,
            aborted=self.aborted,
        )

    def remove(self) -> None:
        """Take the new, empty segment back. Raises `StorageIOError`."""
        self.indexes.close()
        for kind in SEGMENT_KINDS:
            path = segment_path(self._directory, self.base_offset, kind)
            if self._filesystem.exists(path):
                self._filesystem.unlink(path)

    def _write_aborted(self, added: tuple[AbortedTxn, ...]) -> None:
        path = segment_path(self._directory, self.base_offset, FileKind.TXN_INDEX)
        file = self._filesystem.open(path, "update" if self.aborted else "create")
        try:
            file.pwrite(txn_index.encode(added), len(self.aborted) * txn_index.ENTRY_BYTES)
        finally:
            file.close()

    def _cut_off(self, with_aborted: bool) -> None:
        try:
            self.log.truncate(self.size_bytes)
            path = segment_path(self._directory, self.base_offset, FileKind.TXN_INDEX)
            if with_aborted and self._filesystem.exists(path):
                file = self._filesystem.open(path, "update")
                try:
                    file.truncate(len(self.aborted) * txn_index.ENTRY_BYTES)
                finally:
                    file.close()
        except StorageIOError:
            self.broken = True
