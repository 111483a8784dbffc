"""The only door to the disk: a small Protocol, and the local disk behind it.

Everything that the storage floors do to files goes through `FileSystem` and `File`, so that the
same code runs on a simulated disk whose power can be cut at any call.

Invariants
- I1  An operation either does all of what it says or raises `StorageIOError` (`StorageFullError`
      for ENOSPC and EDQUOT, `TooManyFilesError` for EMFILE and ENFILE); `pwrite` never returns
      after a short write.
- I2  Nothing is durable before `File.fsync` (contents) and `FileSystem.fsync_directory` (names).
- I3  `rename` replaces an existing target atomically, as POSIX has it.
- I4  A missing file raises the built-in `FileNotFoundError`, which callers are expected to handle.
- I5  A lock is of this process as a whole and ends with it; asking twice inside the process is
      refused like a stranger.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from stratalog.base.errors import (
    LogLockedError,
    StorageFullError,
    StorageIOError,
    TooManyFilesError,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

OpenMode = Literal["read", "update", "create"]
"""`read`: existing, read only. `update`: existing, read and write. `create`: new and empty,
replacing what was there, read and write."""


@dataclass(frozen=True, slots=True)
class FileStat:
    """What the disk knows of a file: size in bytes, modification time in ms since the epoch.

    `file_id` stays the same when a file is renamed or changed in place, and is another one when a
    file is replaced or copied.
    """

    size_bytes: int
    modified_ms: int
    file_id: int


class File(Protocol):
    """An open file. Positions and sizes are bytes."""

    @property
    def path(self) -> str: ...

    def pread_into(self, buffer: Buffer, position: int) -> int:
        """Fill `buffer` from `position`; the count read, short only at the end of the file."""
        ...

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`."""
        ...

    def size_bytes(self) -> int: ...

    def file_id(self) -> int:
        """As `FileStat.file_id`, of the file that is open, whatever its name stands for by now."""
        ...

    def truncate(self, size_bytes: int) -> None: ...

    def fsync(self) -> None: ...

    def close(self) -> None: ...


