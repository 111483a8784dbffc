"""A partition as it is at one moment, for as long as it takes to read it several times.

All its files are opened at once and answered from then on, with the sizes that they have at that
moment, whatever a live owner appends, cleans or deletes meanwhile; the few that are written in
place are copied. Names are listed again after the opening: as long as they stand for other files by
then, or a swap of segments is under way, it is begun anew.

Invariants
- I1  Nothing can be written and no lock is asked for: there is no method for the one, and a shared
      lock is nobody's.
- I2  What was read twice was the same twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from stratalog.admin.directories import PartitionPlace
from stratalog.base.clock import Clock, SystemClock
from stratalog.base.errors import LogChangedError
from stratalog.base.filesystem import File, FileStat, FileSystem, OpenMode
from stratalog.ledger.manifest import LEDGERS_DIRECTORY
from stratalog.log.leftovers import refuse_unfinished, sort_out
from stratalog.segment.names import (
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    STATE_DIRECTORY,
    FileState,
    parse,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BASE_DIGITS = 20
_ATTEMPTS = 100
_PAUSE_MS = 50
"""A swap of segments takes some renames, each of which a busy disk may take its time for."""
_WAITS: Clock = SystemClock()
"""Another process is waited for by the machine's clock, also where figures are of a given time."""


class ReadingFileSystem:
    """A file system to look at: without its writing half (I1)."""

    def __init__(self, inner: FileSystem):
        self._inner = inner

    def open(self, path: str, mode: OpenMode) -> File:
        assert mode == "read", (path, mode)
        return self._inner.open(path, mode)

    def list_directory(self, path: str) -> list[str]:
        return self._inner.list_directory(path)

    def stat(self, path: str) -> FileStat:
        return self._inner.stat(path)

    def exists(self, path: str) -> bool:
        return self._inner.exists(path)

    def is_directory(self, path: str) -> bool:
        return self._inner.is_directory(path)

    def lock(self, path: str, *, exclusive: bool) -> Callable[[], None]:
        assert not exclusive, path
        return lambda: None


def reading(filesystem: FileSystem) -> FileSystem:
    """`filesystem`, to look at."""
    return cast("FileSystem", ReadingFileSystem(filesystem))


@dataclass(frozen=True, slots=True)
class _PinnedFile:
    """A file as it was: as long as it was if `content` is None, which an append-only file then
    keeps, else with that content. Closing it is not its readers' business."""

    file: File
    told: FileStat
    content: bytes | None

    @property
    def path(self) -> str:
        return self.file.path

    def pread_into(self, buffer: Buffer, position: int) -> int:
        view = memoryview(buffer).cast("B")
        view = view[: max(self.told.size_bytes - position, 0)]
        if self.content is None:
            return self.file.pread_into(view, position)
        view[:] = self.content[position : position + len(view)]
        return len(view)

    def size_bytes(self) -> int:
        return self.told.size_bytes

    def file_id(self) -> int:
        return self.told.file_id

    def close(self) -> None:
        pass


class _Pinned(ReadingFileSystem):
    """`directories` -> their names; `files`: those in them, and the checkpoints beside them."""

    def __init__(
        self,
        inner: FileSystem,
        directories: dict[str, list[str]],
        files: dict[str, _PinnedFile],
    ):
        super().__init__(inner)
        self._directories = directories
        self._files = files

    def open(self, path: str, mode: OpenMode) -> File:
        if path not in self._files and os.path.dirname(path) not in self._directories:
            return super().open(path, mode)
        assert mode == "read", (path, mode)
        return cast("File", self._found(path))

    def list_directory(self, path: str) -> list[str]:
        names = self._directories.get(path)
        return super().list_directory(path) if names is None else list(names)

    def stat(self, path: str) -> FileStat:
        if os.path.dirname(path) not in self._directories or path in self._directories:
            return super().stat(path)
        return self._found(path).told

    def exists(self, path: str) -> bool:
        if os.path.dirname(path) not in self._directories or path in self._directories:
            return super().exists(path)
        return path in self._files

    def has_same_files(self) -> bool:
        """Whether the names on the disk still stand for these files, whose ends may have grown."""
        return self._is_like(lambda now, told: now.file_id == told.file_id)

    def is_unchanged(self) -> bool:
        """Whether the disk still looks like this."""
        return self._is_like(lambda now, told: now == told)

    def _is_like(self, same: Callable[[FileStat, FileStat], bool]) -> bool:
        try:
            return all(
                names == _wanted(self._inner.list_directory(path))
                for path, names in self._directories.items()
            ) and all(
                same(self._inner.stat(path), file.told)
                for path, file in self._files.items()
                if os.path.dirname(path) in self._directories
            )
        except FileNotFoundError:
            return False

    def _found(self, path: str) -> _PinnedFile:
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(2, "No such file or directory", path) from None


