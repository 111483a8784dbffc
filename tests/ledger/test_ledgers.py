"""Ledgers of a store: pins keep files, switches let them go, and a crash leaves nothing behind."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from stratalog.base.errors import (
    CorruptionError,
    StorageFullError,
    StorageIOError,
    UnknownPartitionError,
    UsageError,
)
from stratalog.ledger.ledgers import Ledgers, has_ledgers
from stratalog.ledger.manifest import (
    EMPTY,
    Generation,
    generation_path,
    ledgers_path,
    manifest_path,
)
from stratalog.ledger.status import INTERRUPTED, RunState, RunStatus, decode, encode
from stratalog.log.log_store import LogStore
from tests.ledger.making import make, write_segment
from tests.log.helpers import NOW
from tests.log.stores import A, B, after_cut, failing, open_store, put, rewrite, there
from tests.sim.disk import SimDisk
from tests.sim.nodes import Call

pytestmark = pytest.mark.requirement("LDG-1", "LDG-6")
P = "/data/orders-0"


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def store(disk: SimDisk) -> Iterator[LogStore]:
    with open_store(disk) as opened:
        log = opened.create(A)
        put(log, *(f"k{number}" for number in range(100)))
        log.flush()
        yield opened


@pytest.fixture
def ledgers(store: LogStore, disk: SimDisk) -> Ledgers:
    return Ledgers(store, disk)


def numbers(disk: SimDisk) -> list[int]:
    """The generations' directories that are there."""
    return [int(name) for name in disk.list_directory(ledgers_path(P)) if name.isdigit()]


def test_without_a_ledger(ledgers: Ledgers) -> None:
    assert ledgers.manifest(A) == EMPTY
    with ledgers.pin(A) as pin:
        assert (pin.generation, pin.view) == (None, None)
    with pytest.raises(UsageError, match="there is no ledger 3; kept: none"):
        ledgers.pin(A, 3)
    with pytest.raises(UnknownPartitionError):
        ledgers.pin(B)
    with ledgers.compacted(A) as view:
        assert not view.has_ledger
        assert (view.start_offset, view.horizon, view.log_end_offset) == (0, 0, 100)


def test_a_pinned_generation_is_a_log(ledgers: Ledgers, disk: SimDisk) -> None:
    made = make(ledgers, disk, A, P, 10)
    with ledgers.pin(A) as pin:
        assert pin.generation == made
        assert pin.view is not None
        assert (pin.view.log_start_offset, pin.view.log_end_offset) == (0, 10)
        assert pin.view.last_stable_offset == 10
        assert [record.offset for record in pin.view.read_records(0)] == [0, 9]
    assert has_ledgers(disk, P)


def test_the_last_are_kept_and_the_others_go(ledgers: Ledgers, disk: SimDisk) -> None:
    for horizon in (10, 20, 30):
        make(ledgers, disk, A, P, horizon)
    assert [one.number for one in ledgers.manifest(A).generations] == [2, 3]
    assert numbers(disk) == [2, 3]
    with ledgers.pin_as_of(A, offset=25) as pin:
        assert pin.generation is not None
        assert pin.generation.number == 2
    with ledgers.pin_as_of(A, time_ms=NOW + 100) as pin:
        assert pin.generation is not None
        assert pin.generation.number == 3
    with pytest.raises(UsageError, match="no ledger of those kept was there at offset 5"):
        ledgers.pin_as_of(A, offset=5)


def test_a_pinned_one_stays_until_it_is_released(ledgers: Ledgers, disk: SimDisk) -> None:
    make(ledgers, disk, A, P, 10, retained=1)
    one, other = ledgers.pin(A), ledgers.pin(A)
    make(ledgers, disk, A, P, 20, retained=1)
    assert ledgers.pinned(A) == [1]
    one.release()
    one.release()
    assert numbers(disk) == [1, 2]
    assert other.view is not None
    assert [record.offset for record in other.view.read_records(0)] == [0, 9]
    other.release()
    assert numbers(disk) == [2]
    assert ledgers.pinned(A) == []