class FileSystem(Protocol):
    """Names and files."""

    def open(self, path: str, mode: OpenMode) -> File: ...

    def list_directory(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        ...

    def stat(self, path: str) -> FileStat: ...

    def exists(self, path: str) -> bool:
        """Whether it is there. A disk that does not answer raises: much is decided by what is not
        there."""
        ...

    def is_directory(self, path: str) -> bool: ...

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents; one that is there already is fine."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def rename(self, old_path: str, new_path: str) -> None:
        """Of a file, or of a directory to a name that is free."""
        ...

    def unlink(self, path: str) -> None: ...

    def set_modified(self, path: str, modified_ms: int) -> None: ...

    def fsync_directory(self, path: str) -> None: ...

    def lock(self, path: str, *, exclusive: bool) -> Callable[[], None]:
        """Lock the file `path` for this process; what is answered lets go of it.

        An exclusive lock makes the file if it is missing. Raises `LogLockedError` if it is held.
        """
        ...


TOO_MANY_FILES = {
    errno.EMFILE: "close some files, or allow more: `ulimit -n`",
    errno.ENFILE: "close some files, or allow the machine more: `sysctl fs.file-max`",
}
"""What mends it, of the errors that no disk is to blame for."""


@contextmanager
def translated_errors(path: str) -> Iterator[None]:
    """Raise the operating system's errors about `path` as ours (I1, I4)."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        remedy = TOO_MANY_FILES.get(error.errno or 0)
        if remedy is not None:
            raise TooManyFilesError(f"{path}: {error.strerror}; {remedy}") from error
        kind = StorageFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageIOError
        raise kind(f"{path}: {error.strerror or error}") from error


class LocalFile:
    """A file of the local disk; reads and writes are positioned, so any thread may make them."""

    def __init__(self, path: str, descriptor: int):
        self._path = path
        self._descriptor = descriptor

    @property
    def path(self) -> str:
        return self._path

    def pread_into(self, buffer: Buffer, position: int) -> int:
        view = memoryview(buffer).cast("B")
        done = 0
        with translated_errors(self._path):
            while done < len(view):
                count = os.preadv(self._descriptor, [view[done:]], position + done)
                if count == 0:
                    break
                done += count
        return done

    def pwrite(self, data: Buffer, position: int) -> None:
        view = memoryview(data).cast("B")
        with translated_errors(self._path):
            while len(view) > 0:
                count = os.pwrite(self._descriptor, view, position)
                view = view[count:]
                position += count

    def size_bytes(self) -> int:
        with translated_errors(self._path):
            return os.fstat(self._descriptor).st_size

    def file_id(self) -> int:
        with translated_errors(self._path):
            return os.fstat(self._descriptor).st_ino

    def truncate(self, size_bytes: int) -> None:
        with translated_errors(self._path):
            os.ftruncate(self._descriptor, size_bytes)

    def fsync(self) -> None:
        with translated_errors(self._path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


_FLAGS = {
    "read": os.O_RDONLY,
    "update": os.O_RDWR,
    "create": os.O_RDWR | os.O_CREAT | os.O_TRUNC,
}


@dataclass(frozen=True, slots=True)
class LocalFileSystem:
    """The machine's own disk."""

    def open(self, path: str, mode: OpenMode) -> LocalFile:
        with translated_errors(path):
            # Opening a pipe that lies in the place of a file would wait for its other end.
            flags = _FLAGS[mode] | os.O_CLOEXEC | os.O_NONBLOCK
            return LocalFile(path, os.open(path, flags, 0o644))

    def list_directory(self, path: str) -> list[str]:
        with translated_errors(path):
            return sorted(os.listdir(path))

    def stat(self, path: str) -> FileStat:
        with translated_errors(path):
            found = os.stat(path)
            return FileStat(found.st_size, found.st_mtime_ns // 1_000_000, found.st_ino)

    def exists(self, path: str) -> bool:
        return self._mode(path) is not None

    def is_directory(self, path: str) -> bool:
        mode = self._mode(path)
        return mode is not None and stat.S_ISDIR(mode)

    def _mode(self, path: str) -> int | None:
        with translated_errors(path):
            try:
                return os.stat(path).st_mode
            except (FileNotFoundError, NotADirectoryError):
                return None

    def make_directory(self, path: str) -> None:
        with translated_errors(path):
            try:
                os.makedirs(path, exist_ok=True)
            except FileNotFoundError as error:  # in /proc, or while a parent is being removed
                raise StorageIOError(f"{path}: the directory cannot be made") from error

    def remove_directory(self, path: str) -> None:
        with translated_errors(path):
            os.rmdir(path)

    def rename(self, old_path: str, new_path: str) -> None:
        with translated_errors(old_path):
            os.replace(old_path, new_path)

    def unlink(self, path: str) -> None:
        with translated_errors(path):
            os.unlink(path)

    def set_modified(self, path: str, modified_ms: int) -> None:
        with translated_errors(path):
            os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def fsync_directory(self, path: str) -> None:
        with translated_errors(path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def lock(self, path: str, *, exclusive: bool) -> Callable[[], None]:
        real_path = os.path.realpath(path)
        with _LOCKS_LOCK:
            held = _LOCKS.get(real_path)
            if held is None:
                held = _Lock(_lock_descriptor(path, exclusive), exclusive)
                _LOCKS[real_path] = held
            elif exclusive or held.exclusive:
                raise LogLockedError(f"{path}: this process holds the lock already")
            held.holders += 1
        released = False

        def release() -> None:
            nonlocal released
            with _LOCKS_LOCK:
                if released:
                    return
                released = True
                held.holders -= 1
                if held.holders == 0:
                    del _LOCKS[real_path]
                    os.close(held.descriptor)

        return release


@dataclass(slots=True)
class _Lock:
    descriptor: int
    exclusive: bool
    holders: int = 0


_LOCKS: dict[str, _Lock] = {}
"""POSIX drops a process's lock when any descriptor of the file is closed, and never refuses the
process itself: so each lock file is opened once, and this table refuses."""
_LOCKS_LOCK = threading.Lock()


def _lock_descriptor(path: str, exclusive: bool) -> int:
    flags = os.O_RDWR | os.O_CREAT if exclusive else os.O_RDONLY
    with translated_errors(path):
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        fcntl.lockf(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise LogLockedError(f"{path}: held by another running process") from None
        raise StorageIOError(f"{path}: {error.strerror}") from error
    return descriptor


def make_durable_directory(filesystem: FileSystem, path: str) -> None:
    """Make a directory, with its parents, whose names are on the disk when this returns.

    One whose name cannot be synced for want of open files is taken away again: the next call would
    take it for durable.
    """
    path = os.path.abspath(path)
    missing: list[str] = []
    while not filesystem.exists(path) and path != os.path.dirname(path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        filesystem.make_directory(directory)
        try:
            filesystem.fsync_directory(os.path.dirname(directory))
        except TooManyFilesError:
            with suppress(StorageIOError):  # somebody else has put something there
                filesystem.remove_directory(directory)
            raise


def read_file(filesystem: FileSystem, path: str, limit_bytes: int) -> bytes:
    """The whole of a small file. Raises `StorageIOError` if it holds more than `limit_bytes`."""
    file = filesystem.open(path, "read")
    try:
        size_bytes = file.size_bytes()
        if size_bytes > limit_bytes:
            raise StorageIOError(f"{path}: {size_bytes} bytes, expected at most {limit_bytes}")
        buffer = bytearray(size_bytes)
        return bytes(buffer[: file.pread_into(buffer, 0)])
    finally:
        file.close()


def write_file_atomically(filesystem: FileSystem, path: str, content: bytes) -> None:
    """Replace a small file by `content`, durably (RCV-3): aside, fsync, rename, directory fsync."""
    aside = path + ".tmp"
    file = filesystem.open(aside, "create")
    try:
        file.pwrite(content, 0)
        file.fsync()
    finally:
        file.close()
    filesystem.rename(aside, path)
    filesystem.fsync_directory(os.path.dirname(path) or ".")
