"""The map over its stripes: within its bounds, whatever the order and the threads."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

import numpy as np
import pytest

from stratalog.clean.chunk import Scratch
from stratalog.clean.job import SLOT_BYTES
from stratalog.clean.offset_map import VERSION_BYTES, KeyRows, OffsetMap
from stratalog.record.kernel.compile import JIT
from tests.record.kernel.helpers import random_hashes

ROWS = 20_000 if JIT else 1_000
LARGE = 1 << 30


def random_rows(seed: int, keys: int = ROWS // 3) -> tuple[Any, Any]:
    random = Random(seed)
    known = random_hashes(random, keys)
    chosen = np.array([random.randrange(keys) for _ in range(ROWS)], np.int64)
    return known[chosen], np.arange(ROWS, dtype=np.int64)


def last_of(hashes: Any, offsets: Any) -> dict[tuple[int, int], int]:
    return {tuple(h): o for h, o in zip(hashes.tolist(), offsets.tolist(), strict=True)}


@pytest.mark.requirement("CMP-5")
def test_a_map_grows_and_keeps_the_last_offset_of_each_key() -> None:
    hashes, offsets = random_rows(1)
    offset_map, scratch = OffsetMap(memory_bytes=LARGE), Scratch()
    for start in range(0, ROWS, 777):
        assert offset_map.add(KeyRows(hashes, offsets).part(start, start + 777), scratch)
    expected = last_of(hashes, offsets)
    assert offset_map.used == len(expected)
    assert offset_map.offsets().tolist() == sorted(expected.values())
    found = [
        (tuple(key), offset)
        for part in offset_map.entries()
        for key, offset in zip(part.hashes.tolist(), part.offsets.tolist(), strict=True)
    ]
    assert len(found) == len(expected)
    assert dict(found) == expected
    superseded = offset_map.superseded(KeyRows(hashes, offsets), scratch)
    live = set(expected.values())
    assert sorted(superseded.tolist()) == [o for o in offsets.tolist() if o not in live]
    assert offset_map.size_bytes <= 4 * SLOT_BYTES * len(expected) + 16 * 1024 * SLOT_BYTES


@pytest.mark.requirement("CMP-5")
def test_threads_and_order_make_no_difference() -> None:
    hashes, offsets = random_rows(2)
    offset_map = OffsetMap(memory_bytes=LARGE)
    parts = [slice(start, start + 500) for start in range(0, ROWS, 500)]
    Random(3).shuffle(parts)

    def work(mine: list[slice]) -> None:
        scratch = Scratch()
        for part in mine:
            assert offset_map.add(KeyRows(hashes[part], offsets[part]), scratch)

    threads = [threading.Thread(target=work, args=(parts[n::3],)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert offset_map.offsets().tolist() == sorted(last_of(hashes, offsets).values())


@pytest.mark.requirement("CMP-5", "CMP-7")
@pytest.mark.parametrize("memory_bytes", [1, 50_000, 100_000])
def test_a_map_keeps_to_its_memory(memory_bytes: int) -> None:
    hashes, offsets = random_rows(3)
    offset_map, scratch = OffsetMap(memory_bytes=memory_bytes), Scratch()
    smallest = 16 * 64 * SLOT_BYTES
    # Without the compiler there are too few rows to fill it.
    assert offset_map.add(KeyRows(hashes, offsets), scratch) != JIT
    assert offset_map.size_bytes <= max(memory_bytes, smallest)
    assert 0 < offset_map.used <= 0.9 * max(memory_bytes, smallest) / SLOT_BYTES


@pytest.mark.requirement("CMP-7")
@pytest.mark.parametrize("range_bits", [1, 3, 6])
def test_ranges_of_the_hash_share_the_keys(range_bits: int) -> None:
    hashes, offsets = random_rows(4)
    found: list[int] = []
    superseded: list[int] = []
    scratch = Scratch()
    for hash_range in range(1 << range_bits):
        offset_map = OffsetMap(memory_bytes=LARGE, range_bits=range_bits, hash_range=hash_range)
        assert offset_map.add(KeyRows(hashes, offsets), scratch)
        found += offset_map.offsets().tolist()
        superseded += offset_map.superseded(KeyRows(hashes, offsets), scratch).tolist()
    live = set(last_of(hashes, offsets).values())
    assert sorted(found) == sorted(live)
    assert sorted(superseded) == [o for o in offsets.tolist() if o not in live]


@pytest.mark.requirement("CMP-5")
@pytest.mark.parametrize("max_keys", [1, 2, 7, 8, 1000, 5000])
def test_a_limit_of_keys_is_kept_to_the_key(max_keys: int) -> None:
    hashes, offsets = random_rows(5)
    offset_map = OffsetMap(max_keys=max_keys)
    known: set[tuple[int, int]] = set()
    expected = ROWS
    for row, key in enumerate(map(tuple, hashes.tolist())):
        if len(known) == max_keys:
            expected = row
            break
        known.add(key)
    added = 0
    for start in range(0, ROWS, 700):
        rows = min(700, ROWS - start)
        now = offset_map.add_in_order(KeyRows(hashes, offsets).part(start, start + rows))
        added += now
        if now < rows:
            break
    assert added == expected
    assert offset_map.used == len(known)
    assert offset_map.offsets().tolist() == sorted(
        last_of(hashes[:added], offsets[:added]).values()
    )


# ---------------------------------------------------------------- with versions


def versioned_rows(seed: int) -> KeyRows:
    hashes, offsets = random_rows(seed)
    random = Random(seed)
    of_rows = np.array([random.randrange(-50, 50) for _ in range(ROWS)], np.int64)
    return KeyRows(hashes, offsets, of_rows)


def newest_of(rows: KeyRows) -> dict[tuple[int, int], tuple[int, int]]:
    found: dict[tuple[int, int], tuple[int, int]] = {}
    assert rows.versions is not None
    columns = rows.hashes.tolist(), rows.versions.tolist(), rows.offsets.tolist()
    for key, version, offset in zip(*columns, strict=True):
        mine = version, offset
        found[tuple(key)] = max(mine, found.get(tuple(key), mine))
    return found


@pytest.mark.requirement("CMP-5", "CMP-7", "CMP-17")
@pytest.mark.parametrize("range_bits", [0, 3])
def test_a_map_of_versions_keeps_the_highest_of_each_key(range_bits: int) -> None:
    rows, scratch = versioned_rows(6), Scratch()
    expected = newest_of(rows)
    live = {offset for _, offset in expected.values()}
    offsets: list[int] = []
    superseded: list[int] = []
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for hash_range in range(1 << range_bits):
        offset_map = OffsetMap(
            memory_bytes=LARGE, range_bits=range_bits, hash_range=hash_range, has_versions=True
        )
        starts = list(range(0, ROWS, 777))
        Random(hash_range).shuffle(starts)
        for start in starts:
            assert offset_map.add(rows.part(start, start + 777), scratch)
        offsets += offset_map.offsets().tolist()
        superseded += offset_map.superseded(rows, scratch).tolist()
        for part in offset_map.entries():
            found.update(newest_of(part))
    assert found == expected
    assert sorted(offsets) == sorted(live)
    assert sorted(superseded) == [o for o in rows.offsets.tolist() if o not in live]


@pytest.mark.requirement("CMP-7", "CMP-18")
@pytest.mark.parametrize("range_bits", [0, 3])
def test_a_map_of_versions_names_what_later_rows_would_lose_to(range_bits: int) -> None:
    """The first rows are mapped, the last come later; some keys are among one of them alone."""
    rows, scratch = versioned_rows(8), Scratch()
    earlier, later = rows.part(0, ROWS // 5), rows.part(ROWS - ROWS // 5)
    assert later.versions is not None
    newest = newest_of(earlier)
    expected = set()
    for key, version in zip(later.hashes.tolist(), later.versions.tolist(), strict=True):
        if tuple(key) in newest and version < newest[tuple(key)][0]:
            expected.add(newest[tuple(key)][1])
    held: list[int] = []
    for hash_range in range(1 << range_bits):
        offset_map = OffsetMap(
            memory_bytes=LARGE, range_bits=range_bits, hash_range=hash_range, has_versions=True
        )
        assert offset_map.add(earlier, scratch)
        found = offset_map.held(later, scratch).tolist()
        assert found == sorted(set(found))
        held += found
    assert 0 < len(expected) < len(newest)
    assert sorted(held) == sorted(expected)


@pytest.mark.requirement("CMP-5", "CMP-7", "CMP-17")
@pytest.mark.parametrize("memory_bytes", [1, 50_000, 100_000])
def test_a_map_of_versions_keeps_to_its_memory(memory_bytes: int) -> None:
    rows, slot_bytes = versioned_rows(7), SLOT_BYTES + VERSION_BYTES
    offset_map = OffsetMap(memory_bytes=memory_bytes, has_versions=True)
    smallest = 16 * 64 * slot_bytes
    assert offset_map.add(rows, Scratch()) != JIT
    assert offset_map.size_bytes <= max(memory_bytes, smallest)
    assert 0 < offset_map.used <= 0.9 * max(memory_bytes, smallest) / slot_bytes
