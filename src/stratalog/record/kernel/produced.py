"""The records of a batch that a producer sent, checked in one walk before it is appended.

`record/validate.py` states the rules and words the errors, in Python; this kernel only says whether
a batch keeps all of them. Its reading of integers is therefore as strict as `record/varint.py`: a
length is an int32 of five bytes at most. The other kernels read what was checked here once.

Invariants
- P1  OK is answered for exactly the batches that the Python path accepts, with the same maximum.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stratalog.record.kernel.arrays import (
    BAD_DELTA,
    BAD_KEY,
    BAD_RECORD,
    BAD_TIMESTAMP,
    BAD_VALUE,
    OK,
)
from stratalog.record.kernel.compile import inlined, kernel
from stratalog.record.kernel.primitives import BAD_VARINT
from stratalog.record.kernel.scan import SMALLEST_RECORD_BYTES

_INT32_BYTES, _INT64_BYTES = 5, 10
_INT64_MAX = (1 << 63) - 1
_NO_TIMESTAMP = -1
_MAX_HEADERS = 1 << 20
"""`base.limits.MAX_HEADERS_PER_RECORD`; a constant here is one in the compiled code."""


@inlined
def _read_strictly(buffer: Any, position: Any, end: Any, longest: int) -> Any:
    """(value, next position) of an int32 in five bytes or an int64 in ten, or BAD_VARINT."""
    end = min(end, position + longest)
    if position >= end:
        return np.int64(0), np.int64(BAD_VARINT)
    byte = np.uint64(buffer[position])
    position += 1
    raw = byte & np.uint64(0x7F)
    shift = np.uint64(7)
    while byte >= np.uint64(0x80):
        if position >= end:
            return np.int64(0), np.int64(BAD_VARINT)
        byte = np.uint64(buffer[position])
        position += 1
        raw |= (byte & np.uint64(0x7F)) << shift
        shift += np.uint64(7)
    # Of the tenth byte one bit is left, the others were shifted out.
    if (longest == _INT32_BYTES and raw > np.uint64(0xFFFFFFFF)) or (
        shift > np.uint64(63) and byte > np.uint64(1)
    ):
        return np.int64(0), np.int64(BAD_VARINT)
    return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), np.int64(position)


@inlined
def _after_bytes(buffer: Any, position: Any, end: Any, least: int) -> Any:
    """Where bytes with their size in front end, or BAD_VARINT; `least` is -1 if null will do."""
    size, position = _read_strictly(buffer, position, end, _INT32_BYTES)
    if position == BAD_VARINT or size < least or size > end - position:
        return np.int64(BAD_VARINT)
    return np.int64(position + max(size, np.int64(0)))


@inlined
def _after_headers(buffer: Any, position: Any, end: Any) -> Any:
    """Where the headers that begin at `position` end, or BAD_VARINT."""
    count, position = _read_strictly(buffer, position, end, _INT32_BYTES)
    if position == BAD_VARINT or count < 0 or count > min(_MAX_HEADERS, (end - position) // 2):
        return np.int64(BAD_VARINT)
    for turn in range(2 * count):
        # By turns a key, which must be there, and a value, which may be null.
        position = _after_bytes(buffer, position, end, -(turn & 1))
        if position == BAD_VARINT:
            return np.int64(BAD_VARINT)
    return np.int64(position)


@kernel
def check_records(
    buffer: Any,
    start: int,
    end: int,
    count: int,
    base_timestamp: int,
    requires_key: bool,
    lowest_timestamp: int,
    highest_timestamp: int,
) -> Any:
    """Check the `count` records in `buffer[start:end]` (uint8[], decompressed).

    Every record lies there in full and nothing else, their offset deltas are 0, 1, 2..., keys are
    there if `requires_key`, and each timestamp is -1, or an int64 within the two bounds (ms,
    inclusive). Returns (code, largest timestamp, offset delta of the first record that has it; -1
    and -1 if no timestamp is above -1); after any code but OK the rest means nothing.
    """
    largest = np.int64(_NO_TIMESTAMP)
    largest_delta = np.int64(-1)
    at = np.int64(start)
    least_key = 0 if requires_key else -1
    if start < 0 or start > end or end > len(buffer):
        return BAD_RECORD, largest, largest_delta
    for expected in range(count):
        length, at = _read_strictly(buffer, at, end, _INT32_BYTES)
        if at == BAD_VARINT or length < SMALLEST_RECORD_BYTES - 1 or length > end - at:
            return BAD_RECORD, largest, largest_delta
        record_end = at + length
        delta, at = _read_strictly(buffer, at + 1, record_end, _INT64_BYTES)  # after attributes
        if at == BAD_VARINT:
            return BAD_RECORD, largest, largest_delta
        # The sum must not be asked whether it is an int64: it may have wrapped round.
        if delta > 0:
            if base_timestamp > _INT64_MAX - delta:
                return BAD_TIMESTAMP, largest, largest_delta
        elif base_timestamp < -_INT64_MAX - delta:
            return BAD_TIMESTAMP, largest, largest_delta
        timestamp = base_timestamp + delta
        if timestamp != _NO_TIMESTAMP and (
            timestamp < lowest_timestamp or timestamp > highest_timestamp
        ):
            return BAD_TIMESTAMP, largest, largest_delta
        offset_delta, at = _read_strictly(buffer, at, record_end, _INT32_BYTES)
        if at == BAD_VARINT or offset_delta != expected:
            return BAD_DELTA, largest, largest_delta
        if timestamp > largest:
            largest = np.int64(timestamp)
            largest_delta = np.int64(offset_delta)
        at = _after_bytes(buffer, at, record_end, least_key)
        if at == BAD_VARINT:
            return BAD_KEY, largest, largest_delta
        at = _after_bytes(buffer, at, record_end, -1)
        if at == BAD_VARINT:
            return BAD_VALUE, largest, largest_delta
        at = _after_headers(buffer, at, record_end)
        if at != record_end:
            return BAD_RECORD, largest, largest_delta
    return OK if at == end else BAD_RECORD, largest, largest_delta
