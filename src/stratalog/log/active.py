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

from stratalog.base.errors import StorageIOError, StratalogError, TooManyFilesError
from stratalog.base.filesystem import FileSystem
from stratalog.log.roll import ActiveFacts
from stratalog.log.tail import Tail
from stratalog.segment import digest, offset_index, time_index, txn_index
from stratalog.segment.digest import Digest, DigestState
from stratalog.segment.guard import Guard
from stratalog.segment.index_builder import IndexState
from stratalog.segment.indexes import GrowingIndexes
from stratalog.segment.log_file import LogFile
from stratalog.segment.names import FileKind
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
        digest: DigestState | None,
        guard: Guard | None = None,
    ):
        self._filesystem = filesystem
        self._directory = directory
        self.log = log
        self.indexes = indexes
        self.size_bytes = size_bytes
        self.aborted = aborted
        self.first_timestamp = first_timestamp
        self.created_ms = created_ms
        self.first_append_ms = min(created_ms, modified_ms)
        self.modified_ms = modified_ms
        self.broken = False
        self._digest = digest
        self._guard = guard

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
        try:
            log = LogFile.open(filesystem, path, "create")
        except StratalogError:
            indexes.close()
            raise
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
            digest=DigestState(base_offset),
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
            digest=_digest_so_far(filesystem, directory, tail),
            guard=segment.guard,
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
            self.first_append_ms,
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
            self._guard,
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
        except TooManyFilesError:
            # Of the transaction index, the one file that is opened here: it is as it was.
            self._cut_off(with_aborted=False)
            raise
        except StratalogError:
            self._cut_off(bool(aborted))
            raise
        if self.size_bytes == 0:
            # Kafka looks at the largest timestamp of the whole first append.
            self.first_timestamp = max(max_timestamp for _, _, max_timestamp in rows)
            self.first_append_ms = now_ms
        self.size_bytes = end
        self.aborted += aborted
        self.modified_ms = now_ms
        if self._digest is not None:
            self._digest.extend(data, [size_bytes for size_bytes, _, _ in rows])

    def seal(self) -> Segment:
        """Write the closing time entry and the digest; the segment as a stored one.

        The index files stay open, for whoever goes on if there is no room for a new segment.
        Raises `StorageIOError`.
        """
        self.indexes.finish()
        return open_segment(
            self._filesystem,
            self._directory,
            self.base_offset,
            interval_bytes=self.indexes.state.interval_bytes,
            repair=True,
            aborted=self.aborted,
            known_digest=self.store_digest(),
        )

    def fsync(self) -> None:
        """Sync all that is not made anew when it is found torn. Raises `StorageIOError`."""
        self.log.fsync()
        self.indexes.fsync_times()
        if self.aborted:
            path = segment_path(self._directory, self.base_offset, FileKind.TXN_INDEX)
            file = self._filesystem.open(path, "update")
            try:
                file.fsync()
            finally:
                file.close()

    def store_digest(self) -> Digest | None:
        """Write the digest of what is there now, whose index files are complete.

        A digest may be absent, so a disk that has no room for one is no reason to fail.
        """
        try:
            state = self._digest
            if state is None:
                state = digest.build_state(self.log, self.base_offset, self.size_bytes)
            made = digest.finish_digest(self._filesystem, self._directory, self.base_offset, state)
            digest.store_digest(self._filesystem, self._directory, self.base_offset, made)
        except StorageIOError:
            return None
        return made

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


def _digest_so_far(filesystem: FileSystem, directory: str, tail: Tail) -> DigestState | None:
    """To go on from the digest that the last close left; None: it is built when it is needed."""
    segment = tail.segment
    found = digest.load_digest(filesystem, directory, segment.base_offset)
    if found is None or found.head.covered_bytes != segment.size_bytes:
        return DigestState(segment.base_offset) if segment.size_bytes == 0 else None
    return DigestState.resumed(found, tail.next_offset - 1)
