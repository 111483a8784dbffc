"""Taking a log's end back: at every offset the log is what it would be had the rest never been."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog.base.errors import LogOfflineError, OffsetOutOfRangeError, StorageIOError
from stratalog.log.opening import Unclean
from stratalog.log.partition_log import PartitionLog
from stratalog.log.truncation import plan_truncation
from stratalog.record.control import ControlType
from tests.log.helpers import NOW, FailingFileSystem, contents, open_log, records, sent
from tests.log.recording import RecordingFileSystem

pytestmark = pytest.mark.usefixtures("hasty_disk")

SETTINGS: dict[str, Any] = {"segment_bytes": 600, "index_interval_bytes": 100}


def written(directory: Path) -> PartitionLog:
    """Segments of batches of several records, an idempotent producer, transactions of two others:
    committed, aborted over a segment's border, and open at the end."""
    log = open_log(directory, **SETTINGS)
    sequence = 0
    for turn in range(4):
        log.append(sent(1, sequence, 3))
        sequence += 3
        log.append(sent(2, 2 * turn, transactional=True))
        log.append_records(records(4, timestamp=NOW + 100 * turn))
        log.append(sent(3, 4 * turn, 4, transactional=True))
        kind = ControlType.ABORT if turn % 2 else ControlType.COMMIT
        log.append_marker(kind, producer_id=2, producer_epoch=0)
        if turn < 3:
            log.append_marker(ControlType.ABORT, producer_id=3, producer_epoch=0)
    assert len(log.segments) > 4
    return log


def facts(log: PartitionLog) -> dict[str, Any]:
    """What readers and producers see of a log."""
    return {
        "batches": [bytes(batch.data) for batch in log.read_batches(log.log_start_offset)],
        "producers": log.active_producers(),
        "aborted": log.view.aborted_between(0, 1 << 40),
        "stable": log.last_stable_offset,
        "max": log.offset_of_max_timestamp(),
        "epochs": log.leader_epochs,
    }


class Expected:
    """Logs that were only ever appended to, up to an offset: facts by the number of batches."""

    def __init__(self, tmp_path: Path, batches: list[tuple[int, bytes]]):
        self.tmp_path = tmp_path
        self.batches = batches
        self.known: dict[int, dict[str, Any]] = {}

    def until(self, offset: int) -> dict[str, Any]:
        """Without the batches that reach `offset`."""
        kept = [data for last, data in self.batches if last < offset]
        if len(kept) not in self.known:
            log = open_log(self.tmp_path / f"expected-{len(kept)}", **SETTINGS)
            for data in kept:
                log.append_as_follower(data)
            self.known[len(kept)] = {**facts(log), "end": log.log_end_offset}
        return self.known[len(kept)]


@pytest.mark.sweep
@pytest.mark.requirement("RET-6", "LOG-12")
def test_every_offset_of_a_log(tmp_path: Path, count_cases: Callable[[str, int], None]) -> None:
    source = written(tmp_path / "t-0")
    batches = [(b.header.last_offset, bytes(b.data)) for b in source.read_batches(0)]
    everything = [data for _, data in batches]
    end = source.log_end_offset
    source.close()
    expected = Expected(tmp_path, batches)
    for offset in range(end + 2):
        directory = tmp_path / f"copy-{offset}"
        shutil.copytree(tmp_path / "t-0", directory)
        log = open_log(directory, **SETTINGS)
        before = log.view
        was = facts(log)
        found = log.truncate_to(offset)
        want = dict(expected.until(offset))
        assert found == want.pop("end") == log.log_end_offset <= offset
        assert facts(log) == want, offset
        # A reader that took its view before goes on (LOG-12).
        assert [bytes(batch.data) for batch in before.read_batches(0, 50)] == everything
        assert before.aborted_between(0, 1 << 40) == was["aborted"]
        assert before.offset_of_max_timestamp() == was["max"]
        # Durable: the same to whoever opens it next, in order or not.
        reader = open_log(directory, read_only=True, **SETTINGS)
        assert facts(reader) == want
        assert reader.log_end_offset == found
        reader.close()
        assert log.recovery_point <= found
        crashed = tmp_path / f"crashed-{offset}"
        shutil.copytree(directory, crashed)
        again = open_log(crashed, unclean=Unclean(log.recovery_point), **SETTINGS)
        assert again.quarantine is None
        assert facts(again) == want
        again.close()
        # It goes on from there.
        assert log.append_records(records(2)).first_offset == found
        log.close()
        again = open_log(directory, **SETTINGS)
        assert again.quarantine is None
        assert [bytes(b.data) for b in again.read_batches(0)][: len(want["batches"])] == want[
            "batches"
        ]
        assert again.log_end_offset == found + 2
        again.close()
        assert not [n for n in os.listdir(directory) if n.endswith((".part", ".swap", ".cleaned"))]
        shutil.rmtree(directory)
        shutil.rmtree(crashed)
    count_cases("offsets that a log was truncated to", end + 2)


