"""A segment's `.log` file: read at positions, walked batch by batch.

The file stays open as long as somebody holds the `LogFile`, so a reader keeps reading a segment
that was renamed or unlinked meanwhile (LOG-12). How many bytes of it count is the caller's
business (`end` below): a writer may be adding to it.

Two ways to walk:
- `headers`: only headers are read when batches are large; for finding offsets and making indexes;
- `batches`: whole batches; for reading records and checking checksums.

Invariants
- I1  A walk yields whole batches only and stops without an error where the rest is not a whole
      one; `position + size` of the last one is where the whole batches end.
- I2  Errors name the file and the position in it.
- I3  Memory is bounded by the window or the largest single batch, whichever is larger, and a
      batch's length is held against `end` before anything is allocated for it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import File, FileSystem, OpenMode
from stratalog.base.limits import CHUNK_BYTES
from stratalog.record import layout
from stratalog.record.batch import Batch
from stratalog.record.batch import batches as batches_of
from stratalog.record.values import BatchHeader, parse_header

if TYPE_CHECKING:
    from typing_extensions import Buffer

HEADER_WINDOW_BYTES = 16 << 10
"""What a search for an offset reads at a time: an index interval and some batches beyond it."""


class PlacedHeader(NamedTuple):
    """A batch's header and where the batch starts in its file."""

    position: int
    header: BatchHeader

    @property
    def end(self) -> int:
        """Where the next batch starts."""
        return self.position + self.header.size_bytes


class LogFile:
    """An open `.log` file. Thread-safe: every read and write states its position."""

    def __init__(self, file: File):
        self._file = file
        # The last holder's leaving closes the descriptor; close() does it at once.
        self._finalizer = weakref.finalize(self, file.close)

    @classmethod
    def open(cls, filesystem: FileSystem, path: str, mode: OpenMode = "read") -> LogFile:
        """Raises `FileNotFoundError` or `StorageIOError`."""
        return cls(filesystem.open(path, mode))

    @property
    def path(self) -> str:
        """The path it was opened by; it may have been renamed since."""
        return self._file.path

    def size_bytes(self) -> int:
        return self._file.size_bytes()

    def file_id(self) -> int:
        """The identity of the file that is open (`base.filesystem.FileStat`)."""
        return self._file.file_id()

    def read(self, position: int, size_bytes: int) -> memoryview:
        """`size_bytes` from `position`, fewer at the file's end; the memory is the caller's."""
        buffer = bytearray(size_bytes)
        count = self._file.pread_into(buffer, position)
        return memoryview(buffer)[:count]

    def read_into(self, buffer: Buffer, position: int) -> int:
        """Fill `buffer` from `position`; the count read, short only at the file's end."""
        return self._file.pread_into(buffer, position)

    def write(self, data: Buffer, position: int) -> None:
        self._file.pwrite(data, position)

    def truncate(self, size_bytes: int) -> None:
        self._file.truncate(size_bytes)

    def fsync(self) -> None:
        self._file.fsync()

    def close(self) -> None:
        """Readers that still hold the file fail from now on."""
        self._finalizer()

    def headers(
        self, position: int, end: int, window_bytes: int = HEADER_WINDOW_BYTES
    ) -> Iterator[PlacedHeader]:
        """The batches between `position`, which must be a batch's start, and `end`.

        Raises `CorruptionError` for what cannot be a batch's header.
        """
        window, base = memoryview(b""), position
        while end - position >= layout.MIN_STEP_BYTES:
            needed = min(layout.HEADER_BYTES, end - position)
            if position + needed > base + len(window):
                window = self.read(position, min(window_bytes, end - position))
                base = position
                if len(window) < needed:
                    return
            try:
                header = parse_header(window[position - base :])
            except CorruptionError as error:
                if _is_cut_header(window[position - base :]):
                    return
                raise CorruptionError(error.reason, file=self.path, position=position) from None
            placed = PlacedHeader(position, header)
            if placed.end > end:
                return
            yield placed
            position = placed.end

    def batches(self, position: int, end: int, window_bytes: int = CHUNK_BYTES) -> Iterator[Batch]:
        """The batches between `position`, which must be a batch's start, and `end`.

        Their `position` is the one in the file. Raises `CorruptionError` for what cannot be a
        batch's header; checksums and records are not looked at.
        """
        while True:
            window = self.whole_batches(position, end, window_bytes)
            if len(window) == 0:
                return
            start = position
            try:
                for batch in batches_of(window):
                    yield Batch(batch.header, batch.data, start + batch.position)
                    position = start + batch.position + batch.header.size_bytes
            except CorruptionError as error:
                raise error.located(self.path, start) from None
            if position == start:
                return

    def whole_batches(self, position: int, end: int, window_bytes: int) -> memoryview:
        """A chunk of at most `window_bytes`, larger if the first batch needs it (LOG-9).

        It may end in a part of a batch (LOG-8). Empty if no whole batch lies before `end`. Raises
        `CorruptionError` if there is no batch at `position`.
        """
        first = next(self.headers(position, end, layout.HEADER_BYTES), None)
        if first is None:
            return memoryview(b"")
        size_bytes = max(window_bytes, 1)
        while size_bytes < first.header.size_bytes:
            size_bytes *= 2
        return self.read(position, min(size_bytes, end - position))


def _is_cut_header(rest: memoryview) -> bool:
    """Whether a file's last bytes are the beginning of a magic 2 header, cut off by a crash."""
    return len(rest) < layout.HEADER_BYTES and rest[layout.MAGIC] == 2