def test_what_is_referenced_stays_and_the_rest_of_its_directory_goes(
    ledgers: Ledgers, disk: SimDisk
) -> None:
    number, _ = ledgers.begin(A)
    first = write_segment(disk, P, number, 0, 10, 0, 9)
    second = write_segment(disk, P, number, 10, 20, 10, 19)
    ledgers.switch(A, Generation(number, 0, 20, NOW, (first, second)), 1)
    make(ledgers, disk, A, P, 30, retained=1, kept=(first,))
    names = disk.list_directory(generation_path(P, 1))
    assert {name.split(".")[0] for name in names if "." in name[1:]} == {f"{0:020d}"}
    with ledgers.pin(A) as pin:
        assert pin.view is not None
        assert [record.offset for record in pin.view.read_records(0)] == [0, 9, 10, 29]
    make(ledgers, disk, A, P, 40, retained=1)
    assert numbers(disk) == [3]


def test_a_run_that_fails_leaves_no_directory(ledgers: Ledgers, disk: SimDisk) -> None:
    make(ledgers, disk, A, P, 10)
    number, directory = ledgers.begin(A)
    write_segment(disk, P, number, 0, 10, 0)
    assert disk.exists(directory)
    ledgers.collect(A)
    assert disk.exists(directory), "a run that goes on was swept"
    ledgers.abandon(A)
    assert numbers(disk) == [1]
    assert ledgers.begin(A)[0] == number, "a number is given out when it counts"


def test_a_crash_between_switch_and_deletion_leaves_no_orphan(
    store: LogStore, ledgers: Ledgers, disk: SimDisk
) -> None:
    """Pulsar (#12522) deletes the old ledger after the switch; a crash there left it for ever."""
    make(ledgers, disk, A, P, 10, retained=1)
    disk.hook = failing(lambda call: call.kind == "unlink", StorageIOError("pulled"))
    with pytest.raises(StorageIOError):
        make(ledgers, disk, A, P, 20, retained=1)
    disk.hook = None
    cut = after_cut(disk)
    assert numbers(cut) == [1, 2]
    with open_store(cut) as again:
        found = Ledgers(again, cut)
        found.sweep()
        assert numbers(cut) == [2]
        current = found.manifest(A).current
        assert current is not None
        assert current.horizon == 20


@pytest.mark.parametrize("error", [StorageIOError("pulled"), StorageFullError("full")])
def test_a_switch_that_nobody_knows_of_removes_nothing(
    ledgers: Ledgers, disk: SimDisk, error: Exception
) -> None:
    """The manifest was renamed and not synced: after a crash either may count."""
    make(ledgers, disk, A, P, 10, retained=1)
    is_renamed = False

    def hook(call: Call) -> None:
        nonlocal is_renamed
        if is_renamed and call.kind == "fsync_directory":
            raise error
        is_renamed = is_renamed or call.kind == "rename"

    disk.hook = hook
    with pytest.raises(type(error)):
        make(ledgers, disk, A, P, 20, retained=1)
    disk.hook = None
    ledgers.abandon(A)
    with ledgers.pin(A):
        pass
    ledgers.collect(A)
    assert numbers(disk) == [1, 2]
    cut = after_cut(disk)
    with open_store(cut) as store, Ledgers(store, cut).pin(A) as pin:
        assert pin.generation is not None
        assert pin.generation.number == 1, "the rename was not synced"
        assert pin.view is not None
        assert len(list(pin.view.read_records(0))) == 2


def test_a_log_that_ends_sooner_loses_the_ledgers_behind_its_end(
    ledgers: Ledgers, disk: SimDisk
) -> None:
    make(ledgers, disk, A, P, 10)
    make(ledgers, disk, A, P, 20)
    ledgers.cut_back(A, 15)
    current = ledgers.manifest(A).current
    assert current is not None
    assert current.horizon == 10
    assert numbers(disk) == [1]
    ledgers.cut_back(A, 5)
    assert ledgers.manifest(A).current is None
    assert make(ledgers, disk, A, P, 10).number == 3, "a name means one content"


