"""Records as Arrow columns: the kernels against the naive twin's records, however a walk is cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from stratalog.record.kernel import arrays
from stratalog.record.kernel import arrow_columns as kernel
from tests.naive import codecs
from tests.naive.random_batches import Features, Writer
from tests.naive.records import Batch, Record, build_v2
from tests.record.kernel.helpers import as_array, scanned, times

Row = tuple[int, int, "bytes | None", "bytes | None", tuple[tuple[bytes, "bytes | None"], ...]]
EVERYTHING = 1 << 62


def random_log(random: Random) -> list[Batch]:
    """Uncompressed batches of magic 2, with everything else that may occur."""
    features = replace(Features(), codecs=(codecs.NONE,), batches=random.randint(1, 25))
    writer = Writer(random, features)
    for _ in range(features.batches):
        writer.step()
    writer.finish()
    return [batch for segment in writer.segments for batch in segment.batches]


def columns_of(
    data: bytes,
    is_read: list[bool],
    *,
    most_rows: int = 1 << 10,
    limit_bytes: int = 1 << 30,
    start: int = 0,
    end: int = EVERYTHING,
    chosen: list[int] | None = None,
    without_nulls: bool = False,
) -> list[Row]:
    """All rows that the kernels find, decoded again from the columns."""
    raw, table = as_array(data), scanned(data)
    state = np.array([0, 0, 0, -1], np.int64)
    totals = np.zeros(kernel.TOTALS, np.int64)
    places = np.zeros((most_rows, kernel.PLACE_COLUMNS), np.int64)
    rows: list[Row] = []
    while state[kernel.NEXT_ROW] < len(table):
        found, error, _ = kernel.locate_records(
            *(raw, raw, table, np.array(is_read, np.bool_), len(table), start, end),
            *(np.array(chosen or [], np.int64), chosen is not None, without_nulls, limit_bytes),
            *(state, places, totals),
        )
        assert error == arrays.OK
        assert found > 0 or state[kernel.NEXT_ROW] == len(table)
        rows += decoded(raw, table, places[:found], totals)
    return rows


def decoded(
    raw: np.ndarray, table: np.ndarray, places: np.ndarray, totals: np.ndarray
) -> list[Row]:
    fields = []
    pairs = ((kernel.KEY_AT, kernel.KEY_BYTES), (kernel.VALUE_AT, kernel.VALUE_BYTES))
    for place, total in pairs:
        ends, bits = np.empty(len(places) + 1, np.int32), np.zeros(-(-len(places) // 8), np.uint8)
        out = np.full(int(totals[total]), 0xEE, np.uint8)
        nulls = kernel.copy_fields(raw, raw, table, places, place, ends, bits, out)
        assert ends[-1] == len(out), "all that was announced, and nothing else (A2)"
        fields.append(binaries(ends, bits, out))
        assert nulls == fields[-1].count(None)
    count, headers = len(places), int(totals[kernel.HEADER_COUNT])
    ends, bits = np.empty(count + 1, np.int32), np.zeros(-(-count // 8), np.uint8)
    name_ends, value_ends = np.empty((2, headers + 1), np.int32)
    value_bits = np.zeros(-(-headers // 8), np.uint8)
    names = np.empty(int(totals[kernel.NAME_BYTES]), np.uint8)
    values = np.empty(int(totals[kernel.HEADER_VALUE_BYTES]), np.uint8)
    null_lists, null_values = kernel.copy_headers(
        *(raw, raw, table, places, ends, bits, name_ends, names, value_ends, value_bits, values)
    )
    assert (ends[-1], name_ends[-1], value_ends[-1]) == (headers, len(names), len(values))
    all_bits = np.full(-(-headers // 8), 0xFF, np.uint8)
    named = binaries(name_ends, all_bits, names)
    contents = binaries(value_ends, value_bits, values)
    assert null_values == contents.count(None)
    lists = [
        tuple(zip(named[low:high], contents[low:high], strict=True)) for low, high in pairwise(ends)
    ]
    is_set = [bool(bits[slot >> 3] >> (slot & 7) & 1) for slot in range(count)]
    assert is_set == [len(found) > 0 for found in lists]
    assert null_lists == is_set.count(False)
    numbers = places[:, [kernel.OFFSET, kernel.TIMESTAMP]].tolist()
    return [
        (offset, timestamp, key, value, found)
        for (offset, timestamp), key, value, found in zip(numbers, *fields, lists, strict=True)
    ]


def binaries(ends: np.ndarray, bits: np.ndarray, out: np.ndarray) -> list[bytes | None]:
    assert ends[0] == 0
    return [
        out[ends[slot] : ends[slot + 1]].tobytes() if bits[slot >> 3] >> (slot & 7) & 1 else None
        for slot in range(len(ends) - 1)
    ]


def row_of(record: Record) -> Row:
    return record.offset, record.timestamp, record.key, record.value, record.headers


@pytest.mark.requirement("SPK-4")
def test_columns_are_those_of_the_naive_records(count_cases: Callable[[str, int], None]) -> None:
    cases = times(120)
    with_headers = cut = 0
    for seed in range(cases):
        random = Random(seed)
        batches = random_log(random)
        is_read = [random.random() < 0.9 for _ in batches]
        records = [
            record
            for batch, wanted in zip(batches, is_read, strict=True)
            for record in batch.records()
            if wanted
        ]
        last = batches[-1].last_offset + 1
        start, end = sorted(random.randint(0, last) for _ in range(2))
        if random.random() < 0.5:
            start, end = 0, EVERYTHING
        chosen = None
        if random.random() < 0.5:
            chosen = sorted(
                {r.offset for r in records if random.random() < 0.4} | {random.randint(0, last)}
            )
        without_nulls = random.random() < 0.3
        expected = [
            row_of(record)
            for record in records
            if start <= record.offset < end
            and (chosen is None or record.offset in chosen)
            and not (without_nulls and record.value is None)
        ]
        limit_bytes = random.choice([1, 60, 500, 1 << 30])
        found = columns_of(
            b"".join(batch.raw for batch in batches),
            is_read,
            most_rows=random.choice([1, 2, 7, 1 << 10]),
            limit_bytes=limit_bytes,
            start=start,
            end=end,
            chosen=chosen,
            without_nulls=without_nulls,
        )
        assert found == expected, seed
        with_headers += any(record.headers for record in records)
        cut += limit_bytes < 1 << 30
    assert with_headers > cases // 3 or cases < 20
    assert cut > cases // 3 or cases < 20
    count_cases("random logs as Arrow columns", cases)


@pytest.mark.requirement("SPK-4")
def test_damage_is_found_where_it_is_and_nothing_is_read_outside(
    count_cases: Callable[[str, int], None],
) -> None:
    """Every byte of a record changed to some others: an error, or as many fields as fit."""
    records = [
        Record(0, 10, b"key", b"value", ((b"name", b"content"), (b"", None))),
        Record(1, 11, None, None),
    ]
    sound = build_v2(records, base_offset=0, last_offset=1)
    raw_after = as_array(sound)
    cases = errors = 0
    for position in range(61, len(sound)):
        for value in (0, 1, 0x7F, 0x80, 0xFF, sound[position] ^ 2):
            raw = raw_after.copy()
            raw[position] = value
            table = scanned(sound)
            state = np.array([0, 0, 0, -1], np.int64)
            totals = np.zeros(kernel.TOTALS, np.int64)
            places = np.zeros((4, kernel.PLACE_COLUMNS), np.int64)
            found, error, at = kernel.locate_records(
                *(raw, raw, table, np.ones(1, np.bool_), 1, 0, 9, np.empty(0, np.int64), False),
                *(False, 1 << 20, state, places, totals),
            )
            cases += 1
            errors += error != arrays.OK
            assert error == arrays.OK or (error in arrays.DAMAGE and at == 0)
            for place in places[:found].tolist():
                for at_column, size_column in ((3, 4), (5, 6)):
                    field = place[at_column], place[at_column] + max(place[size_column], 0)
                    assert 61 <= field[0] <= field[1] <= len(sound)
            decoded(raw, table, places[:found], totals)
    assert errors > cases // 4
    count_cases("damaged records located", cases)
