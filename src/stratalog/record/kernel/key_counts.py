"""How much is superseded for each key: sizes of records, and a map from key hash to sums.

A map is a uint64[slots, 5] array of (hash high, hash low, records, bytes, smallest offset); a slot
without records is empty, so fresh zeroed memory is an empty map. Sums and a minimum do not care for
the order of the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stratalog.record.kernel.arrays import BAD_RECORD, OK
from stratalog.record.kernel.compile import inlined, kernel
from stratalog.record.kernel.offset_map import home_slot
from stratalog.record.kernel.primitives import BAD_VARINT, read_varint


@inlined
def _slot_of(slots: Any, high: Any, low: Any) -> Any:
    """The row of this hash, or the empty row where it belongs. A map is never full."""
    count = len(slots)
    row = home_slot(low, count)
    while slots[row, 2] != 0 and (slots[row, 0] != high or slots[row, 1] != low):
        row += 1
        if row == count:
            row = 0
    return row


@kernel
def count_keys(
    slots: Any, used: int, limit: int, hashes: Any, offsets: Any, sizes: Any, start: int
) -> Any:
    """Add the rows from `start` on: hashes uint64[n, 2], offsets and sizes (bytes) int64[n].

    Returns (keys in the map, next row): next row < n when a row found `limit` keys there.
    """
    for row in range(start, len(offsets)):
        high = hashes[row, 0]
        low = hashes[row, 1]
        place = _slot_of(slots, high, low)
        offset = np.uint64(offsets[row])
        if slots[place, 2] == 0:
            if used == limit:
                return used, row
            used += 1
            slots[place, 0] = high
            slots[place, 1] = low
            slots[place, 4] = offset
        elif offset < slots[place, 4]:
            slots[place, 4] = offset
        slots[place, 2] += np.uint64(1)
        slots[place, 3] += np.uint64(sizes[row])
    return used, len(offsets)


@kernel
def rehash(slots: Any, larger: Any) -> None:
    """Move all keys into `larger`, which is empty."""
    for row in range(len(slots)):
        if slots[row, 2] != 0:
            place = _slot_of(larger, slots[row, 0], slots[row, 1])
            for column in range(5):
                larger[place, column] = slots[row, column]


@kernel
def record_sizes(
    raw: Any, plain: Any, table: Any, first_row: int, end_row: int, offsets: Any, sizes: Any
) -> Any:
    """The sizes, with their length fields, of the records at `offsets` in rows [first_row, end_row)
    of `table`; others, and batches of magic 0 and 1, are passed over.

    raw, plain: uint8[]; offsets: int64[n], sorted; sizes: int64[n], in which those found are set.
    Returns (error, position of the batch in error).
    """
    for row in range(first_row, end_row):
        batch = table[row]
        place = np.searchsorted(offsets, batch.base_offset)
        if batch.magic != 2 or place == len(offsets) or offsets[place] > batch.last_offset:
            continue
        buffer = plain if batch.payload_is_plain == 1 else raw
        at = batch.payload_start
        payload_end = batch.payload_end
        for _ in range(batch.count):
            start = at
            length, at = read_varint(buffer, at, payload_end)
            if at == BAD_VARINT or length < 1 or length > payload_end - at:
                return BAD_RECORD, batch.position
            end = at + length
            _, at = read_varint(buffer, at + 1, end)  # after the attributes: the timestamp
            if at == BAD_VARINT:
                return BAD_RECORD, batch.position
            delta, at = read_varint(buffer, at, end)
            if at == BAD_VARINT:
                return BAD_RECORD, batch.position
            if offsets[place] == batch.base_offset + delta:
                sizes[place] = end - start
                place += 1
                if place == len(offsets) or offsets[place] > batch.last_offset:
                    break
            at = end
    return OK, np.int64(-1)