@pytest.mark.requirement("RET-6")
def test_a_producer_repeats_what_was_cut_off(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", **SETTINGS)
    for sequence in range(0, 40, 2):
        log.append(sent(1, sequence))
    assert len(log.segments) > 3
    assert log.append(sent(1, 38)).is_duplicate
    log.truncate_to(20)
    for sequence in range(20, 40, 2):
        result = log.append(sent(1, sequence))
        assert (result.first_offset, result.is_duplicate) == (sequence, False)
    assert [record.offset for record in log.read_records(0)] == list(range(40))


@pytest.mark.requirement("RET-6")
def test_snapshots_of_what_was_cut_off_do_not_come_back(tmp_path: Path) -> None:
    """The log grows past its old end again, with other producers."""
    log = open_log(tmp_path / "t-0", **SETTINGS)
    for sequence in range(0, 30, 2):
        log.append(sent(1, sequence))
    old = {path.name for path in (tmp_path / "t-0").glob("*.snapshot")}
    log.truncate_to(9)
    left = {path.name for path in (tmp_path / "t-0").glob("*.snapshot")}
    assert left < old
    assert all(int(name[:20]) <= 8 for name in left)
    for sequence in range(0, 30, 2):
        log.append(sent(7, sequence))
    log.close()
    log = open_log(tmp_path / "t-0", unclean=Unclean(0), **SETTINGS)
    assert log.active_producers() == {1: (0, 7), 7: (0, 37)}


@pytest.mark.requirement("RET-6", "RCV-6")
def test_snapshots_of_what_is_cut_off_are_gone_before_it_is(tmp_path: Path) -> None:
    disk = RecordingFileSystem()
    log = open_log(tmp_path / "t-0", filesystem=disk, **SETTINGS)
    for sequence in range(0, 30, 2):
        log.append(sent(1, sequence))
    disk.done.clear()
    log.truncate_to(9)
    unlinked = [
        at
        for at, (action, name, *_) in enumerate(disk.done)
        if action == "unlink" and name.endswith(".snapshot")
    ]
    assert unlinked
    written_intent = disk.done.index(("rename", "swap-intent.tmp", "swap-intent"))
    assert max(unlinked) < disk.done.index(("fsync_directory", "t-0")) < written_intent


@pytest.mark.requirement("RET-6")
def test_truncating_outside_of_the_log(tmp_path: Path) -> None:
    log = written(tmp_path / "t-0")
    end = log.log_end_offset
    before = contents(tmp_path / "t-0")
    assert log.truncate_to(end) == end
    assert log.truncate_to(end + 100) == end
    log.advance_log_start(10)
    with pytest.raises(OffsetOutOfRangeError):
        log.truncate_to(9)
    after = contents(tmp_path / "t-0")
    assert {**before, "leader-epoch-checkpoint": b""} == {**after, "leader-epoch-checkpoint": b""}
    reader = open_log(tmp_path / "t-0", read_only=True)
    from_there = [record.offset for record in reader.read_records(0)]
    assert len(from_there) > 30


@pytest.mark.requirement("RET-6")
@pytest.mark.parametrize("start", range(1, 10))
def test_the_log_never_ends_below_its_start(tmp_path: Path, start: int) -> None:
    """Both lie in one batch: what the batch holds below the start is nobody's."""
    log = open_log(tmp_path / "t-0")
    log.append_records(records(4))
    log.append_records(records(6))
    log.append_records(records(3))
    log.advance_log_start(start)
    for offset in range(start, 13):
        plan = plan_truncation(log.segments, offset, log.log_start_offset)
        assert start <= plan.end_offset <= offset
        ends = [end for end in (0, 4, 10) if end <= offset]
        if plan.size_bytes > 0:
            assert (plan.base_offset, plan.end_offset) == (0, ends[-1])
        else:
            assert ends[-1] < start
            assert (plan.base_offset, plan.end_offset) == (start, start)


@pytest.mark.requirement("RET-6", "LOG-7")
def test_a_disk_that_fails_during_a_truncation(tmp_path: Path) -> None:
    """Every change fails once: the log is offline, and opens with the old end or the new one."""
    outcomes: list[int] = []
    for number in range(500):
        directory = tmp_path / f"t-{number}"
        disk = FailingFileSystem()
        log = open_log(directory, filesystem=disk, **SETTINGS)
        for _ in range(9):
            log.append_records(records(3, size=40))
        log.flush()
        before = log.view
        disk.actions.clear()
        disk.fail = lambda _action, _path, n=number, d=disk: len(d.actions) == n + 1  # type: ignore[misc]
        try:
            log.truncate_to(10)
        except StorageIOError:
            disk.fail = lambda _action, _path: False
            with pytest.raises(LogOfflineError):
                log.append_records(records(1))
        else:
            disk.fail = lambda _action, _path: False
            outcomes.append(0)  # nothing failed
        assert [record.offset for record in before.read_records(0)] == list(range(27))
        log.close()
        again = open_log(directory, create=False, unclean=Unclean(9), **SETTINGS)
        assert again.quarantine is None
        end = again.log_end_offset
        assert end in (9, 27)
        assert [r.offset for r in again.read_records(0)] == list(range(end))
        again.close()
        if outcomes[-1:] == [0]:
            break
        outcomes.append(end)
    assert outcomes[0] == 27
    assert outcomes[-2] == 9
    assert len(outcomes) > 20
