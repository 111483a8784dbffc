"""Files that are opened when they are used: many partitions where few files may be open.

The log keeps a file open for each segment and three for each active one, as Kafka does, and 10,000
partitions of three segments need 50,000. Where the machine forbids so many and the benchmark may
not change that, this stands between: at most `limit` files are open at a time, the others are
opened again by their names. A name that is about to go is opened first and stays so, so that what a
reader has keeps its content. Nothing here is part of the product.
"""

from __future__ import annotations

import resource
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from stratalog.base.filesystem import File, FileStat, FileSystem, LocalFileSystem, OpenMode

if TYPE_CHECKING:
    from typing_extensions import Buffer

SPARE = 200
"""Descriptors that are left for everything else."""


def file_system_for(files: int) -> tuple[FileSystem, str]:
    """The local disk, for so many open files, and a line for the report."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= files + SPARE:
        if soft != resource.RLIM_INFINITY and soft < files + SPARE:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files + SPARE, hard))
        return LocalFileSystem(), f"open files: about {files:,}"
    line = f"open files: {files:,} are wanted and {hard:,} allowed here: opened when they are used"
    return SparingFileSystem(LocalFileSystem(), hard - SPARE), line


class SparingFile:
    """A file that may be closed while it is not used."""

    def __init__(self, owner: SparingFileSystem, path: str, mode: OpenMode):
        self.path = path
        self.mode = mode
        self.open: File | None = None
        self.is_pinned = False
        self._owner = owner

    def pread_into(self, buffer: Buffer, position: int) -> int:
        with self._owner.lock_:
            return self._owner.opened(self).pread_into(buffer, position)

    def pwrite(self, data: Buffer, position: int) -> None:
        with self._owner.lock_:
            self._owner.opened(self).pwrite(data, position)

    def size_bytes(self) -> int:
        with self._owner.lock_:
            return self._owner.opened(self).size_bytes()

    def file_id(self) -> int:
        with self._owner.lock_:
            return self._owner.opened(self).file_id()

    def truncate(self, size_bytes: int) -> None:
        with self._owner.lock_:
            self._owner.opened(self).truncate(size_bytes)

    def fsync(self) -> None:
        with self._owner.lock_:
            self._owner.opened(self).fsync()

    def close(self) -> None:
        with self._owner.lock_:
            self._owner.closed(self)


class SparingFileSystem:
    """`inner` with at most about `limit` open files. `lock_` guards which are."""

    def __init__(self, inner: FileSystem, limit: int):
        self.lock_ = threading.RLock()
        self._inner = inner
        self._limit = limit
        self._used: OrderedDict[SparingFile, None] = OrderedDict()
        self._named: dict[str, list[SparingFile]] = {}

    def opened(self, file: SparingFile) -> File:
        """The file itself, open."""
        if file.open is None:
            file.open = self._inner.open(file.path, file.mode)
            file.mode = "update" if file.mode == "create" else file.mode
        if not file.is_pinned:
            self._used[file] = None
            self._used.move_to_end(file)
            while len(self._used) > self._limit:
                oldest, _ = self._used.popitem(last=False)
                if oldest.open is not None:
                    oldest.open.close()
                    oldest.open = None
        return file.open

    def closed(self, file: SparingFile) -> None:
        """It is not used any more."""
        self._used.pop(file, None)
        self._named.get(file.path, [file]).remove(file)
        if not self._named.get(file.path):
            self._named.pop(file.path, None)
        if file.open is not None:
            file.open.close()

    def _pin(self, path: str) -> None:
        for file in self._named.get(path, ()):
            self.opened(file)
            self._used.pop(file, None)
            file.is_pinned = True

    def open(self, path: str, mode: OpenMode) -> File:
        with self.lock_:
            file = SparingFile(self, path, mode)
            self._named.setdefault(path, []).append(file)
            try:
                self.opened(file)
            except BaseException:
                self.closed(file)
                raise
            return file

    def rename(self, old_path: str, new_path: str) -> None:
        with self.lock_:
            self._pin(old_path)
            self._pin(new_path)
            self._inner.rename(old_path, new_path)

    def unlink(self, path: str) -> None:
        with self.lock_:
            self._pin(path)
            self._inner.unlink(path)

    def list_directory(self, path: str) -> list[str]:
        return self._inner.list_directory(path)

    def stat(self, path: str) -> FileStat:
        return self._inner.stat(path)

    def exists(self, path: str) -> bool:
        return self._inner.exists(path)

    def is_directory(self, path: str) -> bool:
        return self._inner.is_directory(path)

    def make_directory(self, path: str) -> None:
        self._inner.make_directory(path)

    def remove_directory(self, path: str) -> None:
        self._inner.remove_directory(path)

    def set_modified(self, path: str, modified_ms: int) -> None:
        self._inner.set_modified(path, modified_ms)

    def fsync_directory(self, path: str) -> None:
        self._inner.fsync_directory(path)

    def lock(self, path: str, *, exclusive: bool) -> Callable[[], None]:
        return self._inner.lock(path, exclusive=exclusive)
