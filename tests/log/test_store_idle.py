"""A store asks no log that has not changed, and misses none that has. No test sleeps."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from stratalog.base.clock import FixedClock
from stratalog.base.errors import StorageFullError
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.segment.names import TopicPartition
from tests.log.helpers import NOW
from tests.log.stores import ENDS, POINTS, A, B, changes, failing, open_store, put
from tests.sim.disk import SimDisk


def is_flushed(log: PartitionLog) -> bool:
    return log.recovery_point == log.log_end_offset


@pytest.mark.requirement("LOG-7")
def test_a_store_flushes_what_it_should(count_cases: Callable[[str, int], None]) -> None:
    """Against the rule itself: no log has a record that is unflushed and `flush.ms` old."""
    rng = random.Random(7)
    steps = 400
    disk, clock = SimDisk(), FixedClock(NOW)
    store = open_store(disk, clock=clock, flush_ms=1_000, retention_ms=-1)
    keys = [TopicPartition("orders", number) for number in range(4)]
    oldest: dict[TopicPartition, int] = {}
    for _ in range(steps):
        key = rng.choice(keys)
        if key not in store.partitions():
            store.create(key)
            continue
        log = store.get(key)
        match rng.randrange(8):
            case 0 | 1 | 2:
                put(log, "a")
                oldest.setdefault(key, clock.time_ms)
            case 3:
                log.flush()
            case 4:
                log.roll()
            case 5 if rng.random() < 0.3:
                store.delete(key)
                oldest.pop(key, None)
            case 6 if rng.random() < 0.3:
                log.configure(replace(log.settings, flush_ms=rng.choice((300, 1_000, 5_000))))
            case _:
                clock.time_ms += rng.randrange(700)
        wait_ms = store.run_due()
        assert wait_ms >= 0
        for one in store.partitions():
            log = store.get(one)
            if is_flushed(log):
                oldest.pop(one, None)
                continue
            left_ms = oldest[one] + log.settings.flush_ms - clock.time_ms
            assert left_ms > 0, one
            assert wait_ms <= left_ms, "it would sleep too long"
    count_cases("steps of a store that flushes", steps)


@pytest.mark.requirement("LOG-7", "CFG-2")
def test_a_setting_that_changes_counts_for_what_is_there() -> None:
    clock = FixedClock(NOW)
    store = open_store(SimDisk(), clock=clock)
    log = store.create(A)
    put(log, "a")
    store.run_due()
    clock.time_ms += 10_000
    store.run_due()
    assert not is_flushed(log)
    log.configure(LogSettings(flush_ms=5_000))
    store.run_due()
    assert is_flushed(log)


@pytest.mark.requirement("RCV-3")
def test_a_checkpoint_that_says_the_same_is_not_written_again() -> None:
    disk, clock = SimDisk(), FixedClock(NOW)
    store = open_store(disk, clock=clock, retention_ms=-1)
    log = store.create(A)
    store.create(B)
    put(log, "a")
    store.checkpoint_points()
    for change in (
        lambda: None,
        lambda: put(log, "b"),  # Kafka's checkpoint has the log ends
        log.flush,
        lambda: store.truncate(A, 1),
        lambda: store.delete(B),
    ):
        change()
        content = [disk.content(f"/data/{name}") for name in (POINTS, ENDS)]
        start = disk.operations
        store.checkpoint_points()
        after = [disk.content(f"/data/{name}") for name in (POINTS, ENDS)]
        assert content == after or changes(disk, start)
        start = disk.operations
        store.checkpoint_points()
        assert not changes(disk, start), "nothing new"
        assert f"orders 0 {log.log_end_offset}" in after[1].decode()


@pytest.mark.requirement("RCV-3")
def test_a_checkpoint_that_could_not_be_written_is_written_later() -> None:
    disk = SimDisk()
    store = open_store(disk)
    put(store.create(A), "a")
    disk.hook = failing(lambda call: POINTS in call.path, StorageFullError("full"))
    store.checkpoint_points()
    disk.hook = None
    assert not disk.exists(f"/data/{POINTS}")
    store.checkpoint_points()
    assert "orders 0 0" in disk.content(f"/data/{POINTS}").decode()


@pytest.mark.requirement("RCV-4")
def test_a_log_whose_segments_have_digests_is_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = open_store(SimDisk())
    logs = [store.create(A), store.create(B)]
    looked: list[str] = []
    build = PartitionLog.build_digest

    def noted(log: PartitionLog) -> bool:
        looked.append(log.path)
        return build(log)

    monkeypatch.setattr(PartitionLog, "build_digest", noted)
    for _ in range(2):
        store.build_digests()
    assert looked == [log.path for log in logs]
    put(logs[0], "a")
    store.build_digests()
    assert len(looked) == 2, "the active segment has none"
    logs[0].roll()
    for _ in range(3):
        store.build_digests()
    assert looked[2:] == [logs[0].path] * 2, "once for the segment, once for the rest"
