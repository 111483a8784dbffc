"""What the disk costs: a file system that takes the time of its calls, and the floor of a clean.

The floor is what no cleaner can do without: reading the log's bytes from the page cache once, and
writing and fsyncing as many bytes as stay, with nothing in between.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from stratalog.base.filesystem import File, LocalFileSystem, OpenMode

if TYPE_CHECKING:
    from typing_extensions import Buffer

_CHUNK_BYTES = 4 << 20


class TimedFileSystem:
    """The local disk; `spent` adds up seconds of `read`, `write` and `fsync` over all threads,
    `read_bytes` what was read.

    With `skips_fsync` nothing is made durable, to see what that would save.
    """

    def __init__(self, *, skips_fsync: bool = False):
        self._inner = LocalFileSystem()
        self._lock = threading.Lock()
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.read_bytes = 0
        self.skips_fsync = skips_fsync

    def open(self, path: str, mode: OpenMode) -> Any:
        return _TimedFile(self._inner.open(path, mode), self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def timed(self, what: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call, and count the seconds as `what`."""
        start = time.perf_counter()
        result = call(*arguments)
        seconds = time.perf_counter() - start
        with self._lock:
            self.spent[what] += seconds
            self.read_bytes += result if what == "read" else 0
        return result


class _TimedFile:
    def __init__(self, inner: File, clock: TimedFileSystem):
        self._inner = inner
        self._clock = clock

    def pread_into(self, buffer: Buffer, position: int) -> int:
        count: int = self._clock.timed("read", self._inner.pread_into, buffer, position)
        return count

    def pwrite(self, data: Buffer, position: int) -> None:
        self._clock.timed("write", self._inner.pwrite, data, position)

    def fsync(self) -> None:
        if not self._clock.skips_fsync:
            self._clock.timed("fsync", self._inner.fsync)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def seconds_to_read(paths: Sequence[str], threads: int) -> float:
    """Read all of the files, each thread with `preadv` into a buffer that it uses again."""
    descriptors = [os.open(path, os.O_RDONLY) for path in paths]
    places = [
        (descriptor, position)
        for descriptor in descriptors
        for position in range(0, os.fstat(descriptor).st_size, _CHUNK_BYTES)
    ]
    places.reverse()
    buffers = [bytearray(_CHUNK_BYTES) for _ in range(threads)]

    def run(buffer: bytearray) -> None:
        while True:
            try:
                descriptor, position = places.pop()
            except IndexError:
                return
            os.preadv(descriptor, [buffer], position)

    try:
        return _seconds(run, buffers)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def seconds_to_write(directory: str, sizes: Sequence[int], threads: int) -> float:
    """Write new files of these sizes, fsync each; each thread works on a file of its own."""
    content = os.urandom(_CHUNK_BYTES)
    waiting = [(os.path.join(directory, f"floor-{n}"), size) for n, size in enumerate(sizes)]
    paths = [path for path, _ in waiting]
    waiting.reverse()
    view = memoryview(content)

    def run(_: object) -> None:
        while True:
            try:
                path, size = waiting.pop()
            except IndexError:
                return
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                position = 0
                while position < size:
                    count = min(_CHUNK_BYTES, size - position)
                    position += os.pwrite(descriptor, view[:count], position)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    try:
        return _seconds(run, range(threads))
    finally:
        for path in paths:
            os.unlink(path)


def _seconds(run: Callable[[Any], None], arguments: Sequence[Any]) -> float:
    with ThreadPoolExecutor(len(arguments)) as pool:
        start = time.perf_counter()
        for result in [pool.submit(run, argument) for argument in arguments]:
            result.result()
        return time.perf_counter() - start