def test_dropping(ledgers: Ledgers, disk: SimDisk) -> None:
    assert not ledgers.drop(A)
    make(ledgers, disk, A, P, 10)
    with ledgers.pin(A) as pin:
        assert ledgers.drop(A)
        assert ledgers.manifest(A).current is None
        assert pin.view is not None
        assert len(list(pin.view.read_records(0))) == 2
    assert numbers(disk) == []
    assert not ledgers.drop(A)


def test_a_damaged_manifest_is_told_and_can_be_dropped(
    store: LogStore, ledgers: Ledgers, disk: SimDisk, caplog: pytest.LogCaptureFixture
) -> None:
    make(ledgers, disk, A, P, 10)
    rewrite(disk, manifest_path(P), b"nonsense\n")
    again = Ledgers(store, disk)
    with pytest.raises(CorruptionError):
        again.pin(A)
    with caplog.at_level(logging.ERROR):
        again.sweep()
    assert "cannot be put in order" in caplog.text
    assert numbers(disk) == [1], "what is not known removes nothing"
    assert again.drop(A)
    assert numbers(disk) == []
    assert make(again, disk, A, P, 10).number == 2


def test_a_file_of_another_size_or_none_is_damage(ledgers: Ledgers, disk: SimDisk) -> None:
    made = make(ledgers, disk, A, P, 10)
    path = next(path for path in there(disk, ledgers_path(P)) if path.endswith(".log"))
    file = disk.open(path, "update")
    file.truncate(made.size_bytes - 1)
    file.close()
    with pytest.raises(CorruptionError, match="the manifest says"):
        ledgers.pin(A)
    disk.unlink(path)
    with pytest.raises(CorruptionError, match="lacks a file"):
        ledgers.pin(A)
    assert ledgers.pinned(A) == []


def test_a_deleted_partition_takes_its_ledgers_along(
    store: LogStore, ledgers: Ledgers, disk: SimDisk
) -> None:
    make(ledgers, disk, A, P, 10)
    pin = ledgers.pin(A)
    store.delete(A)
    ledgers.forget(A)
    put(store.create(A), *(f"n{number}" for number in range(30)))
    made = make(ledgers, disk, A, P, 30)
    assert made.number == 1
    pin.release()
    with ledgers.pin(A) as other:
        assert other.view is not None
        assert other.view is not pin.view
        assert [record.offset for record in other.view.read_records(0)] == [0, 29]


@pytest.mark.requirement("LDG-4")
def test_how_a_run_ended_is_known_after_a_restart(
    store: LogStore, ledgers: Ledgers, disk: SimDisk
) -> None:
    assert ledgers.status(A).state is RunState.NEVER
    number, _ = ledgers.begin(A)
    running = RunStatus(RunState.RUNNING, number, "asked", "local", NOW)
    ledgers.note(A, running)
    assert ledgers.status(A) == running
    after = Ledgers(store, disk)
    assert after.status(A).cause == INTERRUPTED
    after.sweep()
    assert after.status(A) == RunStatus(
        RunState.FAILED, number, "asked", "local", NOW, NOW, 0, INTERRUPTED
    )


@pytest.mark.requirement("LDG-4")
def test_a_run_that_had_switched_before_the_crash_has_succeeded(
    store: LogStore, ledgers: Ledgers, disk: SimDisk
) -> None:
    ledgers.note(A, RunStatus(RunState.RUNNING, 1, "asked", "local", NOW))
    make(ledgers, disk, A, P, 10)
    after = Ledgers(store, disk)
    after.sweep()
    status = after.status(A)
    assert (status.state, status.horizon, status.cause) == (RunState.SUCCEEDED, 10, "")


@pytest.mark.requirement("LDG-4")
def test_a_damaged_status_says_nothing(ledgers: Ledgers, disk: SimDisk) -> None:
    status = RunStatus(RunState.FAILED, 3, "backlog", "spark", 1, 2, 3, "x" * 10)
    assert decode(encode(status)) == status
    ledgers.note(A, status)
    rewrite(disk, ledgers_path(P) + "/status", encode(status)[:-3] + b"zz\n")
    assert ledgers.status(A) == RunStatus()
    for changed in (b"", b"{}\n", encode(status).replace(b"failed", b"vanish")):
        with pytest.raises(CorruptionError):
            decode(changed)
