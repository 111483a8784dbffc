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

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stratalog.base.filesystem import FileSystem
from stratalog.clean.chunk import Bytes, Chunk, ChunkReader, Int64s, Scratch, Table, damage, pieces
from stratalog.clean.index import hash_keys, header_name, legacy_batch, legacy_version
from stratalog.clean.job import CleanSpec, Order
from stratalog.clean.offset_map import Hashes, KeyRows
from stratalog.record import layout
from stratalog.record.kernel.arrays import OK
from stratalog.record.kernel.columns import BY_HEADER, BY_TIMESTAMP, NO_VERSIONS, read_records
from stratalog.record.values import Record
from stratalog.segment.names import FileKind
from stratalog.segment.segment import segment_path

Secret = tuple[np.uint64, np.uint64]

_VERSION_BY = {
    Order.OFFSET: NO_VERSIONS,
    Order.TIMESTAMP: BY_TIMESTAMP,
    Order.HEADER: BY_HEADER,
}


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Records of magic 0 to 2: int64[n] each, hashes uint64[n, 2]. A size of -1 is null.

    `rows` is the place of each record's batch in the table. Hashes that were not asked for, and
    those of nulls, are undefined; so are `versions` (CMP-17) where the order is by offset.
    """

    offsets: Int64s
    timestamps: Int64s
    key_sizes: Int64s
    value_sizes: Int64s
    rows: Int64s
    versions: Int64s
    keys: Hashes
    values: Hashes

    def key_rows(self, chosen: npt.NDArray[np.bool_], order: Order) -> KeyRows:
        """The chosen records, as a map from key to newest record takes them."""
        return KeyRows(
            np.ascontiguousarray(self.keys[chosen]),
            np.ascontiguousarray(self.offsets[chosen]),
            None if order is Order.OFFSET else np.ascontiguousarray(self.versions[chosen]),
        )


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
        bounds = first_row, end_row
        columns = _read(chunk, plain, table, wanted, bounds, spec, secret, scratch, hashing)
        if len(columns.offsets):
            yield columns
        for row in range(first_row, end_row):
            if wanted[row] and table[row]["magic"] < layout.MAGIC_V2:
                batch = legacy_batch(chunk, table[row])
                table[row]["max_timestamp"] = batch.header.max_timestamp
                records = list(batch.records(spec.max_decompressed_bytes))
                yield _legacy_columns(records, row, spec.order, secret)


def _read(
    chunk: Chunk,
    plain: Bytes,
    table: Table,
    wanted: npt.NDArray[np.bool_],
    bounds: tuple[int, int],
    spec: CleanSpec,
    secret: Secret,
    scratch: Scratch,
    hashing: int,
) -> Columns:
    first_row, end_row = bounds
    is_read = wanted & (table["magic"] == layout.MAGIC_V2)
    count = int(table["count"][first_row:end_row][is_read[first_row:end_row]].sum())
    numbers = scratch.take("record_numbers", count, np.int64, columns=6)
    hashes = scratch.take("record_hashes", count, np.uint64, columns=4)
    written, error, position = read_records(
        *(chunk.raw, plain, table, is_read, first_row, end_row, hashing, *secret),
        *(_VERSION_BY[spec.order], header_name(spec), numbers, hashes),
    )
    if error != OK:
        raise damage(chunk, int(error), int(position))
    offsets, timestamps, key_sizes, value_sizes, rows, versions = numbers[:written].T
    return Columns(
        offsets,
        timestamps,
        key_sizes,
        value_sizes,
        rows,
        versions,
        hashes[:written, :2],
        hashes[:written, 2:],
    )


def _legacy_columns(records: list[Record], row: int, order: Order, secret: Secret) -> Columns:
    def sizes(fields: list[bytes | None]) -> Int64s:
        return np.array([-1 if field is None else len(field) for field in fields], np.int64)

    keys, values = [record.key for record in records], [record.value for record in records]
    return Columns(
        np.array([record.offset for record in records], np.int64),
        np.array([record.timestamp for record in records], np.int64),
        sizes(keys),
        sizes(values),
        np.full(len(records), row, np.int64),
        np.array([legacy_version(record, order) for record in records], np.int64),
        hash_keys([key or b"" for key in keys], secret),
        hash_keys([value or b"" for value in values], secret),
    )
