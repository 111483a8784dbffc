"""The faults strike where they are told to, and an atomic write stands all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from stratalog.base.errors import StorageFullError, StorageIOError
from stratalog.base.filesystem import read_file, write_file_atomically
from tests.sim.cuts import crash_images
from tests.sim.disk import SimDisk
from tests.sim.faults import MEETS, Faults, every_fault


def start() -> SimDisk:
    disk = SimDisk()
    disk.make_directory("/d")
    write_file_atomically(disk, "/d/value", b"old")
    return disk.sync_all()


def test_the_nth_call_of_a_kind_fails_once() -> None:
    disk = start()
    disk.hook = faults = Faults("EIO", 1, kinds=("stat",))
    disk.stat("/d")
    disk.list_directory("/d")
    with pytest.raises(StorageIOError, match="/d: Input/output error"):
        disk.stat("/d")
    disk.stat("/d")
    assert [str(call) for call in faults.struck] == ["stat /d"]


def test_it_fails_until_it_is_healed() -> None:
    disk = start()
    disk.hook = faults = Faults("EDQUOT", 0, lasting=True)
    for _ in range(3):
        with pytest.raises(StorageFullError):
            disk.open("/d/a", "create")
    disk.unlink("/d/value")
    faults.heal()
    disk.open("/d/a", "create")
    assert disk.list_directory("/d") == ["a"]


def test_a_short_write_leaves_half() -> None:
    disk = start()
    file = disk.open("/d/value", "update")
    disk.hook = Faults("SHORT_WRITE", 0)
    with pytest.raises(StorageFullError):
        file.pwrite(b"NEWS", 3)
    assert disk.content("/d/value") == b"oldNE"
    assert {image.content("/d/value") for image in crash_images(disk, Random(1))} >= {
        b"old",
        b"oldNE",
    }


def test_too_many_open_files_strike_what_opens_one() -> None:
    disk = start()
    disk.hook = Faults("EMFILE", 0, lasting=True)
    with pytest.raises(StorageIOError, match="Too many open files"):
        disk.fsync_directory("/d")
    disk.rename("/d/value", "/d/other")
    with pytest.raises(StorageIOError, match="Too many open files"):
        disk.open("/d/other", "read")


def test_a_question_that_the_disk_does_not_answer_is_an_error() -> None:
    disk = start()
    disk.hook = Faults("EIO", 0, lasting=True)
    with pytest.raises(StorageIOError):
        disk.exists("/d/value")
    with pytest.raises(StorageIOError):
        disk.is_directory("/d")


@pytest.mark.sweep
@pytest.mark.requirement("RCV-3")
def test_an_atomic_write_stands_every_fault(count_cases: Callable[[str, int], None]) -> None:
    ends: Counter[tuple[str, str]] = Counter()
    for attach in every_fault():
        disk = start().fork()
        faults = attach(disk)
        try:
            write_file_atomically(disk, "/d/value", b"new!")
            acknowledged = True
        except StorageIOError:
            acknowledged = False
        assert acknowledged is not bool(faults.struck), faults
        found = {image.content("/d/value") for image in crash_images(disk, Random(1))}
        assert found == {b"new!"} if acknowledged else found <= {b"old", b"new!"}, faults
        # After space is freed the next write goes through.
        faults.heal()
        write_file_atomically(disk, "/d/value", b"newer")
        assert read_file(disk, "/d/value", 9) == b"newer"
        (content,) = {image.content("/d/value") for image in crash_images(disk, Random(1))}
        assert content == b"newer", faults
        ends[faults.error, "done" if acknowledged else "failed"] += 1
    # Create, write, fsync, rename, directory fsync; each once and for good, and one run without.
    failed = {error: ends[error, "failed"] for error in MEETS}
    assert failed == {"EIO": 10, "ENOSPC": 8, "EDQUOT": 8, "EMFILE": 4, "SHORT_WRITE": 2}
    assert all(ends[error, "done"] == 2 for error in MEETS)
    count_cases("atomic writes with a fault", ends.total())
