"""Reading a chunk: batch headers into a table of batches, records into keys and offsets.

`scan_batches` walks the headers and checks everything that a header can tell: bounds, magic,
CRC, order. `index_records` walks the records of the batches that `scan_batches` found (after
their payloads were decompressed where a codec is involved) and writes one row for each record
with a key: its 128-bit hash and its offset.

Invariants
- Never reads outside the chunk, the payloads or the table (K2), whatever the lengths say.
- Every batch that enters the table has passed its CRC, unless `crc_from` excused it.
- Offsets increase strictly over batches and over the records inside one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stratalog.record.kernel.arrays import (
    BAD_COUNT,
    BAD_CRC,
    BAD_DELTA,
    BAD_KEY,
    BAD_LENGTH,
    BAD_MAGIC,
    BAD_ORDER,
    BAD_RECORD,
    EMPTY_CONTROL,
    NOT_CONTROL,
    OK,
)
from stratalog.record.kernel.compile import inlined, kernel
from stratalog.record.kernel.primitives import (
    BAD_VARINT,
    crc32c,
    load_i16,
    load_i32,
    load_i64,
    load_u32,
    read_varint,
    siphash128,
)

SMALLEST_RECORD_BYTES = 7
"""A v2 record without key, value and headers: seven one-byte fields."""

_HEADER_BYTES = 61
_LOG_OVERHEAD = 12
_SMALLEST_BATCH_BYTES = 17
"""Up to the magic, which says what follows."""
_MAX_OFFSET = (1 << 63) - 1
_CRC_AT = 17
_CRC_FROM = 21
_CODEC_MASK = 7
_TRANSACTIONAL_MASK = 0x10
_CONTROL_MASK = 0x20


def _cost_of_scan(_raw: Any, filled: int, _last: int, _crc: int, _most: int, table: Any) -> int:
    return 40 * min(filled // _HEADER_BYTES + 1, len(table))


def cost_of_walk(batches: Any, a_record: int) -> int:
    """Of walking these rows, in microseconds: by records, and bytes for what is large in them."""
    payload_bytes = (batches["payload_end"] - batches["payload_start"]).sum()
    return a_record * int(batches["count"].sum()) + int(payload_bytes) // 4


@kernel(cost=lambda _raw, filled, _most: 6 * (filled // _HEADER_BYTES))
def whole_batches(raw: Any, filled: int, max_batch_bytes: int) -> Any:
    """Hop over the headers of `raw[:filled]`, believing only what keeps the hop in bounds.

    Returns (batches, bytes of whole batches, last offset of the last one or -1, size of the batch
    that follows in bytes: 0 if its header is not all there, -1 if its length is out of bounds).
    """
    rows = 0
    position = 0
    last_offset = np.int64(-1)
    while filled - position >= _SMALLEST_BATCH_BYTES:
        length = load_i32(raw, position + 8)
        magic = raw[position + 16]
        # Magic 0 and 1: CRC, magic, attributes, (timestamp,) key length, value length.
        smallest = _HEADER_BYTES - _LOG_OVERHEAD if magic == 2 else 14
        if length < smallest or length > max_batch_bytes:
            return rows, position, last_offset, np.int64(-1)
        size = length + _LOG_OVERHEAD
        if size > filled - position:
            return rows, position, last_offset, size
        last_offset = load_i64(raw, position)
        if magic == 2:
            last_offset += load_i32(raw, position + 23)
        position += size
        rows += 1
    return rows, position, last_offset, np.int64(0)


@kernel(cost=_cost_of_scan)
def scan_batches(
    raw: Any,
    filled: int,
    previous_last_offset: int,
    crc_from: int,
    max_batch_bytes: int,
    table: Any,
) -> Any:
    """Fill `table` with the whole batches of `raw[:filled]`.

    raw: uint8[]; table: BATCH[]; `previous_last_offset`: offsets must lie above it;
    `crc_from`: batches whose last offset is below it have been checked before.
    Returns (rows filled, bytes consumed, error, position of the error). Stops without an error
    when the rest is not a whole batch or the table is full.
    """
    row = 0
    position = 0
    while row < len(table) and filled - position >= _SMALLEST_BATCH_BYTES:
        length = load_i32(raw, position + 8)
        magic = raw[position + 16]
        if magic > 2:
            return row, position, BAD_MAGIC, position
        smallest = _HEADER_BYTES - _LOG_OVERHEAD if magic == 2 else 14
        if length < smallest or length > max_batch_bytes:
            return row, position, BAD_LENGTH, position
        size = length + _LOG_OVERHEAD
        if size > filled - position:
            break
        base_offset = load_i64(raw, position)
        batch = table[row]
        batch.position = position
        batch.size_bytes = size
        batch.base_offset = base_offset
        batch.magic = magic
        batch.payload_is_plain = 0
        batch.is_aborted = 0
        batch.control_type = NOT_CONTROL
        if magic == 2:
            attributes = load_i16(raw, position + 21)
            last_delta = load_i32(raw, position + 23)
            count = load_i32(raw, position + 57)
            batch.attributes = attributes
            batch.last_offset = base_offset + last_delta
            batch.base_timestamp = load_i64(raw, position + 27)
            batch.max_timestamp = load_i64(raw, position + 35)
            batch.producer_id = load_i64(raw, position + 43)
            batch.producer_epoch = load_i16(raw, position + 51)
            batch.count = count
            batch.payload_start = position + _HEADER_BYTES
            batch.payload_end = position + size
            if last_delta < 0 or count < 0 or count > last_delta + 1:
                return row, position, BAD_COUNT, position
            if (attributes & _CODEC_MASK) == 0 and count > (
                size - _HEADER_BYTES
            ) // SMALLEST_RECORD_BYTES:
                return row, position, BAD_COUNT, position
            # Past the last offset there is: the sum must not be asked, numba's may not overflow.
            if base_offset <= previous_last_offset or base_offset > _MAX_OFFSET - last_delta:
                return row, position, BAD_ORDER, position
            if batch.last_offset >= crc_from:
                expected = load_u32(raw, position + _CRC_AT)
                if crc32c(raw, position + _CRC_FROM, position + size) != expected:
                    return row, position, BAD_CRC, position
        else:
            batch.attributes = raw[position + 17]
            batch.last_offset = base_offset
            batch.base_timestamp = -1
            batch.max_timestamp = -1
            batch.producer_id = -1
            batch.producer_epoch = -1
            batch.count = 0
            batch.payload_start = position
            batch.payload_end = position + size
            if base_offset <= previous_last_offset:
                return row, position, BAD_ORDER, position
        previous_last_offset = batch.last_offset
        position += size
        row += 1
    return row, position, OK, position


@kernel(cost=lambda _table, rows, *_: 5 * rows)
def mark_aborted(
    table: Any, rows: int, producer_ids: Any, first_offsets: Any, last_offsets: Any
) -> None:
    """Set `is_aborted` of transactional data batches that lie in an aborted range.

    The ranges are int64[] columns sorted by (producer id, first offset); the last offset is the
    marker's. A range holds for the batches of its producer up to the marker.
    """
    for row in range(rows):
        batch = table[row]
        if batch.magic != 2 or (batch.attributes & (_TRANSACTIONAL_MASK | _CONTROL_MASK)) != (
            _TRANSACTIONAL_MASK
        ):
            continue
        low = 0
        high = len(producer_ids)
        while low < high:  # the first range past (producer, last offset of the batch)
            middle = (low + high) >> 1
            if producer_ids[middle] < batch.producer_id or (
                producer_ids[middle] == batch.producer_id
                and first_offsets[middle] <= batch.last_offset
            ):
                low = middle + 1
            else:
                high = middle
        if (
            low > 0
            and producer_ids[low - 1] == batch.producer_id
            and batch.base_offset <= last_offsets[low - 1]
        ):
            batch.is_aborted = 1


@inlined
def control_type_of(buffer: Any, start: int, end: int, count: int) -> Any:
    """The marker type in the first record of a control batch; EMPTY_CONTROL without records."""
    if count == 0:
        return EMPTY_CONTROL
    length, at = read_varint(buffer, start, end)
    if at == BAD_VARINT or length < 0 or length > end - at:
        return EMPTY_CONTROL
    end = at + length
    _, at = read_varint(buffer, at + 1, end)  # timestamp delta, after the attributes
    if at == BAD_VARINT:
        return EMPTY_CONTROL
    _, at = read_varint(buffer, at, end)  # offset delta
    if at == BAD_VARINT:
        return EMPTY_CONTROL
    key_size, at = read_varint(buffer, at, end)
    if at == BAD_VARINT or key_size < 4 or key_size > end - at:
        return EMPTY_CONTROL
    return load_i16(buffer, at + 2)  # after the version


@kernel(cost=lambda _raw, _plain, _table, first_row, end_row: 5 * (end_row - first_row))
def read_control_types(raw: Any, plain: Any, table: Any, first_row: int, end_row: int) -> None:
    """Fill `control_type` of the control batches among rows [first_row, end_row)."""
    for row in range(first_row, end_row):
        batch = table[row]
        if batch.magic == 2 and (batch.attributes & _CONTROL_MASK) != 0:
            buffer = plain if batch.payload_is_plain == 1 else raw
            batch.control_type = control_type_of(
                buffer, batch.payload_start, batch.payload_end, batch.count
            )


@kernel(cost=lambda *arguments: cost_of_walk(arguments[2][arguments[3] : arguments[4]], 80))
def index_records(
    raw: Any,
    plain: Any,
    table: Any,
    first_row: int,
    end_row: int,
    upper_offset: int,
    key0: Any,
    key1: Any,
    hashes: Any,
    offsets: Any,
    keyless: Any,
) -> Any:
    """Hash the keys of rows [first_row, end_row) of `table`.

    raw, plain: uint8[]; hashes: uint64[n, 2]; offsets: int64[n]; only records below
    `upper_offset` count. Batches of magic 2 that are neither control nor aborted are read;
    `keyless` int64[1] grows by the records without a key.
    Returns (rows written, error, position of the batch with the error).
    """
    written = 0
    for row in range(first_row, end_row):
        batch = table[row]
        if batch.magic != 2 or batch.is_aborted == 1 or (batch.attributes & _CONTROL_MASK) != 0:
            continue
        buffer = plain if batch.payload_is_plain == 1 else raw
        at = batch.payload_start
        payload_end = batch.payload_end
        base_offset = batch.base_offset
        last_delta = batch.last_offset - base_offset
        previous_delta = -1
        for _ in range(batch.count):
            length, at = read_varint(buffer, at, payload_end)
            if at == BAD_VARINT or length < SMALLEST_RECORD_BYTES - 1 or length > payload_end - at:
                return written, BAD_RECORD, batch.position
            end = at + length
            at += 1  # attributes
            while at < end and buffer[at] >= 0x80:  # timestamp delta
                at += 1
            delta, at = read_varint(buffer, at + 1, end)
            if at == BAD_VARINT or delta <= previous_delta or delta > last_delta:
                return written, BAD_DELTA, batch.position
            previous_delta = delta
            key_size, at = read_varint(buffer, at, end)
            if at == BAD_VARINT or key_size < -1 or key_size > end - at:
                return written, BAD_KEY, batch.position
            offset = base_offset + delta
            if offset < upper_offset:
                if key_size >= 0:
                    high, low = siphash128(buffer, at, key_size, key0, key1)
                    hashes[written, 0] = high
                    hashes[written, 1] = low
                    offsets[written] = offset
                    written += 1
                else:
                    keyless[0] += 1
            at = end
        if at != payload_end:
            return written, BAD_RECORD, batch.position
    return written, OK, -1


@kernel
def hash_many(joined: Any, lengths: Any, key0: Any, key1: Any, hashes: Any) -> None:
    """Hash keys that lie one after another in `joined` (uint8[]), `lengths` int64[n] bytes long."""
    at = 0
    for row in range(len(lengths)):
        high, low = siphash128(joined, at, lengths[row], key0, key1)
        hashes[row, 0] = high
        hashes[row, 1] = low
        at += lengths[row]
