"""The map from key hash to newest record, shared by the threads of one clean, within a bound.

The newest record is the one with the largest offset, or, in a map of versions, with the greatest
(version, offset) (CMP-17): the same map with rows of one word more and kernels of its own.

How it works: the top bits of the hash choose a stripe, which has its own lock and its own open-
addressing table (`record/kernel/offset_map.py`) that doubles until its share of the bound is used.
Rows are first grouped by stripe, so that a lock is taken once for many rows.

A map may cover only one of 2^range_bits equal hash ranges; rows of other ranges are passed over.
That is how any number of keys is worked through within a bound (CMP-7): range after range.

Invariants
- M1  `used` never exceeds the key limit; memory never exceeds the bound by more than half a stripe
      (the old table, while a stripe grows).
- M2  The content depends only on the rows that were added, not on their order or the threads.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import numpy.typing as npt

from stratalog.clean.chunk import Int64s, Scratch
from stratalog.clean.job import SLOT_BYTES
from stratalog.record.kernel import offset_map, version_map

Hashes = npt.NDArray[np.uint64]

VERSION_BYTES = 8
"""What a version adds to each of a map's slots, which take `SLOT_BYTES` without one."""

_WORDS = SLOT_BYTES // 8
_STRIPE_BITS = 4
_FIRST_SLOTS = 1 << 10
_GROW_AT = 0.75
_FULL_AT = 0.9
"""Load factor of a stripe at its full size: Kafka's default (CMP-5)."""


@dataclass(frozen=True, slots=True, eq=False)
class KeyRows:
    """Records with a key: hashes uint64[n, 2] and offsets int64[n]; `versions` int64[n] is None
    where the offset alone says which is the newest."""

    hashes: Hashes
    offsets: Int64s
    versions: Int64s | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def part(self, start: int, end: int | None = None) -> KeyRows:
        """Rows [start, end), as views."""
        chosen = slice(start, end)
        versions = None if self.versions is None else self.versions[chosen]
        return KeyRows(self.hashes[chosen], self.offsets[chosen], versions)

    def from_offset(self, offset: int) -> int:
        """The first row at or above `offset`, of rows in offset order."""
        return int(np.searchsorted(self.offsets, offset))


