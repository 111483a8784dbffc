"""The three index formats: Kafka's own files, damage, lookups against the slow obvious way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptionError
from stratalog.segment import offset_index, time_index, txn_index
from stratalog.segment.names import FileKind, parse
from stratalog.segment.offset_index import MAX_RELATIVE_OFFSET
from stratalog.segment.txn_index import AbortedTxn

BASES = st.sampled_from([0, 1, 5_000_000_000, 2**63 - 1 - MAX_RELATIVE_OFFSET])
GROWING = st.lists(st.integers(1, MAX_RELATIVE_OFFSET), unique=True, max_size=40).map(sorted)


def column(values: list[int]) -> offset_index.Int64s:
    return np.array(values, np.int64)


@pytest.mark.requirement("LOG-1", "LOG-3")
def test_every_index_that_kafka_wrote_reads_and_writes_the_same(
    golden_dir: Path, corpus_dir: Path, count_cases: Callable[[str, int], None]
) -> None:
    seen = 0
    for root in (golden_dir, corpus_dir):
        for path in root.rglob("0*index*"):
            parsed = parse(path.name)
            assert parsed is not None
            data, base = path.read_bytes(), parsed.base_offset
            if parsed.kind is FileKind.OFFSET_INDEX:
                offsets = offset_index.decode(data, base)
                again = offset_index.encode(base, offsets.offsets, offsets.positions)
            elif parsed.kind is FileKind.TIME_INDEX:
                times = time_index.decode(data, base)
                again = time_index.encode(base, times.timestamps, times.offsets)
            else:
                again = txn_index.encode(txn_index.decode(data, base))
            assert again == data, path
            seen += 1
    assert seen > 6000
    count_cases("index files of Kafka read and written", seen)


@given(BASES, GROWING, st.integers(0, 5), st.data())
def test_offset_index_lookup(
    base: int, relative: list[int], padding: int, data: st.DataObject
) -> None:
    offsets = column([base + value for value in relative])
    positions = column([10 * slot + 7 for slot in range(len(relative))])
    content = offset_index.encode(base, offsets, positions) + bytes(8 * padding)
    index = offset_index.decode(content, base, log_size_bytes=10 * len(relative) + 8)
    assert list(index.offsets) == list(offsets)
    assert list(index.positions) == list(positions)
    target = base + data.draw(
        st.integers(0, MAX_RELATIVE_OFFSET) | st.sampled_from(relative or [0])
    )
    below = [int(p) for o, p in zip(offsets, positions, strict=True) if o <= target]
    assert index.position_before(target) == (below[-1] if below else 0)


@given(BASES, GROWING, st.integers(0, 5), st.data())
def test_time_index_lookup(base: int, times: list[int], padding: int, data: st.DataObject) -> None:
    offsets = column([base + slot // 2 for slot in range(len(times))])
    content = time_index.encode(base, column(times), offsets) + bytes(12 * padding)
    index = time_index.decode(content, base)
    assert list(index.timestamps) == times
    assert list(index.offsets) == list(offsets)
    assert index.last == ((times[-1], offsets[-1]) if times else (-1, base))
    target = data.draw(st.integers(-1, MAX_RELATIVE_OFFSET) | st.sampled_from(times or [0]))
    below = [int(o) for t, o in zip(times, offsets, strict=True) if t <= target]
    assert index.offset_before(target) == (below[-1] if below else base)


def test_a_preallocated_index_is_read_up_to_its_padding() -> None:
    """As a live Kafka leaves it: zeros to segment.index.bytes."""
    data = offset_index.encode(100, column([110]), column([4097])) + bytes(8 * 1000)
    assert len(offset_index.decode(data, 100)) == 1
    assert len(offset_index.decode(bytes(800), 100)) == 0
    times = time_index.encode(100, column([0, 5]), column([100, 101])) + bytes(12 * 1000)
    assert list(time_index.decode(times, 100).timestamps) == [0, 5]
    assert len(time_index.decode(bytes(1200), 100)) == 0


def entry(relative: int, position: int) -> bytes:
    return relative.to_bytes(4, "big", signed=True) + position.to_bytes(4, "big", signed=True)


@pytest.mark.requirement("RCV-4")
@pytest.mark.parametrize(
    ("data", "position"),
    [
        (b"\x01" * 7, None),
        (entry(5, 100) + entry(5, 200), 0),
        (entry(5, 100) + entry(6, 100), 0),
        (entry(-1, 100), 0),
        (entry(1, -100), 0),
        (entry(0, 0) + entry(6, 100), 0),
        (entry(5, 100) + entry(6, 1000), 8),
    ],
)
def test_damaged_offset_indexes_are_refused(data: bytes, position: int | None) -> None:
    with pytest.raises(CorruptionError) as caught:
        offset_index.decode(data, 0, log_size_bytes=1000)
    assert caught.value.position == position


def time_entry(timestamp: int, relative: int) -> bytes:
    return timestamp.to_bytes(8, "big", signed=True) + relative.to_bytes(4, "big", signed=True)


@pytest.mark.requirement("RCV-4")
@pytest.mark.parametrize(
    "data",
    [
        b"\x01" * 13,
        time_entry(5, 1) + time_entry(5, 2),
        time_entry(5, 3) + time_entry(6, 2),
        time_entry(-5, 1),
        time_entry(5, -1),
    ],
)
def test_damaged_time_indexes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        time_index.decode(data, 0)


def test_offsets_past_the_largest_are_refused() -> None:
    with pytest.raises(CorruptionError):
        offset_index.decode(entry(11, 5), 2**63 - 11)
    with pytest.raises(CorruptionError):
        time_index.decode(time_entry(5, 11), 2**63 - 11)


TXN = AbortedTxn(7, 3, 20, 21)


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (txn_index.encode([TXN])[:-1], None),
        (b"\x00\x01" + txn_index.encode([TXN])[2:], 0),
        (txn_index.encode([TXN, TXN]), 34),
        (txn_index.encode([AbortedTxn(7, 3, 9, 21)]), 0),
        (txn_index.encode([AbortedTxn(7, 30, 29, 31)]), 0),
        (txn_index.encode([AbortedTxn(7, -1, 29, 31)]), 0),
    ],
)
def test_damaged_transaction_indexes_are_refused(data: bytes, position: int | None) -> None:
    with pytest.raises(CorruptionError) as caught:
        txn_index.decode(data, 10)
    assert caught.value.position == position


def test_transaction_index() -> None:
    second = AbortedTxn(8, 15, 30, 25)
    data = txn_index.encode([TXN, second])
    assert len(data) == 68
    assert txn_index.decode(data, 10) == (TXN, second)
    assert txn_index.decode(b"", 10) == ()
    assert txn_index.aborted_between([TXN, second], 0, 3) == []
    assert txn_index.aborted_between([TXN, second], 0, 4) == [TXN]
    assert txn_index.aborted_between([TXN, second], 20, 99) == [TXN, second]
    assert txn_index.aborted_between([TXN, second], 21, 99) == [second]
    assert txn_index.aborted_between([TXN, second], 31, 99) == []


@given(st.binary(max_size=200), BASES)
def test_no_bytes_raise_anything_but_corruption(data: bytes, base: int) -> None:
    for decode in (offset_index.decode, time_index.decode, txn_index.decode):
        with suppress(CorruptionError):
            decode(data, base)


def test_random_bytes_are_not_taken_for_an_index() -> None:
    refused = 0
    random = Random(7)
    for _ in range(50):
        try:
            offset_index.decode(random.randbytes(80), 0)
        except CorruptionError:
            refused += 1
    assert refused >= 49
