"""Many records at once are placed and cut into batches as each alone would be."""

from __future__ import annotations

from random import Random

import pytest

from stratalog.admin.partitioner import partition_of_key
from stratalog.embedded.appending import batches_of, partitions_of
from stratalog.record.builder import NewRecord
from stratalog.record.kernel.compile import PLAIN_MICROSECONDS


@pytest.mark.parametrize("count", [1, 2, 7, 100])
@pytest.mark.parametrize("keys", [0, 1, 31, 32, 500])
def test_keys_lie_where_each_alone_would(count: int, keys: int) -> None:
    random = Random(count * 1000 + keys)
    given = [random.randbytes(random.choice((0, 1, 3, 4, 5, 8, 33))) for _ in range(keys)]
    assert partitions_of(given, count) == [partition_of_key(key, count) for key in given]
    assert partitions_of([b""] * keys, count) == [partition_of_key(b"", count)] * keys


def test_long_keys_are_no_work_for_python(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def runs_plain(cost: int) -> bool:
        counted.append(cost)
        return False

    monkeypatch.setattr("stratalog.embedded.appending.runs_plain", runs_plain)
    keys = [bytes(100_000)] * 40
    assert partitions_of(keys, 7) == [partition_of_key(keys[0], 7)] * 40
    assert [cost > PLAIN_MICROSECONDS for cost in counted] == [True]


def test_batches_are_full_but_never_over() -> None:
    random = Random(3)
    sizes = [random.choice((0, 10, 300, 5000)) for _ in range(400)]
    headers = ((b"name", b"x" * 20), (b"", None))
    records = [
        NewRecord(random.choice((None, b"k")), random.choice((None, b"v" * size)), None, extra)
        for size in sizes
        for extra in ((), headers)
    ]

    def size_bytes(low: int, high: int) -> int:
        of_headers = [len(n) + len(v or b"") + 8 for r in records[low:high] for n, v in r.headers]
        content = [len(r.key or b"") + len(r.value or b"") + 64 for r in records[low:high]]
        return sum(content) + sum(of_headers)

    room = 2000
    cuts = list(batches_of(records, room))
    assert [low for low, _ in cuts] == [0, *(high for _, high in cuts[:-1])]
    assert cuts[-1][1] == len(records)
    for low, high in cuts:
        assert high == low + 1 or size_bytes(low, high) <= room
        assert high == len(records) or size_bytes(low, high + 1) > room
    assert list(batches_of([], room)) == []
