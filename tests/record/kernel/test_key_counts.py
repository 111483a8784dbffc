"""Sizes of records and sums by key hash, against a dict and the records themselves."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.kernel import arrays, key_counts, scan

EMPTY = np.empty(0, np.int64)


def _map(slots: int) -> np.ndarray:
    return np.zeros((slots, 5), np.uint64)


def _rows(slots: np.ndarray) -> dict[tuple[int, int], tuple[int, int, int]]:
    return {(row[0], row[1]): tuple(row[2:]) for row in slots[slots[:, 2] > 0].tolist()}


@pytest.mark.requirement("CLN-10")
def test_sums_are_those_of_a_dict() -> None:
    random = Random(5)
    hashes = np.array(
        [[random.randrange(3), random.randrange(40) << 58] for _ in range(300)], np.uint64
    )
    offsets = np.array(random.sample(range(10_000), 300), np.int64)
    sizes = np.array([random.randrange(1, 500) for _ in range(300)], np.int64)
    expected: dict[tuple[int, int], tuple[int, int, int]] = {}
    for (high, low), offset, size in zip(
        hashes.tolist(), offsets.tolist(), sizes.tolist(), strict=True
    ):
        count, total, first = expected.get((high, low), (0, 0, offset))
        expected[high, low] = (count + 1, total + size, min(first, offset))
    slots, used, row = _map(16), 0, 0
    grown = 0
    while row < 300:
        used, row = key_counts.count_keys(
            slots, used, len(slots) * 3 // 4, hashes, offsets, sizes, row
        )
        if row < 300:
            assert used == len(slots) * 3 // 4
            larger = _map(2 * len(slots))
            key_counts.rehash(slots, larger)
            assert _rows(larger) == _rows(slots)
            slots, grown = larger, grown + 1
    assert (used, _rows(slots)) == (len(expected), expected)
    assert grown >= 2


def _scanned(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    raw = np.frombuffer(bytearray(data), np.uint8)
    table = np.zeros(8, arrays.BATCH)
    rows, *_ = scan.scan_batches(raw, len(raw), -1, -1, 1 << 20, table)
    return raw, table[: int(rows)]


@pytest.mark.requirement("CLN-10")
def test_sizes_are_those_of_the_records_that_are_asked_for() -> None:
    values = [b"", b"v" * 10, b"w" * 300, None, b"x"]
    data = b"".join(
        build_batch(
            [
                NewRecord(b"key", value, place, ((b"h", b"i"),))
                for place, value in enumerate(values)
            ],
            base_offset=base,
        )
        for base in (10, 20, 30)
    )
    raw, table = _scanned(data)
    sizes = [
        len(build_batch([NewRecord(b"key", value, 0, ((b"h", b"i"),))])) - 61 for value in values
    ]
    wanted = {10: sizes[0], 12: sizes[2], 13: sizes[3], 34: sizes[4]}
    asked = np.array([3, *wanted, 99], np.int64)
    found = np.zeros(len(asked), np.int64)
    error, _ = key_counts.record_sizes(raw, raw, table, 0, len(table), asked, found)
    assert (error, found.tolist()) == (arrays.OK, [0, *wanted.values(), 0])
    found[:] = 0
    key_counts.record_sizes(raw, raw, table, 1, 3, asked, found)
    assert found.tolist() == [0, 0, 0, 0, sizes[4], 0]
    assert key_counts.record_sizes(raw, raw, table, 0, 3, EMPTY, EMPTY)[0] == arrays.OK


@pytest.mark.requirement("CLN-10")
@pytest.mark.parametrize(
    "bytes_there",
    [b"\xff" * 11, b"\x7f", b"\x00", b"\x02\x00\xff", b"\x04\x00\x00\xff", b"\x06\x00\x00\x80"],
    ids=["endless length", "length past the end", "no length", "no time", "no delta", "half delta"],
)
def test_what_is_no_record_is_told(bytes_there: bytes) -> None:
    data = bytearray(build_batch([NewRecord(b"key", b"v" * 40, 0)] * 2, base_offset=5))
    data[61 : 61 + len(bytes_there)] = bytes_there
    if bytes_there[-1] != 0x80:
        data[61 + len(bytes_there) :] = b"\xff" * (len(data) - 61 - len(bytes_there))
    raw = np.frombuffer(data, np.uint8)
    table = np.zeros(1, arrays.BATCH)
    scan.scan_batches(raw, len(raw), -1, 1 << 62, 1 << 20, table)
    error, position = key_counts.record_sizes(
        raw, raw, table, 0, 1, np.array([6], np.int64), np.zeros(1, np.int64)
    )
    assert (error, position) == (arrays.BAD_RECORD, 0)
