"""An atomic write needs each of its barriers, where it is; a barrier too many is noticed."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from stratalog.base.filesystem import FileSystem, read_file, write_file_atomically
from tests.sim.disk import SimDisk
from tests.sim.explore import Journal
from tests.sim.mutants import Mutant, mutations
from tests.sim.trials import Original, shape, survivors


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
    found = [str(mutation) for mutation in mutations(write_twice, start())][:6]
    assert found == [
        "exchanged 1: write /d/value.tmp 0 3 <-> fsync /d/value.tmp",
        "without 2: fsync /d/value.tmp",
        "exchanged 2: fsync /d/value.tmp <-> rename /d/value.tmp /d/value",
        "exchanged 3: rename /d/value.tmp /d/value <-> fsync_directory /d",
        "without 4: fsync_directory /d",
        "exchanged 4: fsync_directory /d <-> create /d/value.tmp",
    ]


def test_a_site_is_a_step_and_who_asks_for_it() -> None:
    sites = {mutation.site for mutation in mutations(write_twice, start())}
    assert "fsync value.tmp @ test_mutants.write_twice" in sites
    assert len(sites) == 6


def test_every_barrier_of_an_atomic_write_matters() -> None:
    alive, tried = survivors(write_twice, judge, max_states=500, start=start())
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

    alive, _ = survivors(scenario, judge, max_states=500, start=start(), kinds=("drop",))
    assert [str(mutation) for mutation in alive] == ["without 0: fsync_directory /d"]


def test_steps_are_left_out_or_exchanged() -> None:
    for changes, expected in (
        ({"drop": 2}, ["create", "write", "rename", "fsync_directory"]),
        ({"swap": 2}, ["create", "write", "rename", "fsync", "fsync_directory"]),
        ({"swap": 4}, ["create", "write", "fsync", "rename", "fsync_directory"]),
    ):
        disk = start().fork()
        mutant = Mutant(disk, **changes)
        write_file_atomically(mutant, "/d/new", b"new")
        mutant.finish()
        assert [call.kind for call in disk.trace] == expected
        assert disk.content("/d/new") == b"new"


def test_what_only_reads_brings_nothing_back() -> None:
    """A step that is to come after the next one comes after a change, not after an `open`."""
    disk = start().fork()
    mutant = Mutant(disk, swap=0)
    mutant.unlink("/d/value")
    assert read_file(mutant, "/d/value", 99) == b"zero"
    mutant.fsync_directory("/d")
    assert [call.kind for call in disk.trace] == ["fsync_directory", "unlink"]


def test_a_creation_can_come_later() -> None:
    disk = start().fork()
    mutant = Mutant(disk, swap=0)
    file = mutant.open("/d/new", "create")
    assert file.size_bytes() == 0
    mutant.fsync_directory("/d")
    file.pwrite(b"new", 0)
    assert [call.kind for call in disk.trace] == ["fsync_directory", "create", "write"]
    assert disk.content("/d/new") == b"new"


@pytest.mark.parametrize(
    ("steps", "is_equal"),
    [
        (("unlink a", "unlink b"), True),  # neither is durable: each may be lost alone
        (("unlink a", "fsync b"), True),  # the barrier is of another file
        (("unlink a", "fsync_directory d"), False),
        (("fsync_directory d", "unlink a"), False),
        (("fsync b", "fsync_directory d"), True),  # nothing relied on the first
        (("fsync b", "promise", "fsync_directory d"), False),
        (("write b", "fsync b"), False),
        (("rename a c", "unlink b"), True),
        (("write b", "write b"), False),  # one over the other
    ],
)
def test_what_adds_no_state_is_proven(steps: tuple[str, ...], is_equal: bool) -> None:
    def scenario(disk: FileSystem, journal: Journal) -> None:
        journal.promise(0)
        for number, step in enumerate(steps):
            kind, *names = step.split()
            paths = [f"/d/{name}" for name in names]
            match kind:
                case "promise":
                    journal.promise(1)
                case "fsync_directory":
                    disk.fsync_directory("/d")
                case "write" | "fsync":
                    file = disk.open(paths[0], "update")
                    file.fsync() if kind == "fsync" else file.pwrite(b"%d" % number, 0)
                case _:
                    getattr(disk, kind)(*paths)

    disk = SimDisk()
    disk.make_directory("/d")
    disk.sync_all()
    for name in "ab":
        write_file_atomically(disk, f"/d/{name}", b"before")
        disk.open(f"/d/{name}", "update").pwrite(b"dirty", 0)
    original = Original(scenario, lambda *_: None, disk)
    (mutation,) = (one for one in original.mutations(("swap",)))
    trial = original.tried(mutation, 500)
    assert trial.caught is None
    assert trial.is_equal == is_equal


def test_the_shape_of_a_disk_is_what_may_be_left_of_it() -> None:
    left, right = start().fork(), start().fork()
    for disk, names in ((left, "xyz"), (right, "zyx")):
        for name in names:
            disk.open(f"/d/{name}", "create").pwrite(b"content", 0)
    assert shape(left) == shape(right)
    right.fsync_directory("/d")
    assert shape(left) != shape(right)
    left.fsync_directory("/d")
    assert shape(left) == shape(right)
