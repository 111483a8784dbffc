"""Rows of Arrow columns as the records of batches of magic 2: the way back of `arrow_columns`.

    place_keys        keys -> partitions, as Kafka's default partitioner places them
    encode_records    rows of one partition -> record bytes, until a batch is full; goes on later

Columns are Arrow's: int32 ends (n + 1), bytes, and a bool a row that says whether it has a value.

Invariants
- R1  The bytes are those of `builder.encode_record`, record by record; the partitions those of
      `admin/partitioner.py`.
- R2  Nothing is written past `limit`, but for the first record of a batch, which is not written
      and told of if `out` is too small for it.

Source: Kafka's Utils.murmur2 and BuiltInPartitioner.partitionForKey; DefaultRecord.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stratalog.record.kernel.compile import kernel
from stratalog.record.kernel.primitives import copy_bytes, size_of_varint, write_varint

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


@kernel
def place_keys(keys: Any, ends: Any, is_there: Any, partitions: int, placed: Any) -> Any:
    """Write the partition of each row's key to `placed` (int64[n]); -1 for a row without one.

    Products of two 32-bit numbers, the second below 2^31, fit an int64.
    """
    for row in range(len(placed)):
        if not is_there[row]:
            placed[row] = -1
            continue
        start = np.int64(ends[row])
        length = np.int64(ends[row + 1]) - start
        value = np.int64(_SEED) ^ length
        whole = start + (length & ~3)
        for at in range(start, whole, 4):
            word = np.int64(keys[at])
            word |= np.int64(keys[at + 1]) << 8
            word |= np.int64(keys[at + 2]) << 16
            word |= np.int64(keys[at + 3]) << 24
            word = word * _MULTIPLIER & _MASK
            word = (word ^ word >> 24) * _MULTIPLIER & _MASK
            value = (value * _MULTIPLIER & _MASK) ^ word
        if whole < start + length:
            for at in range(whole, start + length):
                value ^= np.int64(keys[at]) << (8 * (at - whole))
            value = value * _MULTIPLIER & _MASK
        value = (value ^ value >> 13) * _MULTIPLIER & _MASK
        value ^= value >> 15
        placed[row] = (value & 0x7FFFFFFF) % partitions
    return np.int64(len(placed))


@kernel
def encode_records(
    rows: Any,
    first: Any,
    timestamps: Any,
    keys: Any,
    key_ends: Any,
    has_key: Any,
    values: Any,
    value_ends: Any,
    has_value: Any,
    list_ends: Any,
    names: Any,
    name_ends: Any,
    contents: Any,
    content_ends: Any,
    has_content: Any,
    base_timestamp: int,
    count: Any,
    at: Any,
    limit: int,
    out: Any,
) -> Any:
    """Append records for `rows[first:]` (int64[]) to a batch that holds `count` of them in
    out[:at] (uint8[]); header lists end at `list_ends`, their names and contents are columns.

    Returns (next place in `rows`, records, bytes used, bytes that the next record takes: more than
    0 if the batch is full with the ones it has).
    """
    place = first
    while place < len(rows):
        row = rows[place]
        key_at = np.int64(key_ends[row])
        key_size = np.int64(key_ends[row + 1]) - key_at
        if not has_key[row]:
            key_size = np.int64(-1)
        value_at = np.int64(value_ends[row])
        value_size = np.int64(value_ends[row + 1]) - value_at
        if not has_value[row]:
            value_size = np.int64(-1)
        headers_at = np.int64(list_ends[row])
        headers = np.int64(list_ends[row + 1]) - headers_at
        delta = np.int64(timestamps[row]) - np.int64(base_timestamp)
        size = np.int64(1) + size_of_varint(delta) + size_of_varint(np.int64(count))
        size += size_of_varint(key_size) + max(key_size, np.int64(0))
        size += size_of_varint(value_size) + max(value_size, np.int64(0))
        size += size_of_varint(headers)
        for header in range(headers_at, headers_at + headers):
            name_size = np.int64(name_ends[header + 1]) - np.int64(name_ends[header])
            size += size_of_varint(name_size) + name_size
            content_size = np.int64(content_ends[header + 1]) - np.int64(content_ends[header])
            if not has_content[header]:
                content_size = np.int64(-1)
            size += size_of_varint(content_size) + max(content_size, np.int64(0))
        whole = size_of_varint(size) + size
        if (count > 0 and at + whole > limit) or at + whole > len(out):
            return np.int64(place), np.int64(count), np.int64(at), whole
        at = write_varint(out, at, size)
        out[at] = np.uint8(0)
        at = write_varint(out, at + 1, delta)
        at = write_varint(out, at, np.int64(count))
        at = write_varint(out, at, key_size)
        if key_size > 0:
            copy_bytes(out, at, keys, key_at, key_size)
            at += key_size
        at = write_varint(out, at, value_size)
        if value_size > 0:
            copy_bytes(out, at, values, value_at, value_size)
            at += value_size
        at = write_varint(out, at, headers)
        for header in range(headers_at, headers_at + headers):
            name_at = np.int64(name_ends[header])
            name_size = np.int64(name_ends[header + 1]) - name_at
            at = write_varint(out, at, name_size)
            copy_bytes(out, at, names, name_at, name_size)
            at += name_size
            content_at = np.int64(content_ends[header])
            content_size = np.int64(content_ends[header + 1]) - content_at
            if not has_content[header]:
                content_size = np.int64(-1)
            at = write_varint(out, at, content_size)
            if content_size > 0:
                copy_bytes(out, at, contents, content_at, content_size)
                at += content_size
        count += 1
        place += 1
    return np.int64(place), np.int64(count), np.int64(at), np.int64(0)
