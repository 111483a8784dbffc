"""Finding what is whole in a damaged log file."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from stratalog.log.mending import BASE, LAST, POSITION, SIZE, follow_one_another, plan_mending
from stratalog.record.builder import NewRecord, build_batch
from stratalog.segment.log_file import LogFile
from stratalog.segment.names import MAX_OFFSET
from tests.admin.helpers import DISK

pytestmark = pytest.mark.requirement("RCV-7")


def batch(offset: int, value: bytes = b"v" * 50, count: int = 2) -> bytes:
    data = bytearray(build_batch([NewRecord(b"k", value, 0) for _ in range(count)]))
    data[:8] = offset.to_bytes(8, "big")
    return bytes(data)


def kept(tmp_path: Path, data: bytes, base: int = 0, limit: int = MAX_OFFSET) -> list[int]:
    """The base offsets of what is kept of a file."""
    path = tmp_path / "x.log"
    path.write_bytes(data)
    log = LogFile.open(DISK, str(path))
    mending = plan_mending(log, base, len(data), limit)
    covered = sum(gap.size_bytes for gap in mending.gaps) + int(mending.kept[:, SIZE].sum())
    assert covered == len(data)
    for row in mending.kept.tolist():
        assert data[row[POSITION] : row[POSITION] + 8] == row[BASE].to_bytes(8, "big")
    return [int(offset) for offset in mending.kept[:, BASE]]


def hit(data: bytes, at: int, bit: int = 1) -> bytes:
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


def test_a_length_that_says_two_batches_costs_only_its_own(tmp_path: Path) -> None:
    made = [batch(0), batch(2), batch(4), batch(6)]
    size = len(made[0])
    longer = bytearray(b"".join(made))
    longer[8:12] = (2 * size - 12).to_bytes(4, "big")
    assert kept(tmp_path, bytes(longer)) == [2, 4, 6]
    longer[8:12] = (4 * size - 12).to_bytes(4, "big")  # exactly to the end of the file
    assert kept(tmp_path, bytes(longer)) == [2, 4, 6]
    longer[8:12] = (1 << 29).to_bytes(4, "big")
    assert kept(tmp_path, bytes(longer)) == [2, 4, 6]


def test_a_batch_inside_of_a_value_is_none_of_this_log(tmp_path: Path) -> None:
    outer = batch(2, value=batch(3))
    data = batch(0) + hit(outer, 25) + batch(6)
    assert kept(tmp_path, data) == [0, 6]
    assert kept(tmp_path, batch(0) + hit(outer, 25)) == [0]


@pytest.mark.parametrize("junk", [b"", b"\0" * 5000, bytes(range(256)) * 30, b"\2" * 4000])
def test_batches_behind_nonsense_are_found(tmp_path: Path, junk: bytes) -> None:
    assert kept(tmp_path, junk + batch(4) + junk + batch(9) + junk) == [4, 9]


def test_a_window_of_the_search_may_end_inside_of_a_batch(tmp_path: Path) -> None:
    for size in range((1 << 20) - 70, (1 << 20) + 5, 7):
        assert kept(tmp_path, b"\xff" * size + batch(4)) == [4]


def test_offsets_stay_in_their_segment(tmp_path: Path) -> None:
    data = batch(10) + batch(12) + batch(14)
    assert kept(tmp_path, data, base=10, limit=14) == [10, 12]
    assert kept(tmp_path, data, base=12, limit=16) == [12, 14]
    assert kept(tmp_path, batch(10) + batch(1 << 40), base=10) == [10]


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ([0, 2, 1000, 6, 8], [0, 2, 6, 8]),  # too large: it, not those behind
        ([0, 2, 1, 6, 8], [0, 2, 6, 8]),
        ([0, 2, 4, 9, 8], [0, 2, 4, 8]),  # two that cannot both be right: no gap wins
        ([0, 2, 4, 6, 5], [0, 2, 4, 6]),
        ([5, 2, 4, 6], [2, 4, 6]),
        ([0, 0, 0, 2], [0, 2]),
    ],
)
def test_of_wrong_offsets_the_fewest_go(
    tmp_path: Path, offsets: list[int], expected: list[int]
) -> None:
    assert kept(tmp_path, b"".join(map(batch, offsets))) == expected


def test_the_longest_row_of_all(count_cases: Callable[[str, int], None]) -> None:
    """Against every subset of small tables."""
    rng = random.Random(1)
    for _ in range(300):
        bases = [rng.randrange(12) for _ in range(rng.randrange(1, 8))]
        lasts = [base + rng.randrange(3) for base in bases]
        table = np.zeros((len(bases), 5), np.int64)
        table[:, BASE], table[:, LAST] = bases, lasts
        rows = follow_one_another(table).tolist()
        assert all(bases[b] > lasts[a] for a, b in pairwise(rows))
        assert rows == sorted(set(rows))
        best = 0
        for chosen in range(1 << len(bases)):
            picks = [slot for slot in range(len(bases)) if chosen >> slot & 1]
            if all(bases[b] > lasts[a] for a, b in pairwise(picks)):
                best = max(best, len(picks))
        assert len(rows) == best
    count_cases("tables of wrong offsets", 300)
