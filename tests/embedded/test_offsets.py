"""The file of committed offsets, with the power cut at every call."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from stratalog.base.filesystem import write_file_atomically
from stratalog.embedded.offsets import Committed, OffsetsFile, groups_in
from stratalog.log.checkpoint import render
from stratalog.segment.names import TopicPartition
from tests.sim.disk import SimDisk
from tests.sim.explore import Journal, explore

A, B = TopicPartition("a", 0), TopicPartition("b", 1)


def start() -> SimDisk:
    disk = SimDisk()
    disk.make_directory("/data")
    return disk.sync_all()


def changed(changes: dict[TopicPartition, int]) -> dict[TopicPartition, Committed]:
    """Of a topic whose id is told, of one that has none, and of one where nobody knows."""
    ids = {A: "Yw", B: ""}
    return {key: Committed(offset, ids[key]) for key, offset in changes.items()}


def offsets_of(file: OffsetsFile) -> dict[TopicPartition, int]:
    return {key: it.offset for key, it in file.read().items()}


def commit_all(disk: SimDisk, journal: Journal) -> None:
    file = OffsetsFile(disk, "/data", "g")
    state: dict[TopicPartition, int] = {}
    journal.promise(tuple(state.items()))
    for changes in ({A: 5}, {B: 7}, {A: 6, B: 8}, {A: 6}):
        state = {**state, **changes}
        journal.begin(tuple(sorted(state.items())))
        file.commit(changed(changes))
        journal.promise(tuple(sorted(state.items())))
    journal.begin(((B, 8),))
    file.forget("a")
    journal.promise(((B, 8),))


def judge(disk: SimDisk, promised: Hashable, in_flight: Hashable) -> None:
    file = OffsetsFile(disk, "/data", "g")
    found = tuple(sorted(offsets_of(file).items()))
    assert found in (promised, in_flight), (found, promised, in_flight)
    assert groups_in(disk, "/data") in (["g"], [])
    file.commit(changed({A: 99}))  # whatever a crash has left is in nobody's way
    assert file.read()[A] == Committed(99, "Yw")


def test_a_commit_is_there_or_not(count_cases: Callable[[str, int], None]) -> None:
    stats = explore(commit_all, judge, seed=1, max_states=2000, start=start(), name="offsets")
    stats.count(count_cases)
    assert stats.complete
    assert stats.states > 20


def test_groups_do_not_meet() -> None:
    disk = start()
    OffsetsFile(disk, "/data", "one").commit(changed({A: 1}))
    OffsetsFile(disk, "/data", "two").commit(changed({A: 2}))
    assert OffsetsFile(disk, "/data", "one").read() == {A: Committed(1, "Yw")}
    assert groups_in(disk, "/data") == ["one", "two"]
    OffsetsFile(disk, "/data", "one").forget("a")
    assert OffsetsFile(disk, "/data", "one").read() == {}


def test_offsets_of_an_earlier_version_are_read_and_kept() -> None:
    disk = start()
    file = OffsetsFile(disk, "/data", "g")
    write_file_atomically(disk, file.path, render({A: 5, B: 7}))
    assert file.read() == {A: Committed(5, None), B: Committed(7, None)}
    file.commit(changed({B: 8}))
    assert file.read() == {A: Committed(5, None), B: Committed(8, "")}
    assert Committed(5, None).is_of("whatever")
    assert [Committed(5, "one").is_of(now) for now in ("one", "two", "")] == [True, False, True]
    assert [Committed(5, "").is_of(now) for now in ("two", "")] == [False, True]
