"""Somebody stops a round at any of its calls: it ends within a chunk, and all is in order (CLN-4).

The hook of the simulated disk stands between any two calls of the round; there another thread asks
for a truncation, a deletion, a pause, an abort, or closes the store, and waits for the round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from stratalog.clean.states import NONE
from stratalog.segment.names import TopicPartition
from tests.clean.gates import PATIENCE_SECONDS, wait_until
from tests.sim.disk import SimDisk
from tests.sim.explore import Journal
from tests.sim.nodes import Call
from tests.sim.service import DIR, NOW, Driver, Step, clean_through, opened, records_of
from tests.sim.sweeps import IS_SWEEP

KEY = TopicPartition("a", 0)
STRIDE = 1 if IS_SWEEP else 3
TRUNCATED_AT = 8
BEFORE: tuple[Step, ...] = (
    *(("create", "a"), ("put", "a", "abcA"), ("roll", "a"), ("clean",), ("put", "a", "bBd")),
    *(("roll", "a"), ("put", "a", "cdef"), ("roll", "a"), ("put", "a", "ab"), ("roll", "a")),
    *(("put", "a", "cg"), ("flush", "a")),
)


def laid() -> SimDisk:
    disk = SimDisk()
    disk.make_directory(DIR)
    Driver(disk.sync_all(), Journal()).run((*BEFORE, ("close",)))
    return disk.fork()


ACTS: dict[str, Callable[[Driver], object]] = {
    "truncate": lambda driver: driver.store and driver.store.truncate(KEY, TRUNCATED_AT),
    "delete": lambda driver: driver.store and driver.store.delete(KEY),
    "pause": lambda driver: driver.manager.pause(KEY),
    "abort": lambda driver: driver.manager.abort(KEY),
    "close": lambda driver: driver.store and driver.store.close(),
}


class Stopper:
    """Before call number `nth` of the round somebody begins to stop it."""

    def __init__(self, driver: Driver, nth: int, act: Callable[[Driver], object]):
        self.seen = 0
        self.future: Future[Any] | None = None
        self.later: Counter[str] = Counter()
        self._nth = nth
        self._driver = driver
        self._act = act
        self._pool = ThreadPoolExecutor(1)

    def __call__(self, call: Call) -> None:
        manager = self._driver.manager
        if self.future is not None:
            if manager.must_stop(KEY) and call.path.endswith((".log", ".part")):
                self.later[call.kind] += 1
            return
        if not manager.state_of(KEY).is_worked_on:
            return
        self.seen += 1
        if self.seen == self._nth:
            self.future = self._pool.submit(self._act, self._driver)
            wait_until(lambda: manager.must_stop(KEY), "it is told to stop")
            assert not self.future.done()

    def end(self) -> None:
        if self.future is not None:
            self.future.result(PATIENCE_SECONDS)
        self._pool.shutdown()


@pytest.mark.sweep
@pytest.mark.requirement("CLN-4", "CLN-3")
@pytest.mark.parametrize("name", ACTS)
def test_a_round_is_stopped_at_any_call(name: str, count_cases: Callable[[str, int], None]) -> None:
    start, nth, ends = laid(), 1, Counter[bool]()
    while True:
        driver = opened(start.fork(), now_ms=NOW)
        assert driver.store is not None
        log, disk = driver.store.get(KEY), driver.disk
        checkpoint = driver.store.cleaner_point(KEY)
        before = {rec.key: rec for rec in records_of(log)}
        disk.hook = stopper = Stopper(driver, nth, ACTS[name])
        driver.cleaner.run_once("sim")
        stopper.end()
        disk.hook = None
        if stopper.future is None:
            break
        # What was under way when it was told is finished, and nothing else is read or written.
        assert stopper.later["read"] <= 1, (nth, stopper.later)
        assert stopper.later["write"] <= 1, (nth, stopper.later)
        ends[_check(driver, name, before, checkpoint)] += 1
        nth += STRIDE
    assert ends[False] > 10, "rounds that were stopped"
    assert ends[True] > 0, "rounds that were past their last question"
    count_cases("rounds stopped at a call", sum(ends.values()))


def _check(driver: Driver, name: str, before: dict[Any, Any], checkpoint: int | None) -> bool:
    """All is in order, also later; whether the round came to its end."""
    disk = driver.disk
    if name == "close":
        # The lock is free, and all was closed in order.
        driver = opened(disk, now_ms=NOW)
    assert driver.store is not None
    if name == "delete":
        assert driver.store.partitions() == []
        names = [path for path in disk.list_directory(DIR) if path.startswith("a-0")]
        assert names != ["a-0"], "the round has made its directory again"
        driver.store.create(KEY)
        assert driver.manager.state_of(KEY) == NONE
        assert records_of(driver.store.get(KEY)) == []
        return driver.cleaner.stats.runs["ratio", "cleaned"] == 1
    log = driver.store.get(KEY)
    assert log.is_writable
    assert (driver.manager.state_of(KEY) == NONE) == (name != "pause")
    is_done = driver.store.cleaner_point(KEY) != checkpoint
    if name == "truncate":
        # The round may have moved it up before it came down with the truncation.
        assert log.log_end_offset <= TRUNCATED_AT
        is_done = driver.cleaner.stats.runs["ratio", "cleaned"] == 1
        assert (driver.store.cleaner_point(KEY) or 0) <= log.log_end_offset
    else:
        assert {rec.key: rec for rec in records_of(log)} == before
        if is_done:
            sealed = [r for r in records_of(log) if r.offset < log.segments.active.base_offset]
            assert len({rec.key for rec in sealed}) == len(sealed)
    names = disk.list_directory(log.path)
    assert not [one for one in names if one.endswith((".part", ".cleaned", ".swap"))], names
    clean_through(driver)
    return is_done
