"""The map from key hash to last offset: open addressing over rows of 24 bytes (CMP-5).

A map is a uint64[slots, 3] array of (hash high, hash low, offset + 1); a zero in the last column
is an empty slot, so fresh zeroed memory is an empty map. Only hashes are compared: they are 128
bits under a secret key, so nobody can make two keys meet (CMP-6).

Rows are prefetched some way ahead, because nearly every probe of a large map is a cache miss.

Merging keeps the maximum of the offsets for each hash: any order of inserts gives the same map.
Where something else than the offset says which record is the newest, `version_map` is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stratalog.record.kernel.compile import inlined, intrinsic, kernel

AHEAD = 16
"""Rows between the prefetch of a slot and its probe."""


@intrinsic("prefetching", 3)
def _prefetch_row(array: Any, row: int) -> None:
    return


@inlined
def home_slot(low: Any, slots: int) -> Any:
    """The slot where probing starts: the upper half of the low hash word, scaled to the map."""
    return np.int64(((low >> np.uint64(32)) * np.uint64(slots)) >> np.uint64(32))


@inlined
def find_slot(slots: Any, high: Any, low: Any) -> Any:
    """The row that holds this hash, or the empty row where it belongs. A map is never full."""
    count = len(slots)
    row = home_slot(low, count)
    while slots[row, 2] != 0 and (slots[row, 0] != high or slots[row, 1] != low):
        row += 1
        if row == count:
            row = 0
    return row


@kernel(cost=lambda _slots, _used, _limit, _hashes, _offsets, start, end: 7 * (end - start))
def insert(
    slots: Any, used: int, limit: int, hashes: Any, offsets: Any, start: int, end: int
) -> Any:
    """Put rows [start, end) into the map, keeping the larger offset of each hash.

    slots: uint64[n, 3]; hashes: uint64[m, 2]; offsets: int64[m]; `limit` < n bounds the keys.
    Returns (keys in the map, next row): next row < end when a record found `limit` keys there.
    That record stops the work even if its own key is in the map, as in Kafka (CMP-5).
    """
    count = len(slots)
    for row in range(start, min(start + AHEAD, end)):
        _prefetch_row(slots, home_slot(hashes[row, 1], count))
    for row in range(start, end):
        if row + AHEAD < end:
            _prefetch_row(slots, home_slot(hashes[row + AHEAD, 1], count))
        if used >= limit:
            return used, row
        high = hashes[row, 0]
        low = hashes[row, 1]
        slot = find_slot(slots, high, low)
        value = np.uint64(offsets[row] + 1)
        if slots[slot, 2] == 0:
            slots[slot, 0] = high
            slots[slot, 1] = low
            slots[slot, 2] = value
            used += 1
        elif value > slots[slot, 2]:
            slots[slot, 2] = value
    return used, end


@kernel
def rehash(old: Any, new: Any) -> None:
    """Move every entry of the map `old` into the empty, larger map `new`."""
    for row in range(len(old)):
        if old[row, 2] != 0:
            slot = find_slot(new, old[row, 0], old[row, 1])
            new[slot, 0] = old[row, 0]
            new[slot, 1] = old[row, 1]
            new[slot, 2] = old[row, 2]


@kernel
def probe(slots: Any, hashes: Any, offsets: Any, start: int, end: int, found: Any) -> Any:
    """Write the offsets of rows [start, end) whose hash the map has at a larger offset.

    found: int64[]; returns how many were written. These records are superseded.
    """
    count = len(slots)
    written = 0
    for row in range(start, min(start + AHEAD, end)):
        _prefetch_row(slots, home_slot(hashes[row, 1], count))
    for row in range(start, end):
        if row + AHEAD < end:
            _prefetch_row(slots, home_slot(hashes[row + AHEAD, 1], count))
        slot = find_slot(slots, hashes[row, 0], hashes[row, 1])
        if slots[slot, 2] > np.uint64(offsets[row] + 1):
            found[written] = offsets[row]
            written += 1
    return written


@kernel
def extract(slots: Any, stride: int, hashes: Any, offsets: Any) -> None:
    """Write the n entries of the map into hashes uint64[n, 2] and offsets int64[n], well mixed.

    Entries in slot order would be poison for the next map: all of them would want the front of a
    table that is still growing, and linear probing would walk over most of it each time. So
    neighbours are written `stride` rows apart, which must have no factor in common with n.
    """
    count = len(offsets)
    at = 0
    for row in range(len(slots)):
        if slots[row, 2] != 0:
            hashes[at, 0] = slots[row, 0]
            hashes[at, 1] = slots[row, 1]
            offsets[at] = np.int64(slots[row, 2]) - 1
            at += stride
            if at >= count:
                at -= count


@kernel(cost=lambda slots, _offsets: len(slots))
def extract_offsets(slots: Any, offsets: Any) -> Any:
    """Write only the offsets of the map's entries, in no order; how many."""
    written = 0
    for row in range(len(slots)):
        if slots[row, 2] != 0:
            offsets[written] = np.int64(slots[row, 2]) - 1
            written += 1
    return written


@kernel(cost=lambda _hashes, _offsets, count, bits, *_: 6 * count + 2 * (2 << bits))
def partition(
    hashes: Any, offsets: Any, count: int, bits: int, out_hashes: Any, out_offsets: Any, starts: Any
) -> None:
    """Group `count` rows by the top `bits` bits of their hash, keeping their order.

    starts: int64[2**bits + 1]; part p becomes rows [starts[p], starts[p + 1]) of the outputs.
    """
    shift = np.uint64(64 - bits)
    starts[:] = 0
    for row in range(count):
        starts[np.int64(hashes[row, 0] >> shift) + 1] += 1
    for bound in range(1, len(starts)):
        starts[bound] += starts[bound - 1]
    # Each start moves to its end while rows are placed; afterwards all are shifted back by one.
    for row in range(count):
        part = np.int64(hashes[row, 0] >> shift)
        target = starts[part]
        starts[part] = target + 1
        out_hashes[target, 0] = hashes[row, 0]
        out_hashes[target, 1] = hashes[row, 1]
        out_offsets[target] = offsets[row]
    for bound in range(len(starts) - 1, 0, -1):
        starts[bound] = starts[bound - 1]
    starts[0] = 0
