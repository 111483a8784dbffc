"""The map's kernels against a dict."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest

from stratalog.record.kernel import offset_map
from tests.record.kernel.helpers import random_hashes, times


def random_rows(random: Random, count: int, keys: int):  # type: ignore[no-untyped-def]
    """`count` rows over at most `keys` hashes, some of which begin at the same slot."""
    known = random_hashes(random, keys)
    known[: keys // 2, 1] &= np.uint64(0xFFFFFFFF)  # all at home in the first slot
    known[: keys // 4, 1] = known[0, 1]  # and apart in the high word only
    chosen = np.array([random.randrange(keys) for _ in range(count)], np.int64)
    offsets = np.array([random.randrange(1 << 40) for _ in range(count)], np.int64)
    return known[chosen], offsets


def as_dict(hashes: np.ndarray, offsets: np.ndarray) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for (high, low), offset in zip(hashes.tolist(), offsets.tolist(), strict=True):
        found[high, low] = max(offset, found.get((high, low), -1))
    return found


def content(slots: np.ndarray) -> dict[tuple[int, int], int]:
    return {(high, low): value - 1 for high, low, value in slots.tolist() if value}


@pytest.mark.requirement("CMP-5")
def test_map_holds_what_a_dict_holds() -> None:
    random = Random(1)
    for _ in range(times(150)):
        count = random.randrange(60)
        hashes, offsets = random_rows(random, count, random.randrange(1, 40))
        expected = as_dict(hashes, offsets)
        slots = np.zeros((len(expected) + random.randrange(1, 40), 3), np.uint64)
        used, row = offset_map.insert(slots, 0, len(slots) - 1, hashes, offsets, 0, count)
        if len(expected) < len(slots) - 1:
            assert row == count
        if row < count:  # filled to the last key: the rest would have to be known ones
            continue
        assert used == len(expected)
        assert content(slots) == expected

        larger = np.zeros((2 * len(slots), 3), np.uint64)
        offset_map.rehash(slots, larger)
        assert content(larger) == expected

        for source in (slots, larger):
            found = np.empty(count, np.int64)
            written = offset_map.probe(source, hashes, offsets, 0, count, found)
            below = [
                offset
                for (high, low), offset in zip(hashes.tolist(), offsets.tolist(), strict=True)
                if offset < expected[high, low]
            ]
            assert found[:written].tolist() == below
            unknown = random_hashes(random, 5)
            assert offset_map.probe(source, unknown, np.zeros(5, np.int64), 0, 5, found) == 0

        out_hashes, out_offsets = np.empty((used, 2), np.uint64), np.empty(used, np.int64)
        offset_map.extract_offsets(slots, out_offsets)
        assert sorted(out_offsets.tolist()) == sorted(expected.values())
        for stride in (s for s in range(1, used + 1) if np.gcd(s, used) == 1):
            out_offsets[:] = -1
            offset_map.extract(slots, stride, out_hashes, out_offsets)
            assert as_dict(out_hashes, out_offsets) == expected


@pytest.mark.requirement("CMP-5")
def test_a_full_map_stops_even_a_key_that_it_knows() -> None:
    hashes = random_hashes(Random(2), 4)[[0, 1, 0, 2, 0, 3]]
    offsets = np.arange(6, dtype=np.int64)
    slots = np.zeros((9, 3), np.uint64)
    assert offset_map.insert(slots, 0, 3, hashes, offsets, 0, 6) == (3, 4)
    assert content(slots)[tuple(hashes[0].tolist())] == 2
    assert offset_map.insert(slots, 3, 3, hashes, offsets, 4, 6) == (3, 4)
    assert offset_map.insert(slots, 3, 4, hashes, offsets, 4, 6) == (4, 6)


def test_partition_groups_rows_by_their_top_bits_in_order() -> None:
    random = Random(3)
    for _ in range(times(60)):
        count, bits = random.randrange(80), random.randrange(1, 8)
        hashes = random_hashes(random, count)
        offsets = np.arange(count, dtype=np.int64)
        out_hashes, out_offsets = np.empty_like(hashes), np.empty_like(offsets)
        starts = np.empty((1 << bits) + 1, np.int64)
        offset_map.partition(hashes, offsets, count, bits, out_hashes, out_offsets, starts)
        expected: list[list[int]] = [[] for _ in range(1 << bits)]
        for row, (high, _) in enumerate(hashes.tolist()):
            expected[high >> (64 - bits)].append(row)
        bounds = starts.tolist()
        assert bounds[0] == 0
        parts = [out_offsets[a:b].tolist() for a, b in pairwise(bounds)]
        assert parts == expected
        assert out_hashes.tolist() == hashes[out_offsets].tolist()
