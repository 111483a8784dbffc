"""The map from key hash to the offset of the highest version: `offset_map` with one word more.

A map is a uint64[slots, 4] array of (hash high, hash low, offset + 1, version); the version is an
int64 in its bits. The entry of a hash is the row with the greatest (version, offset), so that any
order of inserts gives the same map (CMP-17). `offset_map.extract_offsets` reads these maps, too.

It stands beside the narrower map instead of replacing it, because nearly every log is ordered by
offset, and every probe of a large map is a cache miss that a third more bytes make dearer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stratalog.record.kernel.compile import intrinsic, kernel
from stratalog.record.kernel.offset_map import AHEAD, find_slot, home_slot


@intrinsic("prefetching", 4)
def _prefetch_row(array: Any, row: int) -> None:
    return


@kernel
def insert(
    slots: Any,
    used: int,
    limit: int,
    hashes: Any,
    offsets: Any,
    versions: Any,
    start: int,
    end: int,
) -> Any:
    """Put rows [start, end) into the map, keeping the highest version of each hash.

    slots: uint64[n, 4]; hashes: uint64[m, 2]; offsets, versions: int64[m]; `limit` < n bounds the
    keys. Returns (keys in the map, next row): next row < end when a record found `limit` keys.
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
            slots[slot, 3] = np.uint64(versions[row])
            used += 1
            continue
        held = np.int64(slots[slot, 3])
        if versions[row] > held or (versions[row] == held and value > slots[slot, 2]):
            slots[slot, 2] = value
            slots[slot, 3] = np.uint64(versions[row])
    return used, end


@kernel
def rehash(old: Any, new: Any) -> None:
    """Move every entry of the map `old` into the empty, larger map `new`."""
    for row in range(len(old)):
        if old[row, 2] != 0:
            slot = find_slot(new, old[row, 0], old[row, 1])
            for column in range(4):
                new[slot, column] = old[row, column]


@kernel
def probe(
    slots: Any, hashes: Any, offsets: Any, versions: Any, start: int, end: int, found: Any
) -> Any:
    """Write the offsets of rows [start, end) whose hash the map has at a greater (version, offset).

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
        if slots[slot, 2] == 0:
            continue
        held = np.int64(slots[slot, 3])
        if versions[row] < held or (
            versions[row] == held and np.uint64(offsets[row] + 1) < slots[slot, 2]
        ):
            found[written] = offsets[row]
            written += 1
    return written


@kernel
def probe_higher(slots: Any, hashes: Any, versions: Any, start: int, end: int, found: Any) -> Any:
    """Write the map's offset for each hash of rows [start, end) that it has at a greater version.

    found: int64[]; returns how many were written, some of them more than once. Were these records
    not there, those of the rows, all of which come after them, would be the newest (CMP-18).
    """
    count = len(slots)
    written = 0
    for row in range(start, min(start + AHEAD, end)):
        _prefetch_row(slots, home_slot(hashes[row, 1], count))
    for row in range(start, end):
        if row + AHEAD < end:
            _prefetch_row(slots, home_slot(hashes[row + AHEAD, 1], count))
        slot = find_slot(slots, hashes[row, 0], hashes[row, 1])
        if slots[slot, 2] != 0 and versions[row] < np.int64(slots[slot, 3]):
            found[written] = np.int64(slots[slot, 2]) - 1
            written += 1
    return written


@kernel
def extract(slots: Any, stride: int, hashes: Any, offsets: Any, versions: Any) -> None:
    """`offset_map.extract` with the versions, int64[n]."""
    count = len(offsets)
    at = 0
    for row in range(len(slots)):
        if slots[row, 2] != 0:
            hashes[at, 0] = slots[row, 0]
            hashes[at, 1] = slots[row, 1]
            offsets[at] = np.int64(slots[row, 2]) - 1
            versions[at] = np.int64(slots[row, 3])
            at += stride
            if at >= count:
                at -= count


@kernel
def partition_versions(
    hashes: Any, versions: Any, count: int, bits: int, starts: Any, out_versions: Any
) -> None:
    """Bring `count` versions into the order that `offset_map.partition` gave their rows.

    starts: int64[2**bits + 1] as that kernel left it, and as it is left here.
    """
    shift = np.uint64(64 - bits)
    for row in range(count):
        part = np.int64(hashes[row, 0] >> shift)
        out_versions[starts[part]] = versions[row]
        starts[part] += 1
    for bound in range(len(starts) - 1, 0, -1):
        starts[bound] = starts[bound - 1]
    starts[0] = 0