@contextmanager
def pinned(place: PartitionPlace, filesystem: FileSystem) -> Iterator[FileSystem]:
    """A file system in which a partition stays as it is now.

    Raises `FileNotFoundError` where it is gone, `StorageIOError` (among them `TooManyFilesError`:
    all its files are open at once).
    """
    with ExitStack() as stack:
        for attempt in range(_ATTEMPTS):
            try:
                found = _pin(place, filesystem, stack)
            except FileNotFoundError:  # gone between the listing and the opening
                if attempt + 1 == _ATTEMPTS or not filesystem.exists(place.path):
                    raise
            else:
                # What never comes to rest is left to its readers, who say what they see.
                disk = cast("FileSystem", found)
                is_resting = found.has_same_files() and not _is_swapping(disk, place.path)
                if is_resting or attempt + 1 == _ATTEMPTS:
                    yield disk
                    return
            stack.close()
            _WAITS.sleep_ms(_PAUSE_MS)


def _is_swapping(disk: FileSystem, directory: str) -> bool:
    try:
        refuse_unfinished(disk, directory, sort_out(disk.list_directory(directory)))
    except LogChangedError:
        return True
    return False


def is_unchanged(moment: FileSystem) -> bool:
    """Whether the partition still is as in `moment`, which `pinned` answered."""
    assert isinstance(moment, _Pinned)
    return moment.is_unchanged()


def _pin(place: PartitionPlace, filesystem: FileSystem, stack: ExitStack) -> _Pinned:
    """In the order in which what is older is fine: checkpoints and digests may lag behind a log, as
    they do after a crash."""
    files: dict[str, _PinnedFile] = {}
    for name in (CLEANER_OFFSET_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT):
        with suppress(FileNotFoundError):
            path = os.path.join(place.log_dir, name)
            files[path] = _opened(path, filesystem, stack, copies=True)
    directories = _listed(place.path, filesystem)
    bases = [name[:_BASE_DIGITS] for name in directories[place.path] if name.endswith(".log")]
    newest = max(bases, default="")
    for parent, names in reversed(directories.items()):
        for name in names:
            path = os.path.join(parent, name)
            if path not in directories:
                # Beside logs, which only grow, these alone are written in place.
                is_sealed = name[:_BASE_DIGITS].isdecimal() and name[:_BASE_DIGITS] != newest
                copies = not (is_sealed or name.endswith(".log"))
                files[path] = _opened(path, filesystem, stack, copies=copies)
    return _Pinned(filesystem, directories, files)


def _opened(path: str, filesystem: FileSystem, stack: ExitStack, *, copies: bool) -> _PinnedFile:
    file = filesystem.open(path, "read")
    stack.callback(file.close)
    told = filesystem.stat(path)
    size_bytes, content = file.size_bytes(), None
    if copies:
        buffer = bytearray(size_bytes)
        size_bytes = file.pread_into(buffer, 0)
        content = bytes(buffer[:size_bytes])
    return _PinnedFile(file, FileStat(size_bytes, told.modified_ms, file.file_id()), content)


def _listed(directory: str, filesystem: FileSystem) -> dict[str, list[str]]:
    """The names in the partition's directory and in the one of our own that may be in it."""
    state = os.path.join(directory, STATE_DIRECTORY)
    found = {directory: _wanted(filesystem.list_directory(directory))}
    if STATE_DIRECTORY in found[directory]:
        found[state] = _wanted(filesystem.list_directory(state))
    return found


def _wanted(names: list[str]) -> list[str]:
    """Without what waits to be unlinked, which is no part of the log any more, and without ledgers,
    which never are."""
    return [
        name
        for name in names
        if name != LEDGERS_DIRECTORY
        and ((parsed := parse(name)) is None or parsed.state is not FileState.DELETED)
    ]
