"""What is found that a stop in order never leaves: for the beginning of scenarios.

tear      the log's end is gone, as after a cut
garble    a batch is damaged, so that the log ends before it
Unsynced  a disk for somebody who syncs nothing and makes no digests, as Kafka with its defaults
"""

from __future__ import annotations

from typing import Any

from stratalog.base.errors import StorageIOError
from stratalog.base.filesystem import OpenMode
from stratalog.log.partition_log import PartitionLog
from stratalog.segment import digest
from stratalog.segment.names import FileKind, FileState, parse
from stratalog.segment.segment import segment_path
from tests.sim.disk import SimDisk
from tests.sim.file import SimFile
from tests.sim.logs import LogState


def store_digest(disk: SimDisk, log: PartitionLog) -> None:
    """Of the active segment, as a roll or a close does before anything is synced."""
    active = log.segments.active
    made = digest.build_digest(disk, log.path, active.base_offset, active.log, active.size_bytes)
    digest.store_digest(disk, log.path, active.base_offset, made)


def tear(disk: SimDisk, path: str, state: LogState, count: int) -> LogState:
    """The last batches are gone, which were never flushed."""
    gone = state.sent[-count:]
    file = disk.open(_holding(disk, path, gone[0].first), "update")
    file.truncate(file.size_bytes() - sum(len(batch.data) for batch in gone))
    return _ending_at(state, gone[0].first)


def garble(disk: SimDisk, path: str, state: LogState, offset: int) -> LogState:
    """The batch at `offset`, which was never flushed, is damaged."""
    (batch,) = (batch for batch in state.sent if batch.first == offset)
    name = _holding(disk, path, offset)
    file = disk.open(name, "update")
    file.pwrite(bytes(16), disk.content(name).index(batch.data) + len(batch.data) - 16)
    return _ending_at(state, offset)


def _holding(disk: SimDisk, path: str, offset: int) -> str:
    found = [made for name in disk.list_directory(path) if (made := parse(name)) is not None]
    logs = [one.base_offset for one in found if one.kind is FileKind.LOG]
    base = max(base for base in logs if base <= offset)
    return segment_path(path, base, FileKind.LOG, FileState.FINAL)


def _ending_at(state: LogState, offset: int) -> LogState:
    assert state.flushed <= offset
    sent = tuple(batch for batch in state.sent if batch.last < offset)
    return state._replace(sent=sent, end=max(offset, state.start))


class Unsynced:
    """A `FileSystem` that syncs nothing, and has no room for digests."""

    def __init__(self, disk: SimDisk):
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, path: str, mode: OpenMode) -> UnsyncedFile:
        if path.endswith(".digest"):
            raise StorageIOError(f"{path}: no digests here")
        return UnsyncedFile(self._disk.open(path, mode))

    def fsync_directory(self, path: str) -> None:
        """Not here."""


class UnsyncedFile:
    def __init__(self, file: SimFile):
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def fsync(self) -> None:
        """Not here."""
