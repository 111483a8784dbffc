"""Records of many batches as columns of offsets and bytes, the way Arrow keeps them.

Two steps, so that memory is asked for once and exactly: `locate_records` walks the records, checks
their whole structure and writes down where each field lies; `copy_fields` and `copy_headers` then
fill the columns that somebody wants, and only those. A walk stops when it has found enough, and
goes on later where it stopped.

Invariants
- A1  Every byte of a located record belongs to exactly one of its fields.
- A2  The copies write exactly the bytes that `totals` announced, and set every bit and offset.
- A3  Records are located once each, in the order of the log, however often a walk stops.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stratalog.record.kernel.arrays import BAD_DELTA, BAD_KEY, BAD_RECORD, BAD_VALUE, OK
from stratalog.record.kernel.compile import kernel
from stratalog.record.kernel.primitives import BAD_VARINT, copy_bytes, read_varint
from stratalog.record.kernel.scan import SMALLEST_RECORD_BYTES, cost_of_walk

# Columns of `places`, int64[n, PLACE_COLUMNS]. A size of -1 is null.
OFFSET, TIMESTAMP, ROW, KEY_AT, KEY_SIZE, VALUE_AT, VALUE_SIZE, HEADERS_AT, HEADERS = range(9)
PLACE_COLUMNS = 9

# What `totals`, int64[TOTALS], adds up: bytes, but for the number of headers.
KEY_BYTES, VALUE_BYTES, HEADER_COUNT, NAME_BYTES, HEADER_VALUE_BYTES = range(5)
TOTALS = 5

# `state`, int64[STATE]: where a walk goes on. Begin with (first row, 0, 0, -1).
NEXT_ROW, TAKEN, POSITION, PREVIOUS_DELTA = range(4)
STATE = 4

_TIMESTAMP_TYPE_MASK = 0x08


def _cost_of_locating(
    _raw: Any, _plain: Any, table: Any, is_read: Any, end_row: int, *rest: Any
) -> int:
    first_row = int(rest[-3][NEXT_ROW])
    return cost_of_walk(table[first_row:end_row][is_read[first_row:end_row]], 50)


@kernel(cost=_cost_of_locating)
def locate_records(
    raw: Any,
    plain: Any,
    table: Any,
    is_read: Any,
    end_row: int,
    start_offset: int,
    end_offset: int,
    chosen: Any,
    by_chosen: bool,
    without_nulls: bool,
    limit_bytes: int,
    state: Any,
    places: Any,
    totals: Any,
) -> Any:
    """Find the records of batches where `is_read` (bool[]) is set, from `state` on to `end_row`.

    raw, plain: uint8[]; table: BATCH[], of magic 2 where it is read. Found are offsets in [start,
    end), if `by_chosen` only those in `chosen` (int64[], sorted), if `without_nulls` only those
    with a value. Stops when `places` is full or its fields reach `limit_bytes`.
    Returns (records found, error, position of the batch in error); `state` and `totals` are set.
    """
    written = 0
    found_bytes = np.int64(0)
    totals[:] = 0
    chosen_at = 0
    is_placed = False
    row = state[NEXT_ROW]
    while row < end_row:
        if not is_read[row]:
            row += 1
            continue
        batch = table[row]
        buffer = plain if batch.payload_is_plain == 1 else raw
        payload_end = batch.payload_end
        last_delta = batch.last_offset - batch.base_offset
        if state[TAKEN] == 0:
            state[POSITION] = batch.payload_start
            state[PREVIOUS_DELTA] = -1
        at = state[POSITION]
        previous_delta = state[PREVIOUS_DELTA]
        for number in range(state[TAKEN], batch.count):
            if written == len(places) or found_bytes >= limit_bytes:
                state[NEXT_ROW] = row
                state[TAKEN] = number
                state[POSITION] = at
                state[PREVIOUS_DELTA] = previous_delta
                return written, OK, np.int64(-1)
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
            key_at = at
            value_size, at = read_varint(buffer, at + max(key_size, 0), end)
            if at == BAD_VARINT or value_size < -1 or value_size > end - at:
                return written, BAD_VALUE, batch.position
            value_at = at
            headers, at = read_varint(buffer, at + max(value_size, 0), end)
            if at == BAD_VARINT or headers < 0 or headers > (end - at) // 2:
                return written, BAD_RECORD, batch.position
            headers_at = at
            name_bytes = np.int64(0)
            header_bytes = np.int64(0)
            for _ in range(headers):
                size, at = read_varint(buffer, at, end)
                if at == BAD_VARINT or size < 0 or size > end - at:
                    return written, BAD_RECORD, batch.position
                name_bytes += size
                size, at = read_varint(buffer, at + size, end)
                if at == BAD_VARINT or size < -1 or size > end - at:
                    return written, BAD_RECORD, batch.position
                if size > 0:
                    header_bytes += size
                    at += size
            if at != end:
                return written, BAD_RECORD, batch.position
            offset = batch.base_offset + delta
            is_found = start_offset <= offset < end_offset
            if is_found and without_nulls and value_size < 0:
                is_found = False
            if is_found and by_chosen:
                if not is_placed:
                    chosen_at = np.searchsorted(chosen, offset)
                    is_placed = True
                while chosen_at < len(chosen) and chosen[chosen_at] < offset:
                    chosen_at += 1
                is_found = chosen_at < len(chosen) and chosen[chosen_at] == offset
            if is_found:
                places[written, OFFSET] = offset
                if (batch.attributes & _TIMESTAMP_TYPE_MASK) != 0:
                    places[written, TIMESTAMP] = batch.max_timestamp
                else:
                    places[written, TIMESTAMP] = batch.base_timestamp + timestamp_delta
                places[written, ROW] = row
                places[written, KEY_AT] = key_at
                places[written, KEY_SIZE] = key_size
                places[written, VALUE_AT] = value_at
                places[written, VALUE_SIZE] = value_size
                places[written, HEADERS_AT] = headers_at
                places[written, HEADERS] = headers
                totals[KEY_BYTES] += max(key_size, 0)
                totals[VALUE_BYTES] += max(value_size, 0)
                totals[HEADER_COUNT] += headers
                totals[NAME_BYTES] += name_bytes
                totals[HEADER_VALUE_BYTES] += header_bytes
                found_bytes += end - key_at
                written += 1
        if batch.count > 0 and at != payload_end:
            return written, BAD_RECORD, batch.position
        state[TAKEN] = 0
        row += 1
    state[NEXT_ROW] = row
    return written, OK, np.int64(-1)


@kernel(cost=lambda _raw, _plain, _table, places, *_: 5 * len(places))
def copy_fields(
    raw: Any, plain: Any, table: Any, places: Any, column: int, ends: Any, validity: Any, out: Any
) -> Any:
    """Fill a binary column with the keys (`column` KEY_AT) or values (VALUE_AT) of `places`.

    ends: int32[n + 1]; validity: uint8[], a bit a record, all zero; out: uint8[], of the size that
    `totals` told. Returns how many are null.
    """
    nulls = 0
    used = np.int64(0)
    ends[0] = 0
    for record in range(len(places)):
        size = places[record, column + 1]
        if size < 0:
            nulls += 1
        else:
            validity[record >> 3] |= np.uint8(1 << (record & 7))
            buffer = plain if table[places[record, ROW]].payload_is_plain == 1 else raw
            copy_bytes(out, used, buffer, places[record, column], size)
            used += size
        ends[record + 1] = used
    return nulls


@kernel(cost=lambda *arguments: 5 * len(arguments[3]) + 20 * len(arguments[6]))
def copy_headers(
    raw: Any,
    plain: Any,
    table: Any,
    places: Any,
    list_ends: Any,
    list_validity: Any,
    name_ends: Any,
    names: Any,
    value_ends: Any,
    value_validity: Any,
    values: Any,
) -> Any:
    """Fill the columns of a list of (name, value): a record without headers has none, null.

    list_ends: int32[n + 1]; name_ends, value_ends: int32[headers + 1]; the validity columns hold
    a bit each (lists, values), all zero; names, values: uint8[], of the sizes that `totals` told.
    Returns (null lists, null values). `locate_records` has checked every bound.
    """
    null_lists = 0
    null_values = 0
    count = 0
    names_used = np.int64(0)
    values_used = np.int64(0)
    list_ends[0] = 0
    name_ends[0] = 0
    value_ends[0] = 0
    for record in range(len(places)):
        batch = table[places[record, ROW]]
        buffer = plain if batch.payload_is_plain == 1 else raw
        end = batch.payload_end
        at = places[record, HEADERS_AT]
        headers = places[record, HEADERS]
        if headers == 0:
            null_lists += 1
        else:
            list_validity[record >> 3] |= np.uint8(1 << (record & 7))
        for _ in range(headers):
            size, at = read_varint(buffer, at, end)
            copy_bytes(names, names_used, buffer, at, size)
            names_used += size
            size, at = read_varint(buffer, at + size, end)
            if size < 0:
                null_values += 1
            else:
                value_validity[count >> 3] |= np.uint8(1 << (count & 7))
                copy_bytes(values, values_used, buffer, at, size)
                values_used += size
                at += size
            count += 1
            name_ends[count] = names_used
            value_ends[count] = values_used
        list_ends[record + 1] = count
    return null_lists, null_values
