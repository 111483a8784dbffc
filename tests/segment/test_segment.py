"""A segment over real files: walking, finding, indexes that are missing, wrong or growing."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.record.builder import NewRecord, build_batch
from stratalog.segment import index_files, offset_index, time_index, txn_index
from stratalog.segment.index_builder import IndexState
from stratalog.segment.indexes import GrowingIndexes
from stratalog.segment.log_file import LogFile
from stratalog.segment.names import FileKind, FileState, file_name
from stratalog.segment.segment import Segment, TimestampOffset, open_segment
from stratalog.segment.segments import segments_of
from stratalog.segment.txn_index import AbortedTxn

FS = LocalFileSystem()
BASE = 500


def batch(offset: int, count: int = 3, timestamp: int = 1000, step: int = 1) -> bytes:
    records = [NewRecord(b"k", b"v" * 30, timestamp + i) for i in range(count)]
    deltas = [i * step for i in range(count)]
    return build_batch(records, base_offset=offset, offset_deltas=deltas)


def write(
    directory: Path, batches: list[bytes], *, interval: int = 100, base: int = BASE
) -> Segment:
    (directory / file_name(base, FileKind.LOG)).write_bytes(b"".join(batches))
    return open_segment(FS, str(directory), base, interval_bytes=interval, repair=True)


def index_file(directory: Path) -> Path:
    return directory / file_name(BASE, FileKind.OFFSET_INDEX)


def time_index_file(directory: Path) -> Path:
    return directory / file_name(BASE, FileKind.TIME_INDEX)


TEN = [batch(BASE + 10 * i, count=3, timestamp=1000 + 100 * i, step=2) for i in range(10)]
"""Ten batches of the offsets b, b+2, b+4 for b = 500, 510...; the rest are gaps."""


@pytest.mark.requirement("LOG-8", "LOG-10")
def test_find_gives_the_first_batch_that_reaches_an_offset(tmp_path: Path) -> None:
    segment = write(tmp_path, TEN)
    assert len(segment.indexes.entries()[0]) > 2
    for offset in range(BASE - 3, BASE + 95):
        found = segment.find(offset)
        expected = [BASE + 10 * i for i in range(10) if BASE + 10 * i + 4 >= offset]
        assert found is not None
        assert found.header.base_offset == expected[0]
    assert segment.find(BASE + 95) is None


@pytest.mark.requirement("RCV-4")
@pytest.mark.parametrize("damage", ["missing", "odd", "zeros", "short", "past", "wrong", "empty"])
def test_bad_indexes_are_rebuilt_and_written(tmp_path: Path, damage: str) -> None:
    write(tmp_path, TEN).indexes.retire()
    good = index_file(tmp_path).read_bytes(), time_index_file(tmp_path).read_bytes()
    assert len(good[0]) >= 32
    if damage == "missing":
        index_file(tmp_path).unlink()
    elif damage == "odd":
        index_file(tmp_path).write_bytes(good[0][:-3])
    elif damage == "zeros":
        time_index_file(tmp_path).write_bytes(bytes(24))
    elif damage == "short":
        time_index_file(tmp_path).write_bytes(good[1][:-12])
    elif damage == "past":
        index_file(tmp_path).write_bytes(offset_index.encode(BASE, *np.array([[501], [10**6]])))
    elif damage == "wrong":
        # A place that is no batch's start.
        content = offset_index.encode(BASE, *np.array([[BASE + 94], [int(len(b"".join(TEN)) - 7)]]))
        index_file(tmp_path).write_bytes(content)
    else:
        time_index_file(tmp_path).write_bytes(b"")
    segment = open_segment(FS, str(tmp_path), BASE, interval_bytes=100, repair=True)
    assert segment.max_timestamp() == (1902, BASE + 94)
    found = segment.find(BASE + 94)
    assert found is not None
    assert found.header.base_offset == BASE + 90
    assert (index_file(tmp_path).read_bytes(), time_index_file(tmp_path).read_bytes()) == good


def test_an_index_is_not_written_without_leave(tmp_path: Path) -> None:
    (tmp_path / file_name(BASE, FileKind.LOG)).write_bytes(b"".join(TEN))
    segment = open_segment(FS, str(tmp_path), BASE, interval_bytes=100)
    assert segment.max_timestamp() == (1902, BASE + 94)
    assert os.listdir(tmp_path) == [file_name(BASE, FileKind.LOG)]


def test_a_wrong_entry_in_the_middle_does_not_mislead(tmp_path: Path) -> None:
    """An index whose end fits, but one of whose entries points into the middle of a batch."""
    segment = write(tmp_path, TEN)
    offsets, _ = segment.indexes.entries()
    positions = offsets.positions.copy()
    positions[1] += 5
    index_file(tmp_path).write_bytes(offset_index.encode(BASE, offsets.offsets, positions))
    segment = open_segment(FS, str(tmp_path), BASE, interval_bytes=100)
    assert list(segment.indexes.entries()[0].positions) == list(positions)
    for offset in range(BASE, BASE + 95):
        found = segment.find(offset)
        assert found is not None
        assert found.header.base_offset + 4 >= offset
        assert found.header.base_offset - 6 <= offset


@pytest.mark.requirement("LOG-11")
def test_find_timestamp(tmp_path: Path) -> None:
    stamps = [50, 10, 90, 40, 90, 120]
    segment = write(tmp_path, [batch(BASE + 10 * i, timestamp=t) for i, t in enumerate(stamps)])
    records = [(t + k, BASE + 10 * i + k) for i, t in enumerate(stamps) for k in range(3)]
    for start in range(BASE, BASE + 60, 5):
        for target in range(130):
            expected = [TimestampOffset(t, o) for t, o in records if t >= target and o >= start]
            assert segment.find_timestamp(target, start) == (expected[0] if expected else None)


@pytest.mark.requirement("LOG-11")
def test_latest_record_is_the_first_of_the_largest_timestamp(tmp_path: Path) -> None:
    stamps = [50, 90, 40, 90, 60]
    segment = write(tmp_path, [batch(BASE + 10 * i, timestamp=t) for i, t in enumerate(stamps)])
    assert segment.latest_record(BASE) == TimestampOffset(92, BASE + 12)
    assert segment.latest_record(BASE + 12) == TimestampOffset(92, BASE + 12)
    assert segment.latest_record(BASE + 13) == TimestampOffset(92, BASE + 32)
    assert segment.latest_record(BASE + 33) == TimestampOffset(62, BASE + 42)
    assert segment.latest_record(BASE + 43) is None


def test_latest_record_when_the_latest_was_cleaned_away(tmp_path: Path) -> None:
    """An emptied batch keeps its max timestamp; the largest of the records that are left counts."""
    hollow = build_batch([], base_offset=BASE + 10, last_offset_delta=2, max_timestamp=5000)
    segment = write(tmp_path, [batch(BASE), hollow, batch(BASE + 20, timestamp=900)])
    assert segment.max_timestamp() == (5000, BASE + 12)
    assert segment.latest_record(BASE) == TimestampOffset(1002, BASE + 2)
    assert segment.find_timestamp(1003, BASE) is None


@pytest.mark.requirement("LOG-9")
def test_a_batch_larger_than_the_window_is_read_whole(tmp_path: Path) -> None:
    large = build_batch([NewRecord(b"k", b"x" * 100_000, 1)], base_offset=BASE + 1)
    segment = write(tmp_path, [batch(BASE, 1), large, batch(BASE + 2, 1)])
    offsets = [b.header.base_offset for b in segment.log.batches(0, segment.size_bytes, 50)]
    assert offsets == [BASE, BASE + 1, BASE + 2]
    assert [h.header.base_offset for h in segment.log.headers(0, segment.size_bytes, 61)] == offsets


def test_a_walk_stops_at_a_part_of_a_batch(tmp_path: Path) -> None:
    content = TEN[0] + TEN[1]
    for cut in range(len(content)):
        segment = write(tmp_path, [content[:cut]])
        whole = 0 if cut < len(TEN[0]) else 1
        assert len(list(segment.headers())) == whole
        assert len(list(segment.batches())) == whole


def test_nonsense_in_the_log_names_file_and_position(tmp_path: Path) -> None:
    segment = write(tmp_path, [TEN[0], b"\xff" * 100])
    for walk in (segment.headers, segment.batches):
        with pytest.raises(CorruptionError) as caught:
            list(walk())
        assert caught.value.file == str(tmp_path / file_name(BASE, FileKind.LOG))
        assert caught.value.position == len(TEN[0])
    assert not index_file(tmp_path).exists()
    found = segment.find(BASE + 3)
    assert found is not None
    assert found.header.base_offset == BASE


@pytest.mark.requirement("LOG-12")
def test_a_retired_segment_stays_readable_when_its_files_are_replaced(tmp_path: Path) -> None:
    old = write(tmp_path, TEN)
    old.indexes.retire()
    for name in os.listdir(tmp_path):
        os.rename(tmp_path / name, tmp_path / (name + ".deleted"))
    write(tmp_path, [batch(BASE, 1)])
    for name in os.listdir(tmp_path):
        if name.endswith(".deleted"):
            os.unlink(tmp_path / name)
    assert [b.header.base_offset for b in old.batches()] == [BASE + 10 * i for i in range(10)]
    found = old.find(BASE + 57)
    assert found is not None
    assert found.header.base_offset == BASE + 60
    assert old.max_timestamp() == (1902, BASE + 94)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors through /proc")
def test_the_last_holder_closes_the_file(tmp_path: Path) -> None:
    gc.collect()
    before = open_descriptors()
    segment: Segment | None = write(tmp_path, TEN)
    assert open_descriptors() == before + 1
    del segment
    gc.collect()
    assert open_descriptors() == before


def test_a_segment_in_the_middle_of_a_swap_is_loaded_at_once(tmp_path: Path) -> None:
    write(tmp_path, TEN).indexes.retire()
    for name in os.listdir(tmp_path):
        os.rename(tmp_path / name, tmp_path / (name + ".swap"))
    (tmp_path / file_name(BASE, FileKind.TXN_INDEX, FileState.SWAP)).write_bytes(
        txn_index.encode([AbortedTxn(1, BASE, BASE + 4, BASE + 5)])
    )
    segment = open_segment(FS, str(tmp_path), BASE, state=FileState.SWAP)
    for name in os.listdir(tmp_path):
        os.unlink(tmp_path / name)
    assert segment.aborted == (AbortedTxn(1, BASE, BASE + 4, BASE + 5),)
    assert segment.max_timestamp() == (1902, BASE + 94)


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(61, 300), st.integers(1, 9), st.sampled_from([-1, *range(1, 31)])),
        max_size=40,
    )
)
def test_growing_indexes_write_what_a_rebuild_makes(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int]]
) -> None:
    directory = str(tmp_path_factory.mktemp("growing"))
    growing = GrowingIndexes(
        FS, directory, IndexState(BASE, 200), offset_index.empty(BASE), time_index.empty(BASE)
    )
    position, offset = 0, BASE - 1
    rows = []
    for size, step, timestamp in steps:
        offset += step
        rows.append((position, size, offset, timestamp))
        position += size
    half = len(rows) // 2
    for row in rows[:half]:
        growing.append([row])
    growing.append(rows[half:])
    growing.finish()
    growing.close()
    offsets, times = index_files.load(FS, directory, BASE, position)
    in_memory = growing.entries()
    assert list(offsets.offsets) == list(in_memory[0].offsets)
    assert list(offsets.positions) == list(in_memory[0].positions)
    assert list(times.timestamps) == list(in_memory[1].timestamps)
    for target in range(BASE, offset + 2):
        assert growing.position_before(target) == offsets.position_before(target)
    for timestamp in range(-1, 32):
        assert growing.offset_before(timestamp) == times.offset_before(timestamp)


def segment_at(tmp_path: Path, base: int) -> Segment:
    path = tmp_path / file_name(base, FileKind.LOG)
    path.write_bytes(b"")
    return open_segment(FS, str(tmp_path), base)


@pytest.mark.requirement("LOG-8")
def test_the_segment_of_an_offset_is_found_by_base(tmp_path: Path) -> None:
    bases = [10, 20, 35, 100]
    made = {base: segment_at(tmp_path, base) for base in bases}
    segments = segments_of([made[35], made[10], made[100], made[20]])
    assert [s.base_offset for s in segments] == bases
    assert segments.active is made[100]
    assert segments.sealed == (made[10], made[20], made[35])
    for offset in range(120):
        below = [base for base in bases if base <= offset]
        assert segments.floor(offset) is (made[below[-1]] if below else None)
        expected = below[-1:] + [base for base in bases if base > offset]
        assert [s.base_offset for s in segments.from_offset(offset)] == expected
        assert segments.get(offset) is made.get(offset)
    assert [segments.end_of(slot, 777) for slot in range(4)] == [20, 35, 100, 777]


def test_changed_sets_leave_the_old_one_alone(tmp_path: Path) -> None:
    a, b, c, d = (segment_at(tmp_path, base) for base in (1, 2, 3, 4))
    segments = segments_of([a, b, c])
    assert segments.appended(d).bases == (1, 2, 3, 4)
    assert segments.replaced({1, 2}, [d]).bases == (3, 4)
    again = segment_at(tmp_path, 3)
    assert segments.with_active(again).active is again
    assert segments.items == (a, b, c)


def test_log_file_reads_short_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"abc")
    log = LogFile.open(FS, str(path), "update")
    assert bytes(log.read(1, 10)) == b"bc"
    log.write(b"XY", 2)
    assert log.size_bytes() == 4
    log.truncate(3)
    log.fsync()
    log.close()
    assert path.read_bytes() == b"abX"
