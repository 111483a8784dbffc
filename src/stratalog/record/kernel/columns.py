"""Every record of a chunk as rows of numbers: for counting, checking and comparing.

Cleaning looks at keys only and trusts what follows; here the whole structure of a record is walked,
values and headers too, so that every byte is seen to belong to exactly one field.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stratalog.record.kernel.arrays import BAD_DELTA, BAD_KEY, BAD_RECORD, BAD_VALUE, OK
from stratalog.record.kernel.compile import kernel
from stratalog.record.kernel.primitives import BAD_VARINT, read_varint, siphash128
from stratalog.record.kernel.scan import SMALLEST_RECORD_BYTES
from stratalog.record.kernel.versions import LOWEST, integer_of, same_bytes

SIZES, KEYS, VALUES = 0, 1, 2
"""How much is hashed: nothing, keys, or keys and values."""

NO_VERSIONS, BY_TIMESTAMP, BY_HEADER = 0, 1, 2
"""What makes a record's version (`versions`)."""

_TIMESTAMP_TYPE_MASK = 0x08


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
    version_by: int,
    name: Any,
    numbers: Any,
    hashes: Any,
) -> Any:
    """Walk the records of rows [first_row, end_row) of `table` where `is_read` (bool[]) is set.

    raw, plain: uint8[]; numbers: int64[n, 6] (offset, timestamp, key size, value size, row,
    version); hashes: uint64[n, 4] (key, value); name: uint8[], the header that holds versions.
    Returns (records, error, position of the batch in error).
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
            if at == BAD_VARINT or length < SMALLEST_RECORD_BYTES - 1 or length > payload_end - at:
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
            version = np.int64(LOWEST)
            for _ in range(headers):
                size, at = read_varint(buffer, at, end)
                if at == BAD_VARINT or size < 0 or size > end - at:
                    return written, BAD_RECORD, batch.position
                is_version = version_by == BY_HEADER and same_bytes(buffer, at, size, name)
                size, at = read_varint(buffer, at + size, end)
                if at == BAD_VARINT or size < -1 or size > end - at:
                    return written, BAD_RECORD, batch.position
                if is_version:
                    version = integer_of(buffer, at, size)
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
            numbers[written, 5] = numbers[written, 1] if version_by == BY_TIMESTAMP else version
            written += 1
        if batch.count > 0 and at != payload_end:
            return written, BAD_RECORD, batch.position
    return written, OK, np.int64(-1)
