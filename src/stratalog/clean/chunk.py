"""A segment file, chunk by chunk: read, cut at batch bounds, checked, decompressed in pieces.

    ChunkReader.take() -> Chunk           whole batches, at most chunk_bytes unless one is larger
    scan(chunk, ...)   -> table           a BATCH row for each batch, CRC and order checked
    pieces(...)        -> row ranges      with their payloads decompressed, as many as fit

Invariants
- C1  Whoever takes a chunk owns its buffers until it takes the next one into the same `Scratch`.
- C2  Several threads may take chunks of one reader; each byte of the file is in exactly one chunk.
- C3  Damage raises `CorruptionError` with the file's path and the position in it (CMP-16).
- C4  One thread's memory is the chunk, its table, its columns and one piece of decompressed bytes;
      a piece exceeds `PLAIN_BYTES` only for a single batch, and never its stated limit (LOG-13).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import File, FileSystem
from stratalog.clean.job import CleanSpec, SourceSegment
from stratalog.record import layout
from stratalog.record.codec.bulk import decompress_many
from stratalog.record.kernel import arrays, scan
from stratalog.record.kernel.compile import chunk_bytes
from stratalog.segment.names import MAX_OFFSET

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
Table = npt.NDArray[Any]

PLAIN_BYTES = 8 << 20
"""Decompressed bytes that are worked on at a time."""

NO_CRC = 1 << 62
"""`crc_from` that excuses every batch: they were all checked earlier in this round."""


class Scratch:
    """The buffers of one thread, by name; each grows to what was asked of it and is used again."""

    def __init__(self) -> None:
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    def take(self, name: str, count: int, dtype: Any = np.uint8, columns: int = 1) -> Any:
        """At least `count` rows of `dtype`; (n,) or (n, columns). Contents are undefined."""
        found = self._arrays.get(name)
        if found is None or len(found) < count:
            rows = max(count, 1024)
            shape: Any = rows if columns == 1 else (rows, columns)
            found = self._arrays[name] = np.empty(shape, dtype)
        return found

    @property
    def size_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(array.nbytes for array in self._arrays.values())


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Whole batches of one file: `raw[:size_bytes]` lies at `position` of the file.

    `ordinal` counts the chunks of the file; `previous_last_offset` is that of the batch before,
    `next_offset` where the next segment begins: no offset here may reach it.
    """

    path: str
    ordinal: int
    position: int
    size_bytes: int
    rows: int
    previous_last_offset: int
    raw: Bytes
    next_offset: int = MAX_OFFSET


