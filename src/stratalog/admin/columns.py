"""Records as columns: sizes, times and hashes of every record of a chunk, structure checked whole.

Cleaning looks at keys only; who counts, checks or compares looks at everything: values and headers
must be whole, and two values are compared by their hash. One kernel does it for magic 2; magic 0
and 1 are decoded record by record.

    chunk_reader     a segment's chunks
    record_columns   a chunk's batches -> Columns, piece by piece

Invariants
- I1  Every byte of a record that reaches the columns belongs to exactly one of its fields.
- I2  Hashes are comparable under one secret only; equal bytes have equal hashes, whatever the
      batch, the codec or the magic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stratalog.base.filesystem import FileSystem
from stratalog.clean.chunk import Bytes, Chunk, ChunkReader, Int64s, Scratch, Table, damage, pieces
from stratalog.clean.index import hash_keys, legacy_batch
from stratalog.clean.job import CleanSpec
from stratalog.clean.offset_map import Hashes
from stratalog.record import layout
from stratalog.record.kernel import arrays
from stratalog.record.kernel.arrays import BAD_DELTA, BAD_KEY, BAD_RECORD, BAD_VALUE, OK
from stratalog.record.kernel.compile import CACHE_DIRECTORY, JIT, kernel
from stratalog.record.kernel.primitives import BAD_VARINT, read_varint, siphash128
from stratalog.record.values import Record
from stratalog.segment.names import FileKind
from stratalog.segment.segment import segment_path

SIZES, KEYS, VALUES = 0, 1, 2
"""How much is hashed: nothing, keys, or keys and values."""

_SMALLEST_RECORD_BYTES = 7
_TIMESTAMP_TYPE_MASK = 0x08

Secret = tuple[np.uint64, np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Records of magic 0 to 2: int64[n] each, hashes uint64[n, 2]. A size of -1 is null.

    `rows` is the place of each record's batch in the table. Hashes that were not asked for, and
    those of nulls, are undefined.
    """

    offsets: Int64s
    timestamps: Int64s
    key_sizes: Int64s
    value_sizes: Int64s
    rows: Int64s
    keys: Hashes
    values: Hashes


@contextmanager
def chunk_reader(
    filesystem: FileSystem, directory: str, base_offset: int, size_bytes: int, spec: CleanSpec
) -> Iterator[ChunkReader]:
    """The chunks of a segment's log."""
    path = segment_path(directory, base_offset, FileKind.LOG)
    reader = ChunkReader(filesystem, path, base_offset, size_bytes, spec)
    try:
        yield reader
    finally:
        reader.close()


def record_columns(
    chunk: Chunk,
    table: Table,
    wanted: npt.NDArray[np.bool_],
    spec: CleanSpec,
    secret: Secret,
    scratch: Scratch,
    *,
    hashing: int,
) -> Iterator[Columns]:
    """The records of the batches in `table` (scanned from `chunk`) where `wanted` is set.

    What is yielded is valid until the next one is asked for. Raises `CorruptionError`, naming file
    and position of the batch.
    """
    for first_row, end_row, plain in pieces(chunk, table, wanted, spec, scratch):
        columns = _read(chunk, plain, table, wanted, (first_row, end_row), secret, scratch, hashing)
        if len(columns.offsets):
            yield columns
        for row in range(first_row, end_row):
            if wanted[row] and table[row]["magic"] < layout.MAGIC_V2:
                batch = legacy_batch(chunk, table[row])
                table[row]["max_timestamp"] = batch.header.max_timestamp
                records = list(batch.records(spec.max_decompressed_bytes))
                yield _legacy_columns(records, row, secret)


def _read(
    chunk: Chunk,
    plain: Bytes,
    table: Table,
    wanted: npt.NDArray[np.bool_],
    bounds: tuple[int, int],
    secret: Secret,
    scratch: Scratch,
    hashing: int,
) -> Columns:
    first_row, end_row = bounds
    is_read = wanted & (table["magic"] == layout.MAGIC_V2)
    count = int(table["count"][first_row:end_row][is_read[first_row:end_row]].sum())
    numbers = scratch.take("record_numbers", count, np.int64, columns=5)
    hashes = scratch.take("record_hashes", count, np.uint64, columns=4)
    written, error, position = read_records(
        chunk.raw, plain, table, is_read, first_row, end_row, hashing, *secret, numbers, hashes
    )
    if error != OK:
        raise damage(chunk, int(error), int(position))
    offsets, timestamps, key_sizes, value_sizes, rows = numbers[:written].T
    return Columns(
        offsets,
        timestamps,
        key_sizes,
        value_sizes,
        rows,
        hashes[:written, :2],
        hashes[:written, 2:],
    )


