"""Appending, rolling, reading: the log against a plain list of its records."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stratalog.base.clock import FixedClock
from stratalog.base.errors import (
    CorruptionError,
    InvalidRecordError,
    LogOfflineError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RecordTooLargeError,
    StorageIOError,
    UsageError,
)
from stratalog.log.opening import Unclean
from stratalog.log.partition_log import AppendResult, PartitionLog
from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.codec import Codec
from stratalog.record.control import ControlType
from stratalog.record.layout import TimestampType
from stratalog.segment import time_index
from stratalog.segment.names import FileKind, file_name
from stratalog.segment.segment import TimestampOffset
from tests.log.helpers import NOW, FailingFileSystem, contents, kafka_files, open_log, records, sent


def offsets_of(log: PartitionLog, start: int = 0) -> list[int]:
    return [record.offset for record in log.read_records(start)]


# -- offsets and files ---------------------------------------------------------------------------


@pytest.mark.requirement("LOG-2", "LOG-8")
def test_offsets_are_given_out_in_order(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    first = log.append_records(records(3))
    second = log.append(build_batch(records(2)) + build_batch(records(4), codec=Codec.ZSTD))
    assert first == AppendResult(0, 2, NOW + 2)
    assert second == AppendResult(3, 8, NOW + 3)
    assert log.log_end_offset == 9
    assert offsets_of(log) == list(range(9))
    assert [b.header.base_offset for b in log.read_batches(0)] == [0, 3, 5]
    assert all(batch.crc_ok() for batch in log.read_batches(0))
    log.close()
    assert offsets_of(open_log(tmp_path / "t-0", read_only=True)) == list(range(9))


@pytest.mark.requirement("LOG-1", "LOG-3")
def test_files_of_a_log_that_was_closed(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", index_interval_bytes=50)
    log.append_records(records(3))
    log.append_records(records(2, timestamp=NOW + 50))
    assert log.roll() == 5
    log.append_records(records(1))
    log.close()
    files = contents(tmp_path / "t-0")
    assert {name: len(content) for name, content in files.items() if "log" not in name} == {
        "00000000000000000000.index": 8,
        "00000000000000000000.timeindex": 12,
        "00000000000000000005.index": 0,
        "00000000000000000005.snapshot": 10,
        "00000000000000000005.timeindex": 12,
        "00000000000000000006.snapshot": 10,
        "leader-epoch-checkpoint": 8,
    }
    assert files["leader-epoch-checkpoint"] == b"0\n1\n0 0\n"


def test_a_log_may_begin_at_any_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", log_start_offset=70)
    assert (log.log_start_offset, log.log_end_offset) == (70, 70)
    assert log.append_records(records(2)).first_offset == 70
    log.close()
    assert min(kafka_files(tmp_path / "t-0")) == "00000000000000000070.index"


def test_what_is_not_there_is_not_opened(tmp_path: Path) -> None:
    refused: list[dict[str, Any]] = [{"create": False}, {"read_only": True}]
    for arguments in refused:
        with pytest.raises(UsageError, match="there is no log"):
            open_log(tmp_path / "t-0", **arguments)
    (tmp_path / "t-0").mkdir()
    with pytest.raises(UsageError, match="there is no log"):
        open_log(tmp_path / "t-0", read_only=True)
    assert os.listdir(tmp_path / "t-0") == []


@pytest.mark.requirement("LOG-3")
def test_what_a_producer_sent_is_stored_as_it_was(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_records(records(5))
    data = build_batch(records(4), codec=Codec.LZ4)
    log.append(data, leader_epoch=3)
    (_, batch) = log.read_batches(0)
    assert bytes(batch.data[:8]) == (5).to_bytes(8, "big")
    assert bytes(batch.data[12:16]) == (3).to_bytes(4, "big")
    assert bytes(batch.data[16:]) == data[16:]
    assert [(e.epoch, e.start_offset) for e in log.leader_epochs] == [(0, 0), (3, 5)]


def test_log_append_time(tmp_path: Path) -> None:
    clock = FixedClock(NOW + 77)
    log = open_log(tmp_path / "t-0", clock, timestamp_type=TimestampType.LOG_APPEND_TIME)
    result = log.append_records(records(2, timestamp=5))
    assert result == AppendResult(0, 1, NOW + 77, log_append_time_ms=NOW + 77)
    assert {record.timestamp for record in log.read_records(0)} == {NOW + 77}
    (batch,) = log.read_batches(0)
    assert batch.crc_ok()


def test_records_without_a_timestamp_get_the_clocks(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_records([NewRecord(b"a", b"1"), NewRecord(b"b", b"2", 5)])
    assert [record.timestamp for record in log.read_records(0)] == [NOW, 5]


@pytest.mark.requirement("LOG-9", "CMP-10")
def test_refused_appends_write_nothing(tmp_path: Path) -> None:
    log = open_log(
        tmp_path / "t-0", cleanup_policy=("compact",), max_message_bytes=500, segment_bytes=700
    )
    log.append_records(records(1))
    before = contents(tmp_path / "t-0")
    good = build_batch(records(2))
    with pytest.raises(InvalidRecordError):
        log.append_records([NewRecord(None, b"no key", NOW)])
    with pytest.raises(RecordTooLargeError):
        log.append_records(records(1, size=500))
    with pytest.raises(RecordTooLargeError):
        log.append(build_batch(records(1, size=400)) * 2)
    with pytest.raises(CorruptionError):
        log.append(good[:-1] + b"\xff")
    with pytest.raises(CorruptionError):
        log.append(good + good[:-1])
    with pytest.raises(InvalidRecordError):
        log.append_records([NewRecord(b"k", b"v", NOW + 10**10)])
    with pytest.raises(UsageError):
        log.append(b"")
    assert log.log_end_offset == 1
    assert contents(tmp_path / "t-0") == before
    assert log.append(good).first_offset == 1


def test_a_follower_keeps_offsets_and_never_goes_back(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_as_follower(build_batch(records(2), base_offset=10, leader_epoch=4))
    assert log.log_end_offset == 12
    for data in (
        build_batch(records(2), base_offset=11),
        build_batch(records(2), base_offset=30) + build_batch(records(2), base_offset=31),
        build_batch(records(2), base_offset=30)[:-1] + b"\xff",
        build_batch(records(2), base_offset=30)[:-1],
    ):
        with pytest.raises(CorruptionError):
            log.append_as_follower(data)
    with pytest.raises(UsageError):
        log.append_as_follower(b"")
    assert offsets_of(log) == [10, 11]
    assert [(e.epoch, e.start_offset) for e in log.leader_epochs] == [(4, 10)]


def test_a_read_only_or_closed_log_takes_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_records(records(2))
    log.close()
    log.close()
    for use in (lambda: log.append_records(records(1)), lambda: log.read(0), log.roll, log.flush):
        with pytest.raises(UsageError, match="closed"):
            use()
    with open_log(tmp_path / "t-0", read_only=True) as reader:
        for use in (lambda: reader.append_records(records(1)), reader.roll, reader.flush):
            with pytest.raises(UsageError, match="reading only"):
                use()
        assert offsets_of(reader) == [0, 1]


# -- rolling -------------------------------------------------------------------------------------


@pytest.mark.requirement("LOG-5")
def test_segments_stay_within_segment_bytes(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=600)
    for _ in range(40):
        log.append_records(records(2))
    sizes = [segment.size_bytes for segment in log.segments]
    batch_bytes = next(iter(log.read_batches(0))).header.size_bytes
    assert set(sizes[:-1]) == {600 // batch_bytes * batch_bytes}
    assert offsets_of(log) == list(range(80))
    log.close()
    again = open_log(tmp_path / "t-0", read_only=True)
    assert [segment.size_bytes for segment in again.segments] == sizes
    snapshots = [name for name in contents(tmp_path / "t-0") if name.endswith(".snapshot")]
    assert len(snapshots) == len(sizes)


@pytest.mark.requirement("LOG-5")
def test_a_full_index_rolls(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_index_bytes=40, index_interval_bytes=0)
    for i in range(10):
        log.append_records(records(1, timestamp=NOW - i))
    # Five offset entries fit, and three time entries of which one is kept free: the time index
    # has a single entry here, as time goes backwards.
    assert [segment.base_offset for segment in log.segments] == [0, 6]
    for i in range(10):
        log.append_records(records(1, timestamp=NOW + i))
    assert [segment.base_offset for segment in log.segments] == [0, 6, 11, 14, 17]


@pytest.mark.requirement("LOG-5")
def test_age_rolls_by_the_records_own_time(tmp_path: Path) -> None:
    clock = FixedClock(NOW)
    log = open_log(tmp_path / "t-0", clock, segment_ms=1000)
    log.append_records(records(1, timestamp=NOW - 5000))
    clock.time_ms += 10**9
    log.append_records(records(1, timestamp=NOW - 4000))
    assert len(log.segments) == 1
    log.append_records(records(1, timestamp=NOW - 3999))
    assert [segment.base_offset for segment in log.segments] == [0, 2]


@pytest.mark.requirement("LOG-5")
def test_an_offset_past_the_relative_range_rolls(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    far = 5 + 2**31
    log.append_as_follower(build_batch(records(1), base_offset=5))
    log.append_as_follower(build_batch(records(1), base_offset=far - 5))
    log.append_as_follower(build_batch(records(1), base_offset=far))
    assert [segment.base_offset for segment in log.segments] == [0, far - 5]
    log.close()
    assert offsets_of(open_log(tmp_path / "t-0", read_only=True)) == [5, far - 5, far]


@pytest.mark.requirement("RET-7")
def test_an_empty_active_segment_is_not_rolled(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    assert log.roll() == 0
    log.append_records(records(3))
    assert log.roll() == 3
    assert log.roll() == 3
    assert [segment.base_offset for segment in log.segments] == [0, 3]


# -- reading -------------------------------------------------------------------------------------


@pytest.mark.requirement("LOG-8", "LOG-9")
def test_a_chunk_has_whole_batches_and_grows_to_fit_one(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", max_message_bytes=10**6)
    for size in (10, 50_000, 10):
        log.append_records(records(1, size=size))
    assert [b.header.base_offset for b in log.read(0, 200).batches()] == [0]
    assert next(log.read(1, 200).batches()).header.base_offset == 1
    assert 50_000 < len(log.read(1, 200).data) <= 2 * 51_000
    assert [b.header.base_offset for b in log.read(0, 10**6).batches()] == [0, 1, 2]
    assert [b.header.base_offset for b in log.read_batches(0, 100)] == [0, 1, 2]
    assert len(log.read(3).data) == 0


@pytest.mark.requirement("LOG-10")
def test_reads_outside_the_log_are_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_records(records(5))
    log.advance_log_start(2)
    for offset in (-1, 1, 6):
        with pytest.raises(OffsetOutOfRangeError):
            log.read(offset)
        with pytest.raises(OffsetOutOfRangeError):
            log.read_batches(offset)
    assert offsets_of(log, 2) == [2, 3, 4]
    assert offsets_of(log, 5) == []
    with pytest.raises(OffsetOutOfRangeError):
        log.advance_log_start(6)
    log.advance_log_start(1)
    assert log.log_start_offset == 2


@pytest.mark.requirement("LOG-10")
def test_a_read_in_a_gap_gives_the_next_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=250)
    for offset in (3, 10, 40, 90):
        log.append_as_follower(build_batch(records(2), base_offset=offset))
    assert len(log.segments) == 2
    for offset in range(92):
        expected = [o for o in (3, 4, 10, 11, 40, 41, 90, 91) if o >= offset]
        assert offsets_of(log, offset) == expected


def test_a_read_may_end_at_an_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=250)
    for _ in range(6):
        log.append_records(records(3))
    for end in range(19):
        found = [batch.header.base_offset for batch in log.read_batches(0, end_offset=end)]
        assert found == [offset for offset in range(0, 18, 3) if offset < end]
        assert [r.offset for r in log.read_records(2, end_offset=end)] == list(range(2, end))


@pytest.mark.requirement("LOG-11")
def test_offsets_by_time(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=350, index_interval_bytes=1)
    stamps: list[int] = []
    for base in (500, 100, 900, 300, 900, 200, 700):
        stamps += [base, base + 1, base + 2]
        log.append_records(records(3, timestamp=base))
    assert len(log.segments) > 2
    for target in range(0, 1000, 7):
        expected = [TimestampOffset(t, o) for o, t in enumerate(stamps) if t >= target]
        assert log.offset_for_timestamp(target) == (expected[0] if expected else None)
    assert log.offset_of_max_timestamp() == TimestampOffset(902, 8)
    log.advance_log_start(9)
    assert log.offset_of_max_timestamp() == TimestampOffset(902, 14)
    assert log.offset_for_timestamp(0) == TimestampOffset(300, 9)
    log.advance_log_start(21)
    assert log.offset_of_max_timestamp() is None
    assert log.offset_for_timestamp(0) is None


@pytest.mark.requirement("LOG-12")
def test_a_view_keeps_what_it_saw(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    log = open_log(directory, segment_bytes=300)
    for i in range(5):
        log.append_records(records(2, timestamp=NOW + i))
    view = log.view
    for _ in range(5):
        log.append_records(records(2))
    gone = [segment.base_offset for segment in log.segments.sealed]
    assert len(gone) > 3
    log.replace_segments(gone)
    # Whoever swaps puts other files under the same names: an index that leads past the first batch.
    misleading = time_index.encode(0, np.array([NOW + 1, NOW + 2]), np.array([3, 3]))
    for path in directory.glob("*"):
        if path.name[:20].isdigit() and int(path.name[:20]) in gone:
            path.unlink()
    (directory / file_name(0, FileKind.OFFSET_INDEX)).write_bytes(b"")
    (directory / file_name(0, FileKind.TIME_INDEX)).write_bytes(misleading)
    log.close()
    assert [record.offset for record in view.read_records(0)] == list(range(10))
    assert view.offset_for_timestamp(NOW + 1) == TimestampOffset(NOW + 1, 1)
    assert [batch.header.base_offset for batch in view.read_batches(7)] == [6, 8]


@pytest.mark.requirement("LOG-12")
def test_readers_go_on_while_a_writer_appends_and_rolls(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=2000, index_interval_bytes=100)
    log.append_records(records(1))
    done = threading.Event()
    problems: list[str] = []

    def read() -> None:
        seen = 0
        while not done.is_set() or seen < 600:
            end = log.log_end_offset
            start = max(end - 40, 0)
            found = [record.offset for record in log.read_records(start)]
            seen = found[-1] + 1
            if found != list(range(start, seen)) or seen < end:
                problems.append(f"{start}..{end}: {found}")
                return

    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in readers:
        thread.start()
    while log.log_end_offset < 600 and not problems:
        log.append_records(records(1, timestamp=NOW + log.log_end_offset))
    done.set()
    for thread in readers:
        thread.join()
    assert problems == []
    assert len(log.segments) > 20


# -- producers -----------------------------------------------------------------------------------


def test_a_repeated_batch_is_answered_with_where_it_went(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_records(records(4))
    first = log.append(sent(7, 0))
    for sequence in (2, 4, 6, 8):
        log.append(sent(7, sequence))
    before = contents(tmp_path / "t-0")
    again = log.append(sent(7, 0))
    assert (first.first_offset, first.last_offset) == (4, 5)
    assert again == AppendResult(4, 5, first.max_timestamp, is_duplicate=True)
    assert contents(tmp_path / "t-0") == before
    log.append(sent(7, 10))
    with pytest.raises(OutOfOrderSequenceError):
        log.append(sent(7, 0))
    with pytest.raises(OutOfOrderSequenceError):
        log.append(sent(7, 13))
    log.append(sent(7, 0, epoch=1))
    with pytest.raises(ProducerFencedError):
        log.append(sent(7, 12))
    assert log.active_producers() == {7: (1, 17)}


def test_producers_survive_closing(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append(sent(7, 0))
    log.append(sent(8, 5, transactional=True))
    log.close()
    log = open_log(tmp_path / "t-0")
    assert log.active_producers() == {7: (0, 1), 8: (0, 3)}
    assert log.last_stable_offset == 2
    assert log.append(sent(7, 0)).is_duplicate
    with pytest.raises(OutOfOrderSequenceError):
        log.append(sent(7, 3))
    log.append(sent(7, 2))


def test_producers_are_forgotten_after_their_time(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append(sent(7, 0))
    log.append(sent(8, 0, transactional=True))
    log.close()
    clock = FixedClock(NOW + 1 + 1000)
    log = open_log(tmp_path / "t-0", clock, producer_expiration_ms=1000)
    assert log.active_producers() == {8: (0, 3)}
    assert log.append(sent(7, 55)).first_offset == 4


@pytest.mark.requirement("LOG-1", "CMP-14")
def test_transactions(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append(sent(1, 0, transactional=True))
    log.append(sent(2, 0, transactional=True))
    assert (log.last_stable_offset, log.log_end_offset) == (0, 4)
    abort = log.append_marker(ControlType.ABORT, producer_id=1, producer_epoch=0)
    assert (abort.first_offset, log.last_stable_offset) == (4, 2)
    log.append_marker(ControlType.COMMIT, producer_id=2, producer_epoch=0)
    assert log.last_stable_offset == 6
    log.append(sent(2, 2, transactional=True))
    log.roll()
    log.append_marker(ControlType.ABORT, producer_id=2, producer_epoch=0)
    aborted = log.view.aborted_between(0, 100)
    expected = [(1, 0, 4, 2), (2, 6, 8, 9)]

    def plain(entries: list[object]) -> list[tuple[int, ...]]:
        return [
            (e.producer_id, e.first_offset, e.last_offset, e.last_stable_offset)  # type: ignore[attr-defined]
            for e in entries
        ]

    assert plain(list(aborted)) == expected
    assert plain(list(log.view.aborted_between(5, 6))) == []
    assert plain(list(log.view.aborted_between(7, 8))) == expected[1:]
    assert offsets_of(log) == [0, 1, 2, 3, 6, 7]
    log.close()
    files = contents(tmp_path / "t-0")
    assert len(files["00000000000000000000.txnindex"]) == 34
    assert len(files["00000000000000000008.txnindex"]) == 34
    again = open_log(tmp_path / "t-0", read_only=True)
    assert plain(list(again.view.aborted_between(0, 100))) == expected
    assert again.last_stable_offset == 9


def test_data_outside_of_the_open_transaction_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append(sent(1, 0, transactional=True))
    with pytest.raises(InvalidRecordError):
        log.append(sent(1, 2))
    with pytest.raises(ProducerFencedError):
        log.append_marker(ControlType.ABORT, producer_id=1, producer_epoch=-1)


# -- a disk that fails ---------------------------------------------------------------------------


def test_a_failed_append_leaves_nothing_that_counts(tmp_path: Path) -> None:
    """Every change of a typical append and roll fails once; the log goes on as if never tried."""
    script = 0
    while True:
        directory = tmp_path / f"t-{script}"
        disk = FailingFileSystem()
        log = open_log(directory, filesystem=disk, segment_bytes=650, index_interval_bytes=100)
        log.append(sent(1, 0, transactional=True))
        log.append_records(records(6))
        before = log.view
        disk.actions.clear()
        disk.fail = lambda _action, _path, n=script, d=disk: len(d.actions) == n + 1  # type: ignore[misc]
        failed = False
        try:
            log.append_records(records(6, size=40))
        except StorageIOError as error:
            assert "on purpose" in str(error)
            assert log.log_end_offset == before.log_end_offset
            failed = True
        was_tried = len(disk.actions) > script
        disk.fail = lambda _action, _path: False
        if log.offline is not None:  # an fsync failed: only the disk knows what is there
            log.close()
            log = open_log(
                directory,
                filesystem=disk,
                segment_bytes=650,
                index_interval_bytes=100,
                unclean=Unclean(0),
            )
        first = log.append_records(records(6, size=40)).first_offset
        assert first == (8 if failed else 14)
        log.append_marker(ControlType.ABORT, producer_id=1, producer_epoch=0)
        end = log.log_end_offset
        assert offsets_of(log) == list(range(end - 1))
        log.close()
        again = open_log(directory, create=False)
        assert offsets_of(again) == list(range(end - 1))
        assert again.log_end_offset == end
        assert len(again.segments) == (2 if failed else 3)
        assert len(again.view.aborted_between(0, 100)) == 1
        again.close()
        script += 1
        if not was_tried:
            break
    assert script > 5


def test_a_roll_that_fails_leaves_no_segment(tmp_path: Path) -> None:
    """Otherwise the old segment would grow past the base offset of an empty new one."""
    disk = FailingFileSystem()
    log = open_log(tmp_path / "t-0", filesystem=disk)
    log.append_records(records(2))
    before = contents(tmp_path / "t-0")
    disk.fail = lambda action, path: action == "pwrite" and path.endswith("0.timeindex")
    with pytest.raises(StorageIOError, match="on purpose"):
        log.roll()
    assert set(contents(tmp_path / "t-0")) == set(before)
    disk.fail = lambda _action, _path: False
    log.append_records(records(2))
    del log
    assert offsets_of(open_log(tmp_path / "t-0")) == [0, 1, 2, 3]


def test_an_abort_that_fails_leaves_no_entry(tmp_path: Path) -> None:
    disk = FailingFileSystem()
    log = open_log(tmp_path / "t-0", filesystem=disk, index_interval_bytes=10)
    log.append(sent(1, 0, transactional=True))
    disk.fail = lambda action, path: action == "pwrite" and path.endswith("timeindex")
    with pytest.raises(StorageIOError, match="on purpose"):
        log.append_marker(ControlType.ABORT, producer_id=1, producer_epoch=0)
    disk.fail = lambda _action, _path: False
    assert log.last_stable_offset == 0
    log.append_marker(ControlType.COMMIT, producer_id=1, producer_epoch=0)
    log.close()
    assert open_log(tmp_path / "t-0", read_only=True).view.aborted_between(0, 9) == []


def test_when_cutting_off_fails_too_the_log_takes_no_more(tmp_path: Path) -> None:
    disk = FailingFileSystem()
    log = open_log(tmp_path / "t-0", filesystem=disk)
    log.append_records(records(2))
    disk.fail = lambda action, path: action in ("pwrite", "truncate") and path.endswith(".log")
    with pytest.raises(StorageIOError, match="on purpose"):
        log.append_records(records(2))
    disk.fail = lambda _action, _path: False
    with pytest.raises(StorageIOError, match="open the log again"):
        log.append_records(records(2))
    assert offsets_of(log) == [0, 1]
    del log
    again = open_log(tmp_path / "t-0", unclean=Unclean(0))
    assert offsets_of(again) == [0, 1]
    assert again.append_records(records(1)).first_offset == 2


@pytest.mark.requirement("LOG-7")
def test_flush_syncs_everything_that_was_appended(tmp_path: Path) -> None:
    disk = FailingFileSystem()
    log = open_log(tmp_path / "t-0", filesystem=disk, segment_bytes=400)
    log.append(sent(1, 0, transactional=True))
    for _ in range(4):
        log.append_records(records(3))
    log.append_marker(ControlType.ABORT, producer_id=1, producer_epoch=0)
    # What is rolled is synced by then; here all of it counts.
    assert log.recovery_point in (0, log.segments.active.base_offset)
    assert log.flush() == log.log_end_offset == log.recovery_point == 15
    synced = {os.path.basename(path) for action, path in disk.actions if action == "fsync"}
    # Indexes and snapshots that a crash took or tore are made anew from what is synced; so is the
    # active segment's transaction index.
    active = f"{log.segments.active.base_offset:020d}"
    files = kafka_files(tmp_path / "t-0")
    assert f"{active}.txnindex" in files
    expected = {name for name in files if name.endswith((".log", ".txnindex"))}
    assert len(expected) > 3
    assert expected - {f"{active}.txnindex"} <= synced
    assert {name for name in synced if name[:20] == active} == {f"{active}.log"}
    made = disk.actions.index(("create", str(tmp_path / "t-0" / f"{active}.log")))
    assert ("fsync_directory", str(tmp_path / "t-0")) in disk.actions[made:]

    disk.actions.clear()
    log.append_records(records(1))
    log.flush()
    synced = {os.path.basename(path) for action, path in disk.actions if action == "fsync"}
    assert synced == {f"{active}.log"}
    assert log.segments.active.base_offset == int(active)
    assert "fsync_directory" not in {action for action, _ in disk.actions}

    log.append(sent(2, 0, transactional=True))
    log.append_marker(ControlType.ABORT, producer_id=2, producer_epoch=0)
    log.flush()
    names = [at for at, (action, _) in enumerate(disk.actions) if action == "create"]
    assert names
    assert ("fsync_directory", str(tmp_path / "t-0")) in disk.actions[names[0] :]

    disk.fail = lambda action, path: action == "fsync" and path.endswith(".log")
    log.append_records(records(1))
    with pytest.raises(StorageIOError, match="on purpose"):
        log.flush()
    assert log.recovery_point == 19
    # What the system did with the pages is unknown: nothing more is written to this file.
    disk.fail = lambda _action, _path: False
    for use in (lambda: log.append_records(records(1)), log.flush, log.roll):
        with pytest.raises(LogOfflineError, match="a flush failed"):
            use()
    assert offsets_of(log)[-1] == 19


# -- any sequence of operations ------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 6), st.integers(0, 200)),
        st.tuples(st.just("roll"), st.just(0), st.just(0)),
        st.tuples(st.just("reopen"), st.just(0), st.just(0)),
        st.tuples(st.just("crash"), st.just(0), st.integers(0, 300)),
    ),
    max_size=25,
)


@pytest.mark.requirement("LOG-2", "LOG-8", "RCV-1")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.sampled_from([300, 700, 5000]), st.sampled_from([0, 150, 4096]))
def test_the_log_is_a_list_of_records(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, int, int]],
    segment_bytes: int,
    interval_bytes: int,
) -> None:
    """Append, roll, reopen, and crashes that cut off the active file's end, against a list."""
    directory = tmp_path_factory.mktemp("model") / "t-0"
    arguments: dict[str, Any] = {
        "segment_bytes": segment_bytes,
        "index_interval_bytes": interval_bytes,
    }
    log = open_log(directory, **arguments)
    model: list[tuple[int, int]] = []
    batches: list[int] = []
    for name, count, number in steps:
        if name == "append":
            log.append_records(records(count, size=5, timestamp=NOW + number))
            batches.append(len(model))
            model += [(len(model) + i, NOW + number + i) for i in range(count)]
        elif name == "roll":
            log.roll()
        elif name == "reopen":
            log.close()
            log = open_log(directory, **arguments)
        else:
            active = log.segments.active
            path = directory / f"{active.base_offset:020d}.log"
            keep = max(active.size_bytes - number, 0)
            ends = {
                b.header.next_offset for b in active.batches() if b.position + len(b.data) <= keep
            }
            end = max(ends, default=active.base_offset)
            os.truncate(path, keep)
            log = open_log(directory, unclean=Unclean(0), **arguments)
            model = model[:end]
            batches = [first for first in batches if first < end]
        assert log.log_end_offset == len(model)
    assert [(r.offset, r.timestamp) for r in log.read_records(0)] == model
    assert [b.header.base_offset for b in log.read_batches(0, 100)] == batches
    for offset in range(len(model)):
        (found, *_) = log.read(offset, 1).batches()
        assert found.header.base_offset <= offset <= found.header.last_offset
    for timestamp in range(NOW, NOW + 210, 30):
        expected = [TimestampOffset(t, o) for o, t in model if t >= timestamp]
        assert log.offset_for_timestamp(timestamp) == (expected[0] if expected else None)
    log.close()
    reader = open_log(directory, read_only=True, **arguments)
    assert [(r.offset, r.timestamp) for r in reader.read_records(0)] == model
