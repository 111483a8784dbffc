"""What of a log has been written since it was last flushed (LOG-7).

Files are synced by name: the index files of a rolled segment are closed, and one that has gone
since was replaced or deleted by somebody who syncs what comes in its place.

Invariants
- I1  What is noted stays noted until a flush that began after it has ended well.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stratalog.base.filesystem import FileSystem
from stratalog.log.snapshots import snapshot_path
from stratalog.segment.names import SEGMENT_KINDS
from stratalog.segment.segment import segment_path


@dataclass(frozen=True, slots=True)
class FlushWork:
    """What one flush has to sync. `end_offset` is durable after it."""

    bases: tuple[int, ...]
    snapshots: tuple[int, ...]
    names_made: int
    end_offset: int


@dataclass(slots=True)
class Unflushed:
    """Belongs to its log, whose lock guards it; `sync` needs no lock."""

    directory: str
    recovery_point: int
    names_made: int = 1
    names_synced: int = 0
    rolled: list[int] = field(default_factory=list)
    snapshots: list[int] = field(default_factory=list)

    def note_roll(self, base_offset: int) -> None:
        """The segment at `base_offset` is no longer the active one."""
        self.rolled.append(base_offset)
        self.note_name()

    def note_snapshot(self, offset: int) -> None:
        self.snapshots.append(offset)
        self.note_name()

    def note_name(self) -> None:
        """A file was made: the directory must be synced."""
        self.names_made += 1

    def begin(self, active_base_offset: int, end_offset: int) -> FlushWork:
        """All there is to sync up to `end_offset`."""
        return FlushWork(
            (*self.rolled, active_base_offset),
            tuple(self.snapshots),
            self.names_made,
            end_offset,
        )

    def sync(self, filesystem: FileSystem, work: FlushWork) -> None:
        """Raises `StorageIOError`; then nothing is promised."""
        for base_offset in work.bases:
            for kind in SEGMENT_KINDS:
                _fsync(filesystem, segment_path(self.directory, base_offset, kind))
        for offset in work.snapshots:
            _fsync(filesystem, snapshot_path(self.directory, offset))
        if work.names_made > self.names_synced:
            filesystem.fsync_directory(self.directory)

    def end(self, work: FlushWork) -> None:
        """`work` has been synced; what was noted meanwhile stays."""
        self.rolled = self.rolled[len(work.bases) - 1 :]
        self.snapshots = self.snapshots[len(work.snapshots) :]
        self.names_synced = max(self.names_synced, work.names_made)
        self.recovery_point = max(self.recovery_point, work.end_offset)


def _fsync(filesystem: FileSystem, path: str) -> None:
    try:
        file = filesystem.open(path, "update")
    except FileNotFoundError:
        return
    try:
        file.fsync()
    finally:
        file.close()
