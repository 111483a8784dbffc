"""Opening a directory: what counts, what is removed, what is made anew, what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stratalog.base.errors import CorruptionError, LogChangedError, LogOfflineError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.log.leftovers import sort_out
from stratalog.log.opening import Unclean
from stratalog.log.partition_log import PartitionLog
from stratalog.record.builder import build_batch
from stratalog.record.control import ControlType
from stratalog.segment.names import FileKind, FileState, file_name, part_name
from stratalog.segment.segment import TimestampOffset
from tests.log.helpers import NOW, FailingFileSystem, contents, open_log, records, sent


def written(directory: Path, *, close: bool = True) -> PartitionLog:
    """A log of three segments, with a producer and an aborted transaction."""
    log = open_log(directory, segment_bytes=700, index_interval_bytes=100)
    log.append(sent(1, 0, transactional=True))
    log.append_marker(ControlType.ABORT, producer_id=1, producer_epoch=0)
    for _ in range(9):
        log.append_records(records(3))
    assert len(log.segments) == 3
    if close:
        log.close()
    return log


def offsets_of(log: PartitionLog) -> list[int]:
    return [record.offset for record in log.read_records(log.log_start_offset)]


ALL = [0, 1, *range(3, 30)]
QUARANTINE = ".stratalog/quarantine"


def assert_quarantined(log: PartitionLog, position: int) -> None:
    """Reading only, and it says where the damage is (RCV-7)."""
    assert log.quarantine is not None
    assert log.quarantine.file == last_log(Path(log.path)).name
    assert log.quarantine.position == position
    with pytest.raises(LogOfflineError, match="quarantined"):
        log.append_records(records(1))
    with pytest.raises(LogOfflineError, match="quarantined"):
        log.roll()


def test_sorting_out() -> None:
    found = sort_out(
        [
            "00000000000000000000.log",
            "00000000000000000000.index",
            "00000000000000000005.index",
            "00000000000000000005.snapshot",
            "00000000000000000000.log.deleted",
            "00000000000000000000.log.job-1-0.part",
            "00000000000000000000.index.tmp",
            "00000000000000000009.log",
            "leader-epoch-checkpoint",
            "partition.metadata",
            "notes.txt",
        ]
    )
    assert found.bases == (0, 9)
    assert found.snapshots == (5,)
    assert sorted(found.garbage) == [
        "00000000000000000000.index.tmp",
        "00000000000000000000.log.deleted",
        "00000000000000000000.log.job-1-0.part",
        "00000000000000000005.index",
    ]
    assert found.unfinished == ()
    found = sort_out(["00000000000000000005.index", "00000000000000000005.log.swap"])
    assert found.unfinished == ("00000000000000000005.log.swap",)
    # The index may belong to a swap that is half renamed.
    assert found.garbage == ()


@pytest.mark.requirement("SPK-3", "RCV-5")
def test_garbage_is_removed_by_who_may_write(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    written(directory)
    good = contents(directory)
    for name in (
        part_name(0, FileKind.LOG, "job", 1),
        file_name(0, FileKind.LOG, FileState.DELETED),
        file_name(0, FileKind.TIME_INDEX, FileState.TEMPORARY),
        file_name(999, FileKind.OFFSET_INDEX),
        file_name(999, FileKind.SNAPSHOT),
    ):
        (directory / name).write_bytes(b"x")
    (directory / "notes.txt").write_bytes(b"mine")
    littered = contents(directory)
    assert offsets_of(open_log(directory, read_only=True)) == ALL
    assert contents(directory) == littered
    log = open_log(directory)
    assert contents(directory) == {**good, "notes.txt": b"mine"}
    log.close()


@pytest.mark.requirement("RCV-5", "LOG-12")
@pytest.mark.parametrize("state", ["cleaned", "swap"])
def test_readers_are_told_of_a_swap_by_name(tmp_path: Path, state: str) -> None:
    directory = tmp_path / "t-0"
    written(directory)
    name = file_name(7, FileKind.LOG, FileState(state))
    (directory / name).write_bytes(b"")
    before = contents(directory)
    ways: list[dict[str, Any]] = [{}, {"may_be_torn": True}, {"create": False}]
    for arguments in ways:
        with pytest.raises(LogChangedError, match=name):
            open_log(directory, read_only=True, **arguments)
    assert contents(directory) == before


@pytest.mark.requirement("RCV-5")
@pytest.mark.parametrize("state", ["cleaned", "clean"])
@pytest.mark.parametrize("kind", ["log", "index", "timeindex", "txnindex"])
@pytest.mark.parametrize("create", [True, False])
def test_writers_remove_what_a_cleaning_left(
    tmp_path: Path, state: str, kind: str, create: bool
) -> None:
    directory = tmp_path / "t-0"
    written(directory)
    good = contents(directory)
    for base in (0, 7):
        (directory / file_name(base, FileKind(kind), FileState(state))).write_bytes(b"new")
    log = open_log(directory, create=create)
    assert contents(directory) == good
    assert offsets_of(log) == ALL
    assert log.resolved is not None
    undone = log.resolved.undone if state == "cleaned" else log.resolved.removed
    assert sorted(undone) == [f"{base:020d}.{kind}.{state}" for base in (0, 7)]
    log.close()


@pytest.mark.requirement("RCV-5")
def test_readers_ignore_what_very_old_brokers_left(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    written(directory)
    (directory / file_name(0, FileKind.LOG, FileState.OLD_CLEAN)).write_bytes(b"new")
    before = contents(directory)
    assert offsets_of(open_log(directory, read_only=True)) == ALL
    assert contents(directory) == before


@pytest.mark.requirement("RCV-5")
def test_a_swap_intent_is_refused_by_name(tmp_path: Path) -> None:
    """Readers wait for its owner; the owner cannot go on with a damaged one."""
    directory = tmp_path / "t-0"
    written(directory)
    (directory / ".stratalog").mkdir(exist_ok=True)
    (directory / ".stratalog" / "swap-intent").write_bytes(b"")
    before = contents(directory)
    with pytest.raises(LogChangedError, match="swap-intent"):
        open_log(directory, read_only=True)
    with pytest.raises(CorruptionError, match="swap-intent"):
        open_log(directory)
    assert contents(directory) == before


@pytest.mark.requirement("RCV-4")
@pytest.mark.parametrize("kind", ["index", "timeindex", "txnindex"])
@pytest.mark.parametrize("damage", ["missing", "odd", "nonsense", "empty"])
def test_index_files_are_rebuilt(tmp_path: Path, kind: str, damage: str) -> None:
    directory = tmp_path / "t-0"
    written(directory)
    good = contents(directory)
    for path in directory.glob(f"*.{kind}"):
        if damage == "missing" and kind != "txnindex":
            path.unlink()
        elif damage == "odd":
            path.write_bytes(path.read_bytes() + b"\x01")
        elif damage == "nonsense":
            path.write_bytes(b"\xa5" * (8 * 12 * 34))
        elif damage == "empty" and kind == "timeindex":
            path.write_bytes(b"")
    log = open_log(directory, index_interval_bytes=100)
    assert offsets_of(log) == ALL
    assert len(log.view.aborted_between(0, 99)) == 1
    assert log.offset_of_max_timestamp() is not None
    log.close()
    assert contents(directory) == good


@pytest.mark.requirement("RCV-4")
def test_a_transaction_index_is_rebuilt_although_the_data_is_gone(tmp_path: Path) -> None:
    """The transaction began in a segment that retention removed: the snapshot remembers."""
    directory = tmp_path / "t-0"
    log = open_log(directory)
    log.append_records(records(4))
    log.append(sent(1, 0, transactional=True))
    log.roll()
    log.append_records(records(1))
    log.append_marker(ControlType.ABORT, producer_id=1, producer_epoch=0)
    log.roll()
    log.close()
    for path in directory.glob(f"{0:020d}.*"):
        path.unlink()
    (damaged,) = directory.glob("*.txnindex")
    good = damaged.read_bytes()
    damaged.write_bytes(b"?")
    open_log(directory).close()
    assert damaged.read_bytes() == good


@pytest.mark.requirement("RCV-4")
def test_without_leave_to_write_indexes_are_rebuilt_in_memory(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    written(directory)
    for path in directory.glob("*index"):
        path.write_bytes(b"\xa5" * 7)
    before = contents(directory)
    log = open_log(directory, read_only=True, index_interval_bytes=100)
    assert offsets_of(log) == ALL
    assert len(log.view.aborted_between(0, 99)) == 1
    assert log.offset_of_max_timestamp() is not None
    assert log.log_end_offset == 30
    log.close()
    assert contents(directory) == before


def last_log(directory: Path) -> Path:
    return max(directory.glob("*.log"))


@pytest.mark.requirement("RCV-1")
def test_a_torn_end_is_an_error_unless_it_may_be_cut_off(tmp_path: Path) -> None:
    """Every length of the active file from its first batch's end on. (A log that was cut off by a
    crash was not closed: its active segment has no digest.)"""
    directory = tmp_path / "t-0"
    written(directory)
    for path in directory.glob(".stratalog/*.digest"):
        path.unlink()
    good = contents(directory)
    content = last_log(directory).read_bytes()
    active = open_log(directory, read_only=True).segments.active
    base, size = active.base_offset, next(iter(active.headers())).end
    assert len(content) == 2 * size
    for length in range(size, len(content)):
        for name, data in good.items():
            (directory / name).write_bytes(data)
        last_log(directory).write_bytes(content[:length])
        end = base + 3 * (length // size)
        (directory / QUARANTINE).unlink(missing_ok=True)
        for path in directory.glob(".stratalog/*.digest"):
            path.unlink()
        if length % size:
            before = contents(directory)
            with pytest.raises(CorruptionError) as caught:
                open_log(directory, index_interval_bytes=100, read_only=True)
            assert caught.value.file == str(last_log(directory))
            assert caught.value.position == length // size * size
            assert contents(directory) == before
            kept = open_log(directory, index_interval_bytes=100)
            assert_quarantined(kept, length // size * size)
            assert offsets_of(kept) == [o for o in ALL if o < end]
            kept.close()
            (directory / QUARANTINE).unlink()
            assert contents(directory) == before
        reader = open_log(directory, read_only=True, may_be_torn=True)
        assert reader.log_end_offset == end
        assert offsets_of(reader) == [o for o in ALL if o < end]
        reader.close()
        assert last_log(directory).read_bytes() == content[:length]
        log = open_log(directory, unclean=Unclean(0), index_interval_bytes=100)
        assert offsets_of(log) == [o for o in ALL if o < end]
        assert log.append_records(records(1)).first_offset == end
        log.close()
        again = open_log(directory, create=False)
        assert offsets_of(again) == [*(o for o in ALL if o < end), end]
        again.close()


@pytest.mark.requirement("RCV-4")
@pytest.mark.parametrize("batches", [0, 1])
def test_a_time_index_that_goes_past_the_log_is_made_anew(tmp_path: Path, batches: int) -> None:
    """A clean close wrote the last entry; then the file was cut at the end of a batch. (There is
    no digest, which would know that; see the next test.)"""
    directory = tmp_path / "t-0"
    log = open_log(directory)
    log.append_records(records(2))
    log.append_records(records(2, timestamp=NOW + 10))
    log.close()
    for path in (*directory.glob("*.snapshot"), *directory.glob(".stratalog/*.digest")):
        path.unlink()
    os.truncate(last_log(directory), last_log(directory).stat().st_size // 2 * batches)
    log = open_log(directory)
    log.append_records(records(1, timestamp=NOW + 100))
    assert log.offset_for_timestamp(NOW + 50) == TimestampOffset(NOW + 100, 2 * batches)
    assert log.offset_of_max_timestamp() == TimestampOffset(NOW + 100, 2 * batches)


@pytest.mark.requirement("RCV-7")
@pytest.mark.parametrize("batches", [0, 1])
def test_an_end_that_is_gone_after_a_clean_close_is_noticed(tmp_path: Path, batches: int) -> None:
    directory = tmp_path / "t-0"
    log = open_log(directory)
    log.append_records(records(2))
    log.append_records(records(2))
    log.close()
    os.truncate(last_log(directory), last_log(directory).stat().st_size // 2 * batches)
    log = open_log(directory)
    assert log.quarantine is not None
    assert log.quarantine.file == last_log(directory).name
    with pytest.raises(LogOfflineError, match="quarantined"):
        log.append_records(records(1))


@pytest.mark.requirement("RCV-1")
@pytest.mark.parametrize(
    "tail",
    [bytes(5000), b"\xff" * 100, Random(1).randbytes(3000), bytes(16)],
    ids=["zeros", "ones", "noise", "few zeros"],
)
def test_nonsense_behind_the_end_is_cut_off(tmp_path: Path, tail: bytes) -> None:
    directory = tmp_path / "t-0"
    written(directory)
    good = contents(directory)
    with last_log(directory).open("ab") as file:
        file.write(tail)
    with pytest.raises(CorruptionError):
        open_log(directory, read_only=True)
    kept = open_log(directory)
    assert_quarantined(kept, len(good[last_log(directory).name]))
    assert offsets_of(kept) == ALL
    assert last_log(directory).read_bytes() == good[last_log(directory).name] + tail
    (directory / QUARANTINE).unlink()
    log = open_log(directory, unclean=Unclean(0), index_interval_bytes=100)
    assert offsets_of(log) == ALL
    log.close()
    assert contents(directory) == good


@pytest.mark.requirement("RCV-1")
def test_a_flipped_bit_in_the_tail_is_found(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    written(directory)
    content = bytearray(last_log(directory).read_bytes())
    content[-5] ^= 1
    last_log(directory).write_bytes(content)
    with pytest.raises(CorruptionError, match="checksum"):
        open_log(directory, read_only=True)
    assert_quarantined(open_log(directory), len(content) // 2)
    (directory / QUARANTINE).unlink()
    log = open_log(directory, unclean=Unclean(0))
    assert log.log_end_offset == 27


def test_a_transaction_beyond_the_cut_is_open_again(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    log = open_log(directory)
    log.append(sent(1, 0, transactional=True))
    log.append_marker(ControlType.ABORT, producer_id=1, producer_epoch=0)
    log.close()
    os.truncate(last_log(directory), last_log(directory).stat().st_size - 1)
    (directory / file_name(3, FileKind.SNAPSHOT)).unlink()
    log = open_log(directory, unclean=Unclean(0))
    assert log.last_stable_offset == 0
    assert log.view.aborted_between(0, 9) == []
    log.append_marker(ControlType.COMMIT, producer_id=1, producer_epoch=0)
    log.close()
    assert (directory / file_name(0, FileKind.TXN_INDEX)).read_bytes() == b""
    assert open_log(directory, read_only=True).last_stable_offset == 3


def test_a_log_that_was_not_closed_goes_on(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    left = written(directory, close=False)
    assert left.log_end_offset == 30
    log = open_log(directory, index_interval_bytes=100)
    assert offsets_of(log) == ALL
    assert log.active_producers() == {1: (0, 1)}
    assert log.append_records(records(1)).first_offset == 30
    log.close()
    del left
    reader = open_log(directory, read_only=True)
    assert offsets_of(reader) == [*ALL, 30]


def test_damaged_snapshots_are_passed_over(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    written(directory)
    names = sorted(path.name for path in directory.glob("*.snapshot"))
    assert len(names) == 3
    for name in names[1:]:
        (directory / name).write_bytes(b"torn")
    reader = open_log(directory, read_only=True)
    assert reader.active_producers() == {1: (0, 1)}
    reader.close()
    log = open_log(directory)
    assert log.active_producers() == {1: (0, 1)}
    assert sorted(path.name for path in directory.glob("*.snapshot")) == names[:1]
    (directory / names[0]).unlink()
    log = open_log(directory)
    assert log.active_producers() == {1: (0, 1)}


def test_the_log_start_offset_is_given(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    written(directory)
    log = open_log(directory, log_start_offset=13)
    assert log.log_start_offset == 13
    assert next(log.read_records(13)).offset == 13
    assert (directory / "leader-epoch-checkpoint").read_bytes() == b"0\n1\n0 13\n"
    assert not (directory / file_name(12, FileKind.SNAPSHOT)).exists()
    log.close()
    with pytest.raises(CorruptionError, match="starts at 31 and ends at 30"):
        open_log(directory, log_start_offset=31, read_only=True)
    log = open_log(directory, log_start_offset=31)
    assert "starts at 31 and ends at 30" in str(log.quarantine)
    assert offsets_of(log) == []
    with pytest.raises(LogOfflineError):
        log.append_records(records(1))


@pytest.mark.requirement("RCV-7")
@pytest.mark.parametrize("with_digests", [True, False])
def test_damage_in_a_sealed_segment_is_met_where_it_is(tmp_path: Path, with_digests: bool) -> None:
    directory = tmp_path / "t-0"
    written(directory)
    if not with_digests:
        for path in directory.glob(".stratalog/*.digest"):
            path.unlink()
    first = min(directory.glob("*.log"))
    content = bytearray(first.read_bytes())
    size = len(content)
    content[size // 2 :] = b"\xff" * (size - size // 2)
    first.write_bytes(content)
    for path in (first.with_suffix(".index"), first.with_suffix(".timeindex")):
        path.unlink()
    log = open_log(directory)
    assert next(log.read_records(12)).offset == 12
    if not with_digests:  # otherwise the block is known to be damaged before it is read
        assert next(log.read_records(0)).offset == 0
    with pytest.raises(CorruptionError) as caught:
        list(log.read_records(0))
    assert caught.value.file == str(first)
    assert not first.with_suffix(".index").exists()


class Vanishing(LocalFileSystem):
    """Lists a segment that is gone when it is opened, `times` times."""

    def __init__(self, times: int) -> None:
        object.__setattr__(self, "times", times)

    def list_directory(self, path: str) -> list[str]:
        object.__setattr__(self, "times", self.times - 1)  # type: ignore[attr-defined]
        gone = [file_name(0, FileKind.LOG)] if self.times >= 0 else []  # type: ignore[attr-defined]
        return [*gone, *super().list_directory(path)]


def test_a_reader_lists_again_when_the_owner_removes_a_segment(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    log = open_log(directory, log_start_offset=5)
    log.append_records(records(2))
    log.close()
    reader = open_log(directory, filesystem=Vanishing(2), read_only=True)
    assert offsets_of(reader) == [5, 6]
    with pytest.raises(LogChangedError, match="vanish"):
        open_log(directory, filesystem=Vanishing(99), read_only=True)


@pytest.mark.requirement("LOG-3")
def test_opening_a_log_in_order_changes_no_file(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    written(directory)
    disk = FailingFileSystem()
    log = open_log(directory, filesystem=disk)
    changes = {action for action, _ in disk.actions}
    # The index files are cut to their entries' size, which they have.
    assert changes <= {"truncate"}
    log.close()


def test_batches_that_overlap_are_refused(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    content = build_batch(records(3), base_offset=5) + build_batch(records(3), base_offset=7)
    (directory / file_name(0, FileKind.LOG)).write_bytes(content)
    with pytest.raises(CorruptionError, match="offset 7 does not follow 7"):
        open_log(directory, read_only=True)
    log = open_log(directory)
    assert "offset 7 does not follow 7" in str(log.quarantine)
    assert offsets_of(log) == [5, 6, 7]
