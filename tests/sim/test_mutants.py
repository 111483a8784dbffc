"""An atomic write needs each of its barriers, where it is; a barrier too many is noticed."""

from __future__ import annotations

from collections.abc import Hashable

from stratalog.base.filesystem import read_file, write_file_atomically
from tests.sim.disk import SimDisk
from tests.sim.explore import Journal
from tests.sim.mutants import Mutant, mutations, survivors


def start() -> SimDisk:
    disk = SimDisk()
    disk.make_directory("/d")
    write_file_atomically(disk, "/d/value", b"zero")
    return disk.sync_all()


def write_twice(disk: SimDisk, journal: Journal) -> None:
    journal.promise(b"zero")
    for value in (b"one", b"two"):
        journal.begin(value)
        write_file_atomically(disk, "/d/value", value)
        journal.promise(value)


def judge(image: SimDisk, promise: Hashable, in_flight: Hashable) -> None:
    assert read_file(image, "/d/value", 99) in {promise, in_flight}


def test_what_can_be_changed() -> None:
    found = [str(mutation) for mutation in mutations(write_twice, start())][:5]
    assert found == [
        "exchanged 1: write /d/value.tmp 0 3 <-> fsync /d/value.tmp",
        "without 2: fsync /d/value.tmp",
        "exchanged 2: fsync /d/value.tmp <-> rename /d/value.tmp /d/value",
        "exchanged 3: rename /d/value.tmp /d/value <-> fsync_directory /d",
        "without 4: fsync_directory /d",
    ]


def test_every_barrier_of_an_atomic_write_matters() -> None:
    alive, tried = survivors(write_twice, judge, seed=1, max_states=500, start=start())
    # Even the last fsync before the next file's creation: the write would be acknowledged too soon.
    assert alive == []
    assert tried == 11


def test_a_barrier_too_many_survives() -> None:
    def scenario(disk: SimDisk, journal: Journal) -> None:
        journal.promise(b"zero")
        disk.fsync_directory("/d")
        journal.begin(b"one")
        write_file_atomically(disk, "/d/value", b"one")
        journal.promise(b"one")

    alive, _ = survivors(scenario, judge, seed=1, max_states=500, start=start(), kinds=("drop",))
    assert [mutation.site for mutation in alive] == [("drop", "fsync_directory d")]


def test_steps_are_left_out_or_exchanged() -> None:
    for changes, expected in (
        ({"drop": 2}, ["create", "write", "rename", "fsync_directory"]),
        ({"swap": 2}, ["create", "write", "rename", "fsync", "fsync_directory"]),
        ({"swap": 4}, ["create", "write", "fsync", "rename", "fsync_directory"]),
    ):
        disk = start().fork()
        mutant = Mutant(disk, **changes)
        write_file_atomically(mutant, "/d/value", b"new")
        mutant.finish()
        assert [call.kind for call in disk.trace] == expected
        assert disk.content("/d/value") == b"new"
