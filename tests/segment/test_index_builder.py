from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptionError
from stratalog.segment import index_builder
from stratalog.segment.index_builder import IndexEntries, IndexState, add, extend, finish
from stratalog.segment.offset_index import MAX_RELATIVE_OFFSET, Int64s

Row = tuple[int, int, int, int]


@st.composite
def tables(draw: st.DrawFn) -> list[Row]:
    """Batches of a segment at base 1000: (position, size, last offset, max timestamp)."""
    rows: list[Row] = []
    position, offset = 0, 999
    for _ in range(draw(st.integers(0, 40))):
        size = draw(st.integers(61, 300))
        offset += draw(st.integers(1, 50))
        rows.append((position, size, offset, draw(st.integers(-1, 30))))
        position += size
    return rows


def columns(rows: list[Row]) -> list[Int64s]:
    table = np.array(rows, np.int64).reshape(len(rows), 4)
    return [table[:, slot] for slot in range(4)]


def naive(rows: list[Row], interval: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Kafka's LogSegment.recover and the closing entry, word for word."""
    entries: list[tuple[int, int]] = []
    times: list[tuple[int, int]] = []
    last_index_entry, valid_bytes = 0, 0
    largest, largest_offset = -1, -1
    for _, size, last_offset, timestamp in rows:
        if timestamp > largest:
            largest, largest_offset = timestamp, last_offset
        if valid_bytes - last_index_entry > interval:
            entries.append((last_offset, valid_bytes))
            if largest > (times[-1][0] if times else -1):
                times.append((largest, largest_offset))
            last_index_entry = valid_bytes
        valid_bytes += size
    if largest > (times[-1][0] if times else -1):
        times.append((largest, largest_offset))
    return entries, times


def listed(parts: list[IndexEntries]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    entries = [
        pair for p in parts for pair in zip(p.offsets.tolist(), p.positions.tolist(), strict=True)
    ]
    times = [
        pair
        for p in parts
        for pair in zip(p.timestamps.tolist(), p.time_offsets.tolist(), strict=True)
    ]
    return entries, times


@given(tables(), st.integers(0, 900), st.lists(st.integers(0, 40), max_size=5))
def test_extend_is_kafkas_rule_however_the_table_is_cut(
    rows: list[Row], interval: int, cuts: list[int]
) -> None:
    state = IndexState(1000, interval)
    parts: list[IndexEntries] = []
    edges = [0, *sorted(cuts), len(rows)]
    for start, end in pairwise(edges):
        state, made = extend(state, *columns(rows[start:end]))
        parts.append(made)
    state, made = finish(state)
    assert listed([*parts, made]) == naive(rows, interval)
    assert finish(state)[1] is index_builder.NO_ENTRIES


@given(tables(), st.integers(0, 900))
def test_one_at_a_time_is_the_same(rows: list[Row], interval: int) -> None:
    one = table = IndexState(1000, interval)
    entries: list[tuple[int, int]] = []
    times: list[tuple[int, int]] = []
    for position, _, last_offset, timestamp in rows:
        one, entry, timed = add(one, position, last_offset, timestamp)
        entries += [entry] if entry else []
        times += [timed] if timed else []
    table, made = extend(table, *columns(rows))
    assert one == table
    assert (entries, times) == listed([made])


def test_a_worked_example() -> None:
    rows = [(0, 100, 1009, 50), (100, 100, 1019, 40), (200, 100, 1029, 60), (300, 100, 1039, 60)]
    state, made = extend(IndexState(1000, 150), *columns(rows))
    assert listed([made]) == ([(1029, 200)], [(60, 1029)])
    assert made.encode(1000) == (
        bytes.fromhex("0000001d000000c8"),
        bytes.fromhex("000000000000003c0000001d"),
    )
    assert finish(state)[1] is index_builder.NO_ENTRIES


@pytest.mark.requirement("LOG-5")
@pytest.mark.parametrize("offset", [999, -5, 1000 + MAX_RELATIVE_OFFSET + 1, 2**63 - 1])
def test_an_offset_that_does_not_fit_is_refused(offset: int) -> None:
    with pytest.raises(CorruptionError, match="does not fit"):
        extend(IndexState(1000), *columns([(0, 100, 1000, 1), (100, 70, offset, 1)]))
    with pytest.raises(CorruptionError, match="does not fit"):
        add(IndexState(1000), 100, offset, 1)


def test_the_largest_offset_fits() -> None:
    _, made = extend(IndexState(7, 0), *columns([(5000, 100, 7 + MAX_RELATIVE_OFFSET, 1)]))
    assert made.encode(7)[0] == bytes.fromhex("7fffffff00001388")


def test_records_without_timestamps_make_no_time_entries() -> None:
    state, made = extend(IndexState(0, 0), *columns([(0, 70, 0, -1), (70, 70, 1, -1)]))
    assert len(made.offsets) == 1
    assert len(made.timestamps) == 0
    assert finish(state)[1] is index_builder.NO_ENTRIES