def _legacy_columns(records: list[Record], row: int, secret: Secret) -> Columns:
    def sizes(fields: list[bytes | None]) -> Int64s:
        return np.array([-1 if field is None else len(field) for field in fields], np.int64)

    keys, values = [record.key for record in records], [record.value for record in records]
    return Columns(
        np.array([record.offset for record in records], np.int64),
        np.array([record.timestamp for record in records], np.int64),
        sizes(keys),
        sizes(values),
        np.full(len(records), row, np.int64),
        hash_keys([key or b"" for key in keys], secret),
        hash_keys([value or b"" for value in values], secret),
    )


@kernel
def read_records(
    raw: Any,
    plain: Any,
    table: Any,
    is_read: Any,
    first_row: int,
    end_row: int,
    hashing: int,
    key0: Any,
    key1: Any,
    numbers: Any,
    hashes: Any,
) -> Any:
    """Walk the records of rows [first_row, end_row) of `table` where `is_read` (bool[]) is set.

    raw, plain: uint8[]; numbers: int64[n, 5] (offset, timestamp, key size, value size, row);
    hashes: uint64[n, 4] (key, value). Returns (records, error, position of the batch in error).
    """
    written = 0
    for row in range(first_row, end_row):
        if not is_read[row]:
            continue
        batch = table[row]
        buffer = plain if batch.payload_is_plain == 1 else raw
        at = batch.payload_start
        payload_end = batch.payload_end
        last_delta = batch.last_offset - batch.base_offset
        previous_delta = np.int64(-1)
        for _ in range(batch.count):
            length, at = read_varint(buffer, at, payload_end)
            if at == BAD_VARINT or length < _SMALLEST_RECORD_BYTES - 1 or length > payload_end - at:
                return written, BAD_RECORD, batch.position
            end = at + length
            timestamp_delta, at = read_varint(buffer, at + 1, end)  # after the attributes
            if at == BAD_VARINT:
                return written, BAD_RECORD, batch.position
            delta, at = read_varint(buffer, at, end)
            if at == BAD_VARINT or delta <= previous_delta or delta > last_delta:
                return written, BAD_DELTA, batch.position
            previous_delta = delta
            key_size, at = read_varint(buffer, at, end)
            if at == BAD_VARINT or key_size < -1 or key_size > end - at:
                return written, BAD_KEY, batch.position
            if key_size >= 0:
                if hashing >= KEYS:
                    high, low = siphash128(buffer, at, key_size, key0, key1)
                    hashes[written, 0] = high
                    hashes[written, 1] = low
                at += key_size
            value_size, at = read_varint(buffer, at, end)
            if at == BAD_VARINT or value_size < -1 or value_size > end - at:
                return written, BAD_VALUE, batch.position
            if value_size >= 0:
                if hashing >= VALUES:
                    high, low = siphash128(buffer, at, value_size, key0, key1)
                    hashes[written, 2] = high
                    hashes[written, 3] = low
                at += value_size
            headers, at = read_varint(buffer, at, end)
            if at == BAD_VARINT or headers < 0 or headers > (end - at) // 2:
                return written, BAD_RECORD, batch.position
            for _ in range(headers):
                size, at = read_varint(buffer, at, end)
                if at == BAD_VARINT or size < 0 or size > end - at:
                    return written, BAD_RECORD, batch.position
                size, at = read_varint(buffer, at + size, end)
                if at == BAD_VARINT or size < -1 or size > end - at:
                    return written, BAD_RECORD, batch.position
                if size > 0:
                    at += size
            if at != end:
                return written, BAD_RECORD, batch.position
            numbers[written, 0] = batch.base_offset + delta
            if (batch.attributes & _TIMESTAMP_TYPE_MASK) != 0:
                numbers[written, 1] = batch.max_timestamp
            else:
                numbers[written, 1] = batch.base_timestamp + timestamp_delta
            numbers[written, 2] = key_size
            numbers[written, 3] = value_size
            numbers[written, 4] = row
            written += 1
        if batch.count > 0 and at != payload_end:
            return written, BAD_RECORD, batch.position
    return written, OK, np.int64(-1)


def ensure_warm(announce: Callable[[str], None]) -> bool:
    """Compile the kernel of this file, once a machine; whether this call did.

    `announce` gets one line before that. Call it after `record.kernel.warmup.ensure_warm`.
    """
    digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    marker = CACHE_DIRECTORY / f"columns-{digest}"
    if not JIT or marker.exists():
        return False
    announce("compiling one more kernel, once on this machine (a few seconds) ...")
    raw = np.zeros(1, np.uint8)
    table, numbers = np.zeros(1, arrays.BATCH), np.zeros((1, 5), np.int64)
    word = np.uint64(1)
    read_records(
        raw,
        raw,
        table,
        np.zeros(1, np.bool_),
        0,
        1,
        KEYS,
        word,
        word,
        numbers,
        np.zeros((1, 4), np.uint64),
    )
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    return True
