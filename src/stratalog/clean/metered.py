"""The disk as a round of cleaning sees it: every read and write is counted, and waits its turn.

An engine reads and writes through `FileSystem`, so this is where the throttle of all cleaner
threads (CLN-1) and the question whether to go on (CLN-4) belong: both hold for every engine that
runs in this process, a chunk at a time.

Invariants
- I1  Before each read and write of a file `check` is called; what it raises reaches the engine,
      which stops all its threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from stratalog.base.filesystem import File, FileStat, FileSystem, OpenMode
from stratalog.base.throttle import Throttle

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Meter:
    """What a round has read and written, in bytes; `_lock` guards both."""

    def __init__(self, throttle: Throttle, check: Callable[[], None] = lambda: None):
        self.read_bytes = 0
        self.written_bytes = 0
        self._throttle = throttle
        self._check = check
        self._lock = threading.Lock()

    def read(self, size_bytes: int) -> None:
        self._throttle.draw(size_bytes, self._check)
        with self._lock:
            self.read_bytes += size_bytes

    def wrote(self, size_bytes: int) -> None:
        self._throttle.draw(size_bytes, self._check)
        with self._lock:
            self.written_bytes += size_bytes


class MeteredFile:
    """A file whose reads and writes are metered."""

    def __init__(self, file: File, meter: Meter):
        self._file = file
        self._meter = meter

    @property
    def path(self) -> str:
        return self._file.path

    def pread_into(self, buffer: Buffer, position: int) -> int:
        self._meter.read(memoryview(buffer).nbytes)
        return self._file.pread_into(buffer, position)

    def pwrite(self, data: Buffer, position: int) -> None:
        self._meter.wrote(memoryview(data).nbytes)
        self._file.pwrite(data, position)

    def size_bytes(self) -> int:
        return self._file.size_bytes()

    def file_id(self) -> int:
        return self._file.file_id()

    def truncate(self, size_bytes: int) -> None:
        self._file.truncate(size_bytes)

    def fsync(self) -> None:
        self._file.fsync()

    def close(self) -> None:
        self._file.close()


class MeteredFileSystem:
    """`filesystem`, with metered files."""

    def __init__(self, filesystem: FileSystem, meter: Meter):
        self._filesystem = filesystem
        self._meter = meter

    def open(self, path: str, mode: OpenMode) -> File:
        return MeteredFile(self._filesystem.open(path, mode), self._meter)

    def list_directory(self, path: str) -> list[str]:
        return self._filesystem.list_directory(path)

    def stat(self, path: str) -> FileStat:
        return self._filesystem.stat(path)

    def exists(self, path: str) -> bool:
        return self._filesystem.exists(path)

    def is_directory(self, path: str) -> bool:
        return self._filesystem.is_directory(path)

    def make_directory(self, path: str) -> None:
        self._filesystem.make_directory(path)

    def remove_directory(self, path: str) -> None:
        self._filesystem.remove_directory(path)

    def rename(self, old_path: str, new_path: str) -> None:
        self._filesystem.rename(old_path, new_path)

    def unlink(self, path: str) -> None:
        self._filesystem.unlink(path)

    def set_modified(self, path: str, modified_ms: int) -> None:
        self._filesystem.set_modified(path, modified_ms)

    def fsync_directory(self, path: str) -> None:
        self._filesystem.fsync_directory(path)

    def lock(self, path: str, *, exclusive: bool) -> Callable[[], None]:
        return self._filesystem.lock(path, exclusive=exclusive)