@dataclass(slots=True)
class _Stripe:
    """One table. Its lock guards the rest."""

    slots: Hashes
    used: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class OffsetMap:
    """Key hash -> newest offset. Threads may add concurrently; reading waits for all adding."""

    def __init__(
        self,
        *,
        memory_bytes: int | None = None,
        max_keys: int | None = None,
        range_bits: int = 0,
        hash_range: int = 0,
        has_versions: bool = False,
    ):
        """Bounded by `memory_bytes`, or in order and by exactly `max_keys` (`add_in_order`).

        `has_versions`: all rows that are added or asked for have versions, otherwise none has.
        """
        slot_bytes = SLOT_BYTES + (VERSION_BYTES if has_versions else 0)
        if max_keys is not None:
            stripes, self._limit = 1, max_keys
            self._most_slots = max_keys + max(1, max_keys // 8)
        else:
            assert memory_bytes is not None
            stripes = 1 << _STRIPE_BITS
            self._most_slots = max(64, memory_bytes // slot_bytes // stripes)
            self._limit = int(self._most_slots * _FULL_AT)
        self._bits = range_bits + (_STRIPE_BITS if stripes > 1 else 0)
        self._first_part = hash_range * stripes
        self._words = slot_bytes // 8
        first = min(_FIRST_SLOTS, self._most_slots)
        self._stripes = [_Stripe(self._empty_slots(first)) for _ in range(stripes)]

    @property
    def used(self) -> int:
        """Keys in the map."""
        return sum(stripe.used for stripe in self._stripes)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tables."""
        return sum(stripe.slots.nbytes for stripe in self._stripes)

    def add(self, rows: KeyRows, scratch: Scratch) -> bool:
        """Merge rows in. False if a stripe is full."""
        # Threads start at different stripes, or they would queue for the first one.
        parts = list(self._partitioned(rows, scratch))
        turn = threading.get_ident() % len(parts)
        for stripe, part in parts[turn:] + parts[:turn]:
            with stripe.lock:
                added = self._add_locked(stripe, part)
            if added < len(part):
                return False
        return True

    def add_in_order(self, rows: KeyRows) -> int:
        """Add rows until one finds the map full; how many were added (CMP-5's rule)."""
        (stripe,) = self._stripes
        with stripe.lock:
            return self._add_locked(stripe, rows)

    def superseded(self, rows: KeyRows, scratch: Scratch) -> Int64s:
        """The offsets among the rows for whose key the map has a newer record; in no order."""
        found = cast("Int64s", scratch.take("found", len(rows), np.int64))
        written = 0
        for stripe, part in self._partitioned(rows, scratch):
            slots, hashes, offsets, left = stripe.slots, part.hashes, part.offsets, found[written:]
            if part.versions is None:
                written += offset_map.probe(slots, hashes, offsets, 0, len(part), left)
            else:
                written += version_map.probe(
                    slots, hashes, offsets, part.versions, 0, len(part), left
                )
        return found[:written].copy()

    def held(self, rows: KeyRows, scratch: Scratch) -> Int64s:
        """The offsets in the map of records with a greater version than one of the rows, of the
        same key; sorted, each once. Only for rows that come after all that was added."""
        found = cast("Int64s", scratch.take("found", len(rows), np.int64))
        written = 0
        for stripe, part in self._partitioned(rows, scratch):
            assert part.versions is not None
            written += version_map.probe_higher(
                stripe.slots, part.hashes, part.versions, 0, len(part), found[written:]
            )
        return np.unique(found[:written])

    def offsets(self) -> Int64s:
        """The newest offset of every key, sorted."""
        result = np.empty(self.used, np.int64)
        written = 0
        for stripe in self._stripes:
            written += offset_map.extract_offsets(stripe.slots, result[written:])
        result.sort()
        return result

    def entries(self) -> Iterator[KeyRows]:
        """The rows of each stripe; well mixed, see `extract`."""
        for stripe in self._stripes:
            hashes = np.empty((stripe.used, 2), np.uint64)
            offsets = np.empty(stripe.used, np.int64)
            stride = _coprime_stride(stripe.used)
            if self._words == _WORDS:
                offset_map.extract(stripe.slots, stride, hashes, offsets)
                yield KeyRows(hashes, offsets)
            else:
                versions = np.empty(stripe.used, np.int64)
                version_map.extract(stripe.slots, stride, hashes, offsets, versions)
                yield KeyRows(hashes, offsets, versions)

    def _partitioned(self, rows: KeyRows, scratch: Scratch) -> Iterator[tuple[_Stripe, KeyRows]]:
        assert (rows.versions is None) == (self._words == _WORDS)
        if self._bits == 0:
            yield self._stripes[0], rows
            return
        count = len(rows)
        hashes = scratch.take("stripe_hashes", count, np.uint64, columns=2)
        offsets = scratch.take("stripe_offsets", count, np.int64)
        versions = None
        starts = np.empty((1 << self._bits) + 1, np.int64)
        offset_map.partition(rows.hashes, rows.offsets, count, self._bits, hashes, offsets, starts)
        if rows.versions is not None:
            versions = scratch.take("stripe_versions", count, np.int64)
            version_map.partition_versions(
                rows.hashes, rows.versions, count, self._bits, starts, versions
            )
        grouped = KeyRows(hashes, offsets, versions)
        bounds: list[int] = starts[self._first_part :].tolist()
        for place, stripe in enumerate(self._stripes):
            yield stripe, grouped.part(bounds[place], bounds[place + 1])

    def _add_locked(self, stripe: _Stripe, rows: KeyRows) -> int:
        row, end = 0, len(rows)
        while True:
            size = len(stripe.slots)
            is_grown = size >= self._most_slots
            limit = self._limit if is_grown else min(self._limit, int(size * _GROW_AT))
            if rows.versions is None:
                stripe.used, row = offset_map.insert(
                    stripe.slots, stripe.used, limit, rows.hashes, rows.offsets, row, end
                )
            else:
                stripe.used, row = version_map.insert(
                    stripe.slots,
                    stripe.used,
                    limit,
                    rows.hashes,
                    rows.offsets,
                    rows.versions,
                    row,
                    end,
                )
            if row == end or limit == self._limit:
                return int(row)
            grown = self._empty_slots(min(2 * size, self._most_slots))
            rehash = offset_map.rehash if rows.versions is None else version_map.rehash
            rehash(stripe.slots, grown)
            stripe.slots = grown

    def _empty_slots(self, count: int) -> Hashes:
        return np.zeros((count, self._words), np.uint64)


def _coprime_stride(count: int) -> int:
    """A step below `count`, near its golden section, that visits every row of `count`."""
    stride = max(1, int(count * 0.618))
    while math.gcd(stride, count) > 1:
        stride += 1
    return stride
