"""The explorer finds what it is there to find: small programs with one barrier missing each."""

from __future__ import annotations

import os
from collections.abc import Hashable

import pytest

from stratalog.base.filesystem import FileSystem, read_file, write_file_atomically
from tests.sim.disk import SimDisk
from tests.sim.explore import CrashFailure, Depth2, Journal, explore, points_of, replay

VALUES = (b"one", b"two, which is longer", b"3" * 700)


def start() -> SimDisk:
    disk = SimDisk()
    disk.make_directory("/d")
    write_file_atomically(disk, "/d/value", b"zero")
    return disk.sync_all()


def writes(disk: SimDisk, journal: Journal, write=write_file_atomically) -> None:
    journal.promise(b"zero")
    for value in VALUES:
        journal.begin(value)
        write(disk, "/d/value", value)
        journal.promise(value)


def judge(image: SimDisk, promise: Hashable, in_flight: Hashable) -> None:
    """What is found is what was promised, or what was being written."""
    found = read_file(image, "/d/value", 1 << 20)
    assert found in {promise, in_flight}, found


def explored(scenario, judge=judge, **arguments):
    return explore(scenario, judge, seed=3, max_states=2_000, start=start(), **arguments)


@pytest.mark.requirement("RCV-3")
def test_an_atomic_write_is_old_or_new() -> None:
    stats = explored(writes)
    assert stats.complete
    # Create, write, fsync, rename, directory fsync: three times.
    assert stats.operations == 15
    assert 20 < stats.states <= stats.images


def without(kind: str):
    """`write_file_atomically` with one kind of call left out."""

    def write(disk: SimDisk, path: str, content: bytes) -> None:
        class Leaky:
            def __getattr__(self, name: str):
                return getattr(disk, name)

            def open(self, path: str, mode):
                file = disk.open(path, mode)
                if kind == "fsync":
                    file.fsync = lambda: None
                return file

            def fsync_directory(self, path: str) -> None:
                if kind != "fsync_directory":
                    disk.fsync_directory(path)

        write_file_atomically(Leaky(), path, content)

    return lambda disk, journal: writes(disk, journal, write)


@pytest.mark.parametrize("kind", ["fsync", "fsync_directory"])
def test_each_barrier_of_an_atomic_write_is_missed(kind: str) -> None:
    with pytest.raises(CrashFailure, match="promise"):
        explored(without(kind))


def written_in_place(disk: FileSystem, path: str, content: bytes) -> None:
    file = disk.open(path, "create")
    file.pwrite(content, 0)
    file.fsync()
    file.close()


def test_a_failure_names_the_state_and_replays_alone() -> None:
    def scenario(disk: SimDisk, journal: Journal) -> None:
        writes(disk, journal, written_in_place)

    with pytest.raises(CrashFailure) as caught:
        explored(scenario, name="in place")
    message = str(caught.value)
    assert "in place: AssertionError: b''" in message
    assert "CUT -> write /d/value 0 3" in message
    assert "/d/value: all, 0 bytes (4 durable, 0 written)" in message
    assert "replay(scenario, judge, 1, 0, seed=3)" in message
    with pytest.raises(AssertionError, match="b''"):
        replay(scenario, judge, 1, 0, seed=3, start=start())
    assert replay(scenario, lambda *_: None, 1, 0, seed=3, start=start()).tree() == {
        "/d": None,
        "/d/value": b"",
    }


def test_points_carry_the_promise_of_their_moment() -> None:
    points = list(points_of(writes, start()))
    assert [point.operation for point in points] == list(range(16))
    assert (points[0].promise, points[0].in_flight) == (b"zero", VALUES[0])
    assert (points[5].promise, points[5].in_flight) == (VALUES[0], VALUES[1])
    assert (points[15].promise, points[15].call) == (VALUES[2], None)


def tidy(disk: SimDisk) -> None:
    """A recovery that is in order: removes what an attempt left."""
    for name in disk.list_directory("/d"):
        if name.endswith(".tmp"):
            disk.unlink(os.path.join("/d", name))
    disk.fsync_directory("/d")


def test_recovery_is_cut_and_done_twice() -> None:
    def tidy_and_judge(image: SimDisk, promise: Hashable, in_flight: Hashable) -> None:
        tidy(image)
        judge(image, promise, in_flight)

    stats = explored(writes, tidy_and_judge, depth2=Depth2(tidy, share=1.0))
    assert stats.recoveries > 15
    assert stats.depth2_states == 0  # whatever a cut leaves, a cut of the writer has left, too


def test_a_recovery_that_does_not_come_to_rest_is_found() -> None:
    def logs_each_start(disk: SimDisk) -> None:
        file = disk.open("/d/starts", "update" if disk.exists("/d/starts") else "create")
        file.pwrite(b"!", file.size_bytes())

    with pytest.raises(CrashFailure, match="recovering twice is not recovering once: /d/starts"):
        explored(writes, depth2=Depth2(logs_each_start, share=1.0))


def test_a_recovery_that_a_cut_breaks_is_found_and_replays() -> None:
    def rewrites(disk: SimDisk) -> None:
        """Copies the value over itself, in place."""
        written_in_place(disk, "/d/value", read_file(disk, "/d/value", 1 << 20))

    with pytest.raises(CrashFailure, match="recovery cut before its operation 1") as caught:
        explored(writes, depth2=Depth2(rewrites, share=1.0))
    assert "inner=(1, 0), recover=..." in str(caught.value)
    assert "replay(scenario, judge, 0, 0, seed=3," in str(caught.value)
    with pytest.raises(AssertionError, match="b''"):
        replay(writes, judge, 0, 0, seed=3, start=start(), inner=(1, 0), recover=rewrites)


def test_states_are_shared_out_and_bounded() -> None:
    stats = explore(writes, judge, seed=3, max_states=10, start=start())
    assert (stats.states, stats.complete) == (10, False)
