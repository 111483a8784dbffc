"""Rows of Arrow columns as records: the kernels against the builder, the partitioner, the twin."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from stratalog.admin.partitioner import partition_of_key
from stratalog.record.builder import encode_record
from stratalog.record.kernel import arrow_records as kernel

Text = bytes | None
Headers = tuple[tuple[bytes, Text], ...]
Row = tuple[int, Text, Text, Headers]


def column(values: list[Text]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ends = np.cumsum([0, *(len(value or b"") for value in values)]).astype(np.int32)
    raw = np.frombuffer(bytearray(b"".join(value or b"" for value in values)), np.uint8)
    return raw, ends, np.array([value is not None for value in values], np.bool_)


def random_text(random: Random) -> Text:
    size = random.choice((-1, 0, 1, 2, 3, 4, 5, 7, 8, 63, 64, 65, 130, 9000))
    return None if size < 0 else random.randbytes(size)


def random_row(random: Random) -> Row:
    headers = tuple(
        (random_text(random) or b"", random_text(random))
        for _ in range(random.choice((0, 0, 1, 3)))
    )
    time = random.choice((-1, 0, 1, 1_700_000_000_000, random.randrange(1 << 62)))
    return time, random_text(random), random_text(random), headers


def encoded(rows: list[Row], chosen: list[int], limit: int, room: int) -> list[list[bytes]]:
    """The records of each batch that the kernel fills, as bytes."""
    headers = [header for row in rows for header in row[3]]
    list_ends = np.cumsum([0, *(len(row[3]) for row in rows)]).astype(np.int32)
    names = column([name for name, _ in headers])[:2]
    times = np.array([row[0] for row in rows], np.int64)
    columns = (*column([row[1] for row in rows]), *column([row[2] for row in rows]), list_ends)
    places, out = np.array(chosen, np.int64), np.zeros(room, np.uint8)
    batches: list[list[bytes]] = []
    place = count = at = 0
    ends = [0]
    while True:
        base = times[places[place - count]]
        before = place
        place, count, at, needed = kernel.encode_records(
            *(places, place, times, *columns, *names, *column([c for _, c in headers])),
            *(int(base), count, at, limit, out),
        )
        assert place == len(places) or needed > 0
        ends.append(int(at))
        if place == len(places) or (count > 0 and at + needed > limit):
            batches.append([out[:at].tobytes()])
            count = at = 0
            if place == len(places):
                return batches
        elif place == before or at + needed > len(out):
            out = np.concatenate([out, np.zeros(int(needed) + len(out), np.uint8)])


@pytest.mark.requirement("SPK-6", "LOG-3")
@pytest.mark.parametrize("seed", range(12))
def test_records_are_the_builders(seed: int) -> None:
    random = Random(seed)
    rows = [random_row(random) for _ in range(random.randint(1, 40))]
    chosen = [place for place in range(len(rows)) if random.random() < 0.8] or [0]
    limit = random.choice((0, 200, 20_000, 1 << 20))
    expected: list[list[bytes]] = []
    batch = b""
    count = base = 0
    for place in chosen:
        time, key, value, headers = rows[place]
        base = time if count == 0 else base
        record = encode_record(count, time - base, key, value, headers)
        if count and len(batch) + len(record) > limit:
            expected.append([batch])
            batch, count, base = b"", 0, time
            record = encode_record(0, 0, key, value, headers)
        batch += record
        count += 1
    expected.append([batch])
    assert encoded(rows, chosen, limit, random.choice((1, 100, 1 << 16))) == expected


@pytest.mark.requirement("SPK-6")
def test_keys_are_placed_as_producers_place_them() -> None:
    random = Random(3)
    keys: list[Text] = [None, b"", b"21", b"foobar", *(random_text(random) for _ in range(200))]
    for partitions in (1, 3, 64, 1 << 30):
        placed = np.empty(len(keys), np.int64)
        kernel.place_keys(*column(keys), partitions, placed)
        expected = [-1 if key is None else partition_of_key(key, partitions) for key in keys]
        assert placed.tolist() == expected
