"""The versions of records, for logs whose newest record is not the last one (CMP-17).

A version is an int64. By timestamp it is the record's time, with LogAppendTime the batch's largest.
By header it is the integer in the record's last header of a given name, as Kafka's `lastHeader`
finds it, in either form that people write:

1. ASCII decimal, if the value is nothing but digits, perhaps after a `-`: `StringSerializer`,
   consoles, most languages. A number that int64 does not hold counts as no integer.
2. Otherwise 1 to 8 bytes are a big-endian two's-complement number: `LongSerializer` (8 bytes),
   `IntegerSerializer` (4), `ShortSerializer` (2).

Some values could be meant either way, and decimal wins: a counter or a date written in digits
passes through every length ("20260131" has 8 bytes), while the smallest 8-byte number made of such
bytes is 3.25e18: no counter gets there, no clock in ms or us, and one in ns not before 2073. Binary
numbers of 4 or fewer bytes do meet such values (12,336 is "00", 808,464,432 is "0000"), so versions
in binary should be written as longs.

Whatever else there is, or nothing, is `LOWEST`: the version below which no other is.

Invariants
- V1  Equal bytes have equal versions, whatever the batch, the codec or the machine.
- V2  Never reads outside the record (K2).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stratalog.record.kernel.arrays import BAD_DELTA, BAD_KEY, BAD_RECORD, BAD_VALUE, OK
from stratalog.record.kernel.compile import inlined, kernel
from stratalog.record.kernel.primitives import BAD_VARINT, read_varint, siphash128
from stratalog.record.kernel.scan import SMALLEST_RECORD_BYTES

LOWEST = -(1 << 63)
"""Of records without a version."""

_TIMESTAMP_TYPE_MASK = 0x08
_CONTROL_MASK = 0x20
_MINUS, _ZERO = 0x2D, 0x30
_TENTH = -(-LOWEST // 10)
"""What `LOWEST` is ten times of, towards zero; its last digit is 8."""
_LAST_DIGIT = 8


@inlined
def integer_of(buffer: Any, at: int, size: int) -> Any:
    """The version in the `size` bytes at `at`; `LOWEST` if they hold no integer."""
    if size <= 0:
        return np.int64(LOWEST)
    end = at + size
    is_negative = size > 1 and buffer[at] == _MINUS
    # Digits add up below zero, where there is room for one number more.
    total = np.int64(0)
    fits = True
    is_decimal = True
    for place in range(at + 1 if is_negative else at, end):
        digit = np.int64(buffer[place]) - _ZERO
        if digit < 0 or digit > 9:
            is_decimal = False
            break
        if total < _TENTH or (total == _TENTH and digit > _LAST_DIGIT):
            fits = False
        if fits:
            total = total * 10 - digit
    if is_decimal:
        if not fits or (total == LOWEST and not is_negative):
            return np.int64(LOWEST)
        return total if is_negative else -total
    if size > 8:
        return np.int64(LOWEST)
    total = np.int64(-1) if buffer[at] >= 0x80 else np.int64(0)
    for place in range(at, end):
        total = (total << 8) | np.int64(buffer[place])
    return total


@inlined
def same_bytes(buffer: Any, at: int, size: int, name: Any) -> bool:
    """Whether the `size` bytes at `at` are those of `name`."""
    if size != len(name):
        return False
    place = 0
    while place < size and buffer[at + place] == name[place]:
        place += 1
    return place == size


@inlined
def header_version(buffer: Any, at: int, end: int, name: Any) -> Any:
    """The version in the headers of a record, whose value's length is at `at`: (version, error)."""
    version = np.int64(LOWEST)
    value_size, at = read_varint(buffer, at, end)
    if at == BAD_VARINT or value_size < -1 or value_size > end - at:
        return version, BAD_VALUE
    headers, at = read_varint(buffer, at + max(value_size, 0), end)
    if at == BAD_VARINT or headers < 0 or headers > (end - at) // 2:
        return version, BAD_RECORD
    for _ in range(headers):
        size, at = read_varint(buffer, at, end)
        if at == BAD_VARINT or size < 0 or size > end - at:
            return version, BAD_RECORD
        is_named = same_bytes(buffer, at, size, name)
        size, at = read_varint(buffer, at + size, end)
        if at == BAD_VARINT or size < -1 or size > end - at:
            return version, BAD_RECORD
        if is_named:
            version = integer_of(buffer, at, size)
        at += max(size, 0)
    return version, OK


@kernel
def index_versions(
    raw: Any,
    plain: Any,
    table: Any,
    first_row: int,
    end_row: int,
    upper_offset: int,
    key0: Any,
    key1: Any,
    by_header: bool,
    name: Any,
    hashes: Any,
    offsets: Any,
    versions: Any,
    keyless: Any,
) -> Any:
    """`scan.index_records` with the version of each row: by its timestamp, or by its last header
    of the name `name` (uint8[]).

    versions: int64[n]; the rest is described there.
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
        log_append_time = (batch.attributes & _TIMESTAMP_TYPE_MASK) != 0
        previous_delta = -1
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
            offset = base_offset + delta
            if offset < upper_offset:
                if key_size >= 0:
                    if by_header:
                        version, error = header_version(buffer, at + key_size, end, name)
                        if error != OK:
                            return written, error, batch.position
                    elif log_append_time:
                        version = batch.max_timestamp
                    else:
                        version = batch.base_timestamp + timestamp_delta
                    high, low = siphash128(buffer, at, key_size, key0, key1)
                    hashes[written, 0] = high
                    hashes[written, 1] = low
                    offsets[written] = offset
                    versions[written] = version
                    written += 1
                else:
                    keyless[0] += 1
            at = end
        if at != payload_end:
            return written, BAD_RECORD, batch.position
    return written, OK, -1


@kernel
def read_integer(joined: Any) -> Any:
    """The version that the bytes of `joined` (uint8[]) stand for; `LOWEST` if none."""
    return integer_of(joined, 0, len(joined))
