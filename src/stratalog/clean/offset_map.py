"""The map from key hash to last offset, shared by the threads of one clean, within a bound.

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
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from stratalog.clean.chunk import Int64s, Scratch
from stratalog.clean.job import SLOT_BYTES
from stratalog.record.kernel import offset_map as kernels

Hashes = npt.NDArray[np.uint64]

_STRIPE_BITS = 4
_FIRST_SLOTS = 1 << 10
_GROW_AT = 0.75
_FULL_AT = 0.9
"""Load factor of a stripe at its full size: Kafka's default (CMP-5)."""


@dataclass(slots=True)
class _Stripe:
    """One table. Its lock guards the rest."""

    slots: Hashes
    used: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class OffsetMap:
    """Key hash -> largest offset. Threads may add concurrently; reading waits for all adding."""

    def __init__(
        self,
        *,
        memory_bytes: int | None = None,
        max_keys: int | None = None,
        range_bits: int = 0,
        hash_range: int = 0,
    ):
        """Bounded by `memory_bytes`, or in order and by exactly `max_keys` (`add_in_order`)."""
        if max_keys is not None:
            stripes, self._limit = 1, max_keys
            self._most_slots = max_keys + max(1, max_keys // 8)
        else:
            assert memory_bytes is not None
            stripes = 1 << _STRIPE_BITS
            self._most_slots = max(64, memory_bytes // SLOT_BYTES // stripes)
            self._limit = int(self._most_slots * _FULL_AT)
        self._bits = range_bits + (_STRIPE_BITS if stripes > 1 else 0)
        self._first_part = hash_range * stripes
        first = min(_FIRST_SLOTS, self._most_slots)
        self._stripes = [_Stripe(np.zeros((first, 3), np.uint64)) for _ in range(stripes)]

    @property
    def used(self) -> int:
        """Keys in the map."""
        return sum(stripe.used for stripe in self._stripes)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tables."""
        return sum(stripe.slots.nbytes for stripe in self._stripes)

    def add(self, hashes: Hashes, offsets: Int64s, scratch: Scratch) -> bool:
        """Merge rows in: hashes uint64[n, 2], offsets int64[n]. False if a stripe is full."""
        parts = self._partitioned(hashes, offsets, scratch)
        # Threads start at different stripes, or they would queue for the first one.
        stripes = list(parts)
        turn = threading.get_ident() % len(stripes)
        for stripe, part_hashes, part_offsets in stripes[turn:] + stripes[:turn]:
            with stripe.lock:
                added = self._add_locked(stripe, part_hashes, part_offsets)
            if added < len(part_offsets):
                return False
        return True

    def add_in_order(self, hashes: Hashes, offsets: Int64s) -> int:
        """Add rows until one finds the map full; how many were added (CMP-5's rule)."""
        (stripe,) = self._stripes
        with stripe.lock:
            return self._add_locked(stripe, hashes, offsets)

    def superseded(self, hashes: Hashes, offsets: Int64s, scratch: Scratch) -> Int64s:
        """The offsets among the rows whose key the map has at a larger offset; in no order."""
        found = cast("Int64s", scratch.take("found", len(offsets), np.int64))
        written = 0
        for stripe, part_hashes, part_offsets in self._partitioned(hashes, offsets, scratch):
            written += kernels.probe(
                stripe.slots, part_hashes, part_offsets, 0, len(part_offsets), found[written:]
            )
        return found[:written].copy()

    def offsets(self) -> Int64s:
        """The last offset of every key, sorted."""
        result = np.empty(self.used, np.int64)
        written = 0
        for stripe in self._stripes:
            written += kernels.extract_offsets(stripe.slots, result[written:])
        result.sort()
        return result

    def entries(self) -> Iterator[tuple[Hashes, Int64s]]:
        """(hashes uint64[n, 2], offsets int64[n]) of each stripe; well mixed, see `extract`."""
        for stripe in self._stripes:
            hashes = np.empty((stripe.used, 2), np.uint64)
            offsets = np.empty(stripe.used, np.int64)
            kernels.extract(stripe.slots, _coprime_stride(stripe.used), hashes, offsets)
            yield hashes, offsets

    def _partitioned(
        self, hashes: Hashes, offsets: Int64s, scratch: Scratch
    ) -> Iterator[tuple[_Stripe, Hashes, Int64s]]:
        if self._bits == 0:
            yield self._stripes[0], hashes, offsets
            return
        count = len(offsets)
        by_hash = scratch.take("stripe_hashes", count, np.uint64, columns=2)
        by_offset = scratch.take("stripe_offsets", count, np.int64)
        starts = np.empty((1 << self._bits) + 1, np.int64)
        kernels.partition(hashes, offsets, count, self._bits, by_hash, by_offset, starts)
        bounds: list[int] = starts[self._first_part :].tolist()
        for place, stripe in enumerate(self._stripes):
            start, end = bounds[place], bounds[place + 1]
            yield stripe, by_hash[start:end], by_offset[start:end]

    def _add_locked(self, stripe: _Stripe, hashes: Hashes, offsets: Int64s) -> int:
        row = 0
        while True:
            size = len(stripe.slots)
            is_grown = size >= self._most_slots
            limit = self._limit if is_grown else min(self._limit, int(size * _GROW_AT))
            stripe.used, row = kernels.insert(
                stripe.slots, stripe.used, limit, hashes, offsets, row, len(offsets)
            )
            if row == len(offsets) or limit == self._limit:
                return int(row)
            grown: Any = np.zeros((min(2 * size, self._most_slots), 3), np.uint64)
            kernels.rehash(stripe.slots, grown)
            stripe.slots = grown


def _coprime_stride(count: int) -> int:
    """A step below `count`, near its golden section, that visits every row of `count`."""
    stride = max(1, int(count * 0.618))
    while math.gcd(stride, count) > 1:
        stride += 1
    return stride