class ChunkReader:
    """Hands out the chunks of one log file, in file order, to any number of threads.

    The file is open from the first chunk to the last. `size_bytes` is where reading ends, a batch's
    end: a file that grows meanwhile is not followed. Stateful; its lock guards the place reached.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        path: str,
        base_offset: int,
        size_bytes: int,
        spec: CleanSpec,
        *,
        next_offset: int = MAX_OFFSET,
        start: int = 0,
    ):
        """`size_bytes`: up to which position. `next_offset`: where the next segment begins. From
        `start` on, a position at which a batch begins, of `base_offset` or above; chunks are then
        numbered from there, in order all the same.
        """
        self._filesystem = filesystem
        self._path = path
        self._size_bytes = size_bytes
        self._next_offset = next_offset
        self._spec = spec
        self._lock = threading.Lock()
        self._file: File | None = None
        self._ordinal = start  # a chunk has bytes: no number comes twice
        self._position = start
        self._last_offset = base_offset - 1

    @classmethod
    def of(
        cls, filesystem: FileSystem, directory: str, segment: SourceSegment, spec: CleanSpec
    ) -> ChunkReader:
        """A reader of a segment's log file."""
        return cls(
            filesystem,
            segment.file_path(directory),
            segment.base_offset,
            segment.end,
            spec,
            next_offset=segment.next_offset,
            start=segment.start,
        )

    def close(self) -> None:
        """Close the file, if chunks are left; for whoever gives up half-way."""
        with self._lock:
            self._position = self._size_bytes
            self._close_locked()

    def take(self, scratch: Scratch) -> Chunk | None:
        """The next chunk, in `scratch`'s buffer "raw"; None at the end. Raises CorruptionError."""
        with self._lock:
            if self._position >= self._size_bytes:
                self._close_locked()
                return None
            raw, rows, size, last_offset = self._whole_batches_locked(scratch)
            chunk = Chunk(
                self._path,
                self._ordinal,
                self._position,
                size,
                rows,
                self._last_offset,
                raw,
                self._next_offset,
            )
            self._ordinal += 1
            self._position += size
            self._last_offset = last_offset
            return chunk

    def _whole_batches_locked(self, scratch: Scratch) -> tuple[Bytes, int, int, int]:
        if self._file is None:
            self._file = self._filesystem.open(self._path, "read")
        left = self._size_bytes - self._position
        read_into = self._file.pread_into
        return whole_batches(read_into, self._path, self._position, left, self._spec, scratch)

    def _close_locked(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def whole_batches(
    read_into: Callable[[Bytes, int], int],
    path: str,
    position: int,
    left: int,
    spec: CleanSpec,
    scratch: Scratch,
) -> tuple[Bytes, int, int, int]:
    """Whole batches from `position`, of the `left` bytes there: a chunk, or one that is larger.

    Answers `scratch`'s buffer "raw", the count of batches, their bytes and the last one's last
    offset. Raises `CorruptionError`.
    """
    wanted = min(chunk_bytes(spec.chunk_bytes), left)
    while True:
        raw = cast("Bytes", scratch.take("raw", wanted))
        filled = read_into(raw[:wanted], position)
        if filled < wanted:
            reason = f"file ends {wanted - filled} bytes early"
            raise CorruptionError(reason, file=path, position=position)
        rows, size, last_offset, following = scan.whole_batches(raw, filled, spec.max_batch_bytes)
        if rows > 0:
            return raw, int(rows), int(size), int(last_offset)
        if following < 0:
            raise CorruptionError(arrays.DAMAGE[arrays.BAD_LENGTH], file=path, position=position)
        if wanted == left:
            raise CorruptionError("last batch is cut off", file=path, position=position)
        wanted = min(left, int(following) or 2 * wanted)


def scan_chunk(chunk: Chunk, spec: CleanSpec, crc_from: int, scratch: Scratch) -> Table:
    """The chunk's batches as BATCH rows. `crc_from`: offsets below it have been checked before.

    Raises `CorruptionError` for the first batch that is not whole, in order, and true to its CRC.
    """
    table = scratch.take("table", chunk.rows, arrays.BATCH)[: chunk.rows]
    rows, _, error, position = scan.scan_batches(
        chunk.raw,
        chunk.size_bytes,
        chunk.previous_last_offset,
        crc_from,
        spec.max_batch_bytes,
        table,
    )
    if error != arrays.OK:
        raise damage(chunk, int(error), int(position))
    if rows != chunk.rows:
        raise damage(chunk, arrays.BAD_LENGTH, chunk.size_bytes)
    if rows > 0 and table["last_offset"][-1] >= chunk.next_offset:
        row = int(np.searchsorted(table["last_offset"], chunk.next_offset))
        raise damage(chunk, arrays.BAD_SEGMENT, int(table["position"][row]))
    return cast("Table", table)


def damage(chunk: Chunk, error: int, position: int) -> CorruptionError:
    """The error a kernel reported at `position` of the chunk, placed in its file."""
    return CorruptionError(
        arrays.DAMAGE[error], file=chunk.path, position=chunk.position + position
    )


def pieces(
    chunk: Chunk, table: Table, wanted: npt.NDArray[np.bool_], spec: CleanSpec, scratch: Scratch
) -> Iterator[tuple[int, int, Bytes]]:
    """Row ranges [a, b) that cover `table`, each with its decompressed payloads at hand.

    Where `wanted` (bool[rows]) is set and a codec is named, the payload is decompressed and the
    row's payload columns point into the yielded buffer, valid until the next piece.
    """
    packed = wanted & ((table["attributes"] & layout.CODEC_MASK) != 0)
    packed &= (table["magic"] == layout.MAGIC_V2) & (table["count"] > 0)
    rows = np.flatnonzero(packed)
    plain: Bytes = scratch.take("plain", PLAIN_BYTES if len(rows) else 1)
    if len(rows) == 0:
        yield 0, len(table), plain
    codecs = table["attributes"][rows] & layout.CODEC_MASK
    starts, ends = table["payload_start"][rows], table["payload_end"][rows]
    first_row = done = 0
    while done < len(rows):
        try:
            filled, plain_ends = decompress_many(
                codecs[done:],
                chunk.raw,
                starts[done:],
                ends[done:],
                plain,
                spec.max_decompressed_bytes,
            )
        except CorruptionError as error:
            position = chunk.position + int(table["position"][rows[done]])
            raise CorruptionError(error.reason, file=chunk.path, position=position) from error
        _point_at_plain(chunk, table, rows[done : done + len(plain_ends)], plain_ends)
        done += len(plain_ends)
        end_row = int(rows[done]) if done < len(rows) else len(table)
        yield first_row, end_row, filled
        first_row = end_row


def _point_at_plain(chunk: Chunk, table: Table, rows: Int64s, plain_ends: Int64s) -> None:
    """Let the payload columns of `rows` say where their decompressed bytes lie, end to end."""
    plain_starts = np.concatenate([[0], plain_ends[:-1]])
    too_many = table["count"][rows] > (plain_ends - plain_starts) // scan.SMALLEST_RECORD_BYTES
    if too_many.any():
        row = rows[int(np.argmax(too_many))]
        raise damage(chunk, arrays.BAD_COUNT, int(table["position"][row]))
    table["payload_start"][rows] = plain_starts
    table["payload_end"][rows] = plain_ends
    table["payload_is_plain"][rows] = 1
