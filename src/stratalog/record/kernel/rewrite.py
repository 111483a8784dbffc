"""The bytes of a cleaned chunk: untouched batches copied, the others given a new header.

A rewritten batch keeps base offset, last offset delta, leader epoch, producer fields, codec and
flags; it gets a new length, count, base and maximum timestamp and CRC (CMP-15). A header-only
batch loses its codec bits and its horizon (corpus, "behaviour", item 5).
"""

from __future__ import annotations

from typing import Any

from stratalog.record.kernel.arrays import COPY, DROP, EMPTY, REPLACE
from stratalog.record.kernel.compile import kernel
from stratalog.record.kernel.primitives import (
    copy_bytes,
    crc32c,
    store_16,
    store_32,
    store_64,
)

_HEADER_BYTES = 61
_LOG_OVERHEAD = 12
_EMPTY_FLAGS = 0x08 | 0x10 | 0x20
_KEPT_FLAGS = 0x07 | 0x08 | 0x10 | 0x20 | 0x40

# Columns of the table of batches that were written.
OUT_POSITION, OUT_SIZE, OUT_LAST_OFFSET, OUT_MAX_TIMESTAMP = 0, 1, 2, 3


@kernel
def assemble(
    raw: Any,
    packed: Any,
    table: Any,
    first_row: int,
    end_row: int,
    file_position: int,
    out: Any,
    written_batches: Any,
) -> Any:
    """Write the batches of rows [first_row, end_row) that stay to `out`.

    raw: uint8[] chunk; packed: uint8[] (records as they are stored, at packed_start:packed_end);
    out: uint8[] with room for them; written_batches: int64[n, 4], one row a batch written:
    position in the file (from `file_position`), size, last offset, max timestamp.
    Returns (bytes written, rows written).
    """
    at = 0
    rows = 0
    for row in range(first_row, end_row):
        batch = table[row]
        if batch.action == DROP:
            continue
        start = at
        max_timestamp = batch.max_timestamp
        if batch.action == COPY:
            copy_bytes(out, at, raw, batch.position, batch.size_bytes)
            at += batch.size_bytes
        elif batch.action == REPLACE:
            size = batch.packed_end - batch.packed_start
            copy_bytes(out, at, packed, batch.packed_start, size)
            at += size
        else:
            copy_bytes(out, at, raw, batch.position, _HEADER_BYTES)
            size = 0
            if batch.action == EMPTY:
                store_16(out, at + 21, batch.attributes & _EMPTY_FLAGS)
                store_64(out, at + 27, -1)
                store_32(out, at + 57, 0)
            else:
                size = batch.packed_end - batch.packed_start
                max_timestamp = batch.new_max_timestamp
                store_16(out, at + 21, batch.attributes & _KEPT_FLAGS)
                store_64(out, at + 27, batch.new_base_timestamp)
                store_64(out, at + 35, max_timestamp)
                store_32(out, at + 57, batch.kept_count)
                copy_bytes(out, at + _HEADER_BYTES, packed, batch.packed_start, size)
            at += _HEADER_BYTES + size
            store_32(out, start + 8, at - start - _LOG_OVERHEAD)
            store_32(out, start + 17, crc32c(out, start + 21, at))
        written_batches[rows, OUT_POSITION] = file_position + start
        written_batches[rows, OUT_SIZE] = at - start
        written_batches[rows, OUT_LAST_OFFSET] = batch.last_offset
        written_batches[rows, OUT_MAX_TIMESTAMP] = max_timestamp
        rows += 1
    return at, rows
