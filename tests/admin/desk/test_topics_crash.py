"""Topics and settings on a disk whose power is cut at every call: a change is whole or not there.

A scenario opens a desk and makes its changes; what it was told has been done must be found after
any cut, and what was in flight is found done or not, never in part.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import NamedTuple

import pytest

from stratalog.admin.desk import BareDesk, Desk, open_desk
from stratalog.admin.desk.registry import Stage, read_registry
from stratalog.base.clock import FixedClock
from stratalog.base.errors import StorageFullError, StratalogError
from stratalog.config.book import SettingsBook
from stratalog.record.builder import NewRecord
from stratalog.segment.names import TopicPartition
from tests.sim.disk import SimDisk
from tests.sim.explore import Depth2, ExploreStats, Journal, explore
from tests.sim.sweeps import IS_SWEEP, budget

CountCases = Callable[[str, int], None]
DIR = "/data"
NOW = 1_700_000_000_000
# With a second thread the order of calls would be a matter of luck.
BOOK = SettingsBook({"num.recovery.threads.per.data.dir": "1"})


class Known(NamedTuple):
    """What a store knows: topic -> (partitions, settings), prefixes' and the broker's settings."""

    topics: tuple[tuple[str, int, tuple[tuple[str, str], ...]], ...] = ()
    prefixes: tuple[tuple[str, str], ...] = ()
    broker: tuple[tuple[str, str], ...] = ()


Step = Callable[[Desk], object]


class Change(NamedTuple):
    step: Step
    after: Known


def empty_disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directory(DIR)
    return disk.sync_all()


def laid(*changes: Change) -> SimDisk:
    """A disk on which these have been done, durably."""
    disk = empty_disk()
    with open_desk([DIR], disk, FixedClock(NOW), book=BOOK) as desk:
        for change in changes:
            change.step(desk)
    return disk.sync_all()


def found(disk: SimDisk) -> Known:
    """What the next open makes of it."""
    with open_desk([DIR], disk, FixedClock(NOW), book=BOOK) as desk:
        topics = []
        for row in desk.list_topics()["topics"]:
            assert (row["state"], row["error"]) == ("ready", None)
            told = desk.describe_topic(row["name"])
            there = [it["partition"] for it in told["partitions"]]
            assert there == list(range(row["partitions"]))
            topics.append((row["name"], row["partitions"], tuple(told["configs"].items())))
        prefixes = desk.describe_configs("prefix", "a")["configs"]
        broker = desk.describe_configs("broker")["configs"]
        known = Known(
            tuple(topics),
            tuple((it["name"], it["value"]) for it in prefixes),
            tuple((it["name"], it["value"]) for it in broker if it["is_dynamic"]),
        )
    static = {"num.recovery.threads.per.data.dir"}
    return known._replace(broker=tuple(it for it in known.broker if it[0] not in static))


def judge(disk: SimDisk, promise: Hashable, in_flight: Hashable) -> None:
    known = found(disk)
    assert known in (promise, in_flight) if in_flight is not None else known == promise
    _, registry = read_registry([DIR], disk)
    assert all(entry.stage is Stage.READY for entry in registry.topics.values())


def recover(disk: SimDisk) -> None:
    for _ in range(2):  # the second one unlinks what the first one has deleted
        with open_desk([DIR], disk, FixedClock(NOW), book=BOOK):
            pass


def explored(
    start: SimDisk, before: Known, changes: tuple[Change, ...], *, bare: bool = False
) -> ExploreStats:
    def scenario(disk: SimDisk, journal: Journal) -> None:
        journal.promise(before)
        if bare:
            run(BareDesk([DIR], disk, FixedClock(NOW), book=BOOK), journal)
            return
        hook, disk.hook = disk.hook, None  # opening and closing is cut elsewhere
        with open_desk([DIR], disk, FixedClock(NOW), book=BOOK) as desk:
            disk.hook = hook
            run(desk, journal)
            disk.hook = None
        disk.hook = hook

    def run(desk: Desk, journal: Journal) -> None:
        for change in changes:
            journal.begin(change.after)
            change.step(desk)
            journal.promise(change.after)

    return explore(
        scenario,
        judge,
        seed=1,
        max_states=budget(40),
        start=start,
        depth2=Depth2(recover, share=0.1, max_states=budget(5)),
    )


COMPACT = (("cleanup.policy", "compact"),)
A2 = ("a", 2, COMPACT)
CREATE_A = Change(
    lambda desk: desk.create_topic("a", 2, {"cleanup.policy": "compact"}), Known((A2,))
)
CREATE_B = Change(lambda desk: desk.create_topic("b"), Known((A2, ("b", 1, ()))))
ADD = Change(lambda desk: desk.add_partitions("a", 4), Known((("a", 4, COMPACT),)))
DELETE = Change(lambda desk: desk.delete_topic("a"), Known())
AGAIN = Change(lambda desk: desk.create_topic("a", 1), Known((("a", 1, ()),)))
ALTER = Change(
    lambda desk: desk.alter_configs("topic", "a", {"retention.ms": "5"}, ["cleanup.policy"]),
    Known((("a", 2, (("retention.ms", "5"),)),)),
)
PREFIX = Change(
    lambda desk: desk.alter_configs("prefix", "a", {"segment.ms": "7"}),
    Known((A2,), (("segment.ms", "7"),)),
)
BROKER = Change(
    lambda desk: desk.alter_configs("broker", None, {"log.retention.ms": "9"}),
    Known((A2,), (("segment.ms", "7"),), (("log.retention.ms", "9"),)),
)

CASES = {
    "create": ((), (CREATE_A,)),
    "create another": ((CREATE_A,), (CREATE_B,)),
    "add partitions": ((CREATE_A,), (ADD,)),
    "delete": ((CREATE_A,), (DELETE,)),
    "delete and create again": ((CREATE_A,), (DELETE, AGAIN)),
    "alter": ((CREATE_A,), (ALTER,)),
    "prefix and broker": ((CREATE_A,), (PREFIX, BROKER)),
}


@pytest.mark.sweep
@pytest.mark.requirement("ADM-1", "CFG-2")
@pytest.mark.parametrize("case", CASES)
def test_each_change_is_whole_or_not_there(case: str, count_cases: CountCases) -> None:
    before, changes = CASES[case]
    known = before[-1].after if before else Known()
    stats = explored(laid(*before), known, changes).count(count_cases)
    assert stats.operations > 3
    assert stats.states > 5
    assert stats.complete or not IS_SWEEP


@pytest.mark.sweep
@pytest.mark.requirement("ADM-1")
def test_what_commands_do_one_after_another_too(count_cases: CountCases) -> None:
    stats = explored(empty_disk(), Known(), (CREATE_A, ADD, DELETE), bare=True)
    assert stats.count(count_cases).states > 20


@pytest.mark.requirement("ADM-1")
def test_a_topic_that_was_found_keeps_its_records_and_gets_partitions() -> None:
    """A directory of Kafka's has no registry."""
    disk = laid(CREATE_A)
    with open_desk([DIR], disk, FixedClock(NOW), book=BOOK) as desk:
        log = desk.service.store.get(TopicPartition("a", 1))
        log.append_records([NewRecord(b"k", b"v", NOW)])
    disk.unlink(f"{DIR}/stratalog-topics")
    disk.sync_all()
    before = Known((("a", 2, ()),))
    assert found(disk.fork()) == before
    stats = explored(disk, before, (Change(ADD.step, Known((("a", 4, ()),))),))
    assert stats.states > 5
    with open_desk([DIR], disk, FixedClock(NOW), book=BOOK) as desk:
        assert desk.service.settings("a").words("cleanup.policy") == ()


