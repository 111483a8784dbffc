"""The file of committed offsets, with the power cut at every call."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from stratalog.embedded.offsets import OffsetsFile, groups_in
from stratalog.segment.names import TopicPartition
from tests.sim.disk import SimDisk
from tests.sim.explore import Journal, explore

A, B = TopicPartition("a", 0), TopicPartition("b", 1)


def start() -> SimDisk:
    disk = SimDisk()
    disk.make_directory("/data")
    return disk.sync_all()


def commit_all(disk: SimDisk, journal: Journal) -> None:
    file = OffsetsFile(disk, "/data", "g")
    state: dict[TopicPartition, int] = {}
    journal.promise(tuple(state.items()))
    for changes in ({A: 5}, {B: 7}, {A: 6, B: 8}, {A: 6}):
        state = {**state, **changes}
        journal.begin(tuple(sorted(state.items())))
        file.commit(changes)
        journal.promise(tuple(sorted(state.items())))
    journal.begin(((B, 8),))
    file.forget("a")
    journal.promise(((B, 8),))


def judge(disk: SimDisk, promised: Hashable, in_flight: Hashable) -> None:
    file = OffsetsFile(disk, "/data", "g")
    found = tuple(sorted(file.read().items()))
    assert found in (promised, in_flight), (found, promised, in_flight)
    assert groups_in(disk, "/data") in (["g"], [])
    file.commit({A: 99})  # whatever a crash has left is in nobody's way
    assert file.read()[A] == 99


def test_a_commit_is_there_or_not(count_cases: Callable[[str, int], None]) -> None:
    stats = explore(commit_all, judge, seed=1, max_states=2000, start=start(), name="offsets")
    stats.count(count_cases)
    assert stats.complete
    assert stats.states > 20


def test_groups_do_not_meet() -> None:
    disk = start()
    OffsetsFile(disk, "/data", "one").commit({A: 1})
    OffsetsFile(disk, "/data", "two").commit({A: 2})
    assert OffsetsFile(disk, "/data", "one").read() == {A: 1}
    assert groups_in(disk, "/data") == ["one", "two"]
    OffsetsFile(disk, "/data", "one").forget("a")
    assert OffsetsFile(disk, "/data", "one").read() == {}