@pytest.mark.requirement("ADM-1")
def test_a_creation_that_finds_no_room_leaves_nothing(count_cases: CountCases) -> None:
    """The disk is full from the n-th write on, for each n."""
    refused = 0
    base = laid(CREATE_A)
    for place in range(1, 40):
        disk = base.fork()
        with open_desk([DIR], disk, FixedClock(NOW), book=BOOK) as desk:
            before = desk.list_topics()
            calls = 0

            def fill(call: object, last: int = place) -> None:
                nonlocal calls
                if getattr(call, "kind", None) in ("write", "create"):
                    calls += 1
                    if calls == last:
                        raise StorageFullError("no space left")

            disk.hook = fill
            try:
                desk.create_topic("b", 3)
            except StratalogError:
                refused += 1
                disk.hook = None
                assert desk.list_topics() == before
            else:
                disk.hook = None
                assert "b" in desk.topic_names()
    count_cases("creations on a full disk", refused)
    assert refused > 5


@pytest.mark.requirement("ADM-1")
def test_a_creation_that_cannot_be_undone_says_so() -> None:
    """The disk is full and stays so, from the n-th write on, for each n."""
    base, begun = laid(CREATE_A), 0
    for place in range(1, 30):
        disk = base.fork()
        with open_desk([DIR], disk, FixedClock(NOW), book=BOOK) as desk:
            before = desk.list_topics()
            calls = 0

            def fill(call: object, first: int = place) -> None:
                nonlocal calls
                if getattr(call, "kind", None) in ("write", "create"):
                    calls += 1
                    if calls >= first:
                        raise StorageFullError("no space left")

            disk.hook = fill
            error: StratalogError | None = None
            try:
                desk.create_topic("b", 3)
            except StratalogError as caught:
                error = caught
            disk.hook = None
            stays = error is not None and "it stays begun" in str(error)
            begun += stays
            if error is not None and not stays:
                assert desk.list_topics() == before
        with open_desk([DIR], disk, FixedClock(NOW), book=BOOK) as desk:
            assert ("b" in desk.topic_names()) == (error is None or stays), place
            assert desk.list_topics()["ok"]
    assert begun > 5


def test_a_lost_partition_is_told_and_not_made_anew() -> None:
    disk = laid(CREATE_A)
    for name in disk.list_directory(f"{DIR}/a-1"):
        path = f"{DIR}/a-1/{name}"
        if disk.is_directory(path):
            for inner in disk.list_directory(path):
                disk.unlink(f"{path}/{inner}")
            disk.remove_directory(path)
        else:
            disk.unlink(path)
    disk.remove_directory(f"{DIR}/a-1")
    with open_desk([DIR], disk, FixedClock(NOW), book=BOOK) as desk:
        told = desk.describe_topic("a")
        assert [it["state"] for it in told["partitions"]] == ["online", "missing"]
        assert not told["ok"]
        with suppress(StratalogError):
            desk.add_partitions("a", 3)
        assert [it["partition"] for it in told["partitions"]] == [0, 1]
