"""A disk error at every call of the cleaner's rounds in an open store (CLN-7).

Two log directories; one of them fails. Whatever happens there, no call raises or hangs, the other
directory is cleaned, and nothing is lost. A full disk, or that no more files may be open, leaves
the log writable, and the partition is cleaned when its back-off is over; any other error takes the
directory offline, or did no harm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stratalog.clean.note import UNKNOWN
from stratalog.log.swap import has_intent
from stratalog.segment.names import STATE_DIRECTORY, TopicPartition
from tests.sim.disk import SimDisk
from tests.sim.explore import Journal
from tests.sim.faults import MEETS, Faults
from tests.sim.nodes import Call
from tests.sim.service import (
    ANY,
    HOUR,
    SETTINGS,
    TOPIC,
    Driver,
    Step,
    check_service,
    records_of,
    tombstones,
)
from tests.sim.sweeps import IS_SWEEP

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
DIRS = ("/data", "/other")
FULL = ("ENOSPC", "EDQUOT", "SHORT_WRITE", "EMFILE")
STRIDE = 1 if IS_SWEEP else 3
BEFORE: tuple[Step, ...] = (
    *(("create", "a"), ("create", "b")),
    *(step for topic in "ab" for step in (("put", topic, "abcA"), ("roll", topic))),
    ("clean",),
    *(step for topic in "ab" for step in (("put", topic, "bBd"), ("roll", topic))),
    *(("put", "a", "cde"), ("roll", "a"), ("put", "a", "b"), ("flush", "a"), ("put", "b", "x")),
)


def laid() -> tuple[SimDisk, Driver]:
    disk = SimDisk()
    for path in DIRS:
        disk.make_directory(path)
    driver = Driver(disk.sync_all(), Journal(), dirs=DIRS)
    driver.run((*BEFORE, ("close",)))
    return disk.fork().sync_all(), driver


def opened(disk: SimDisk, known: Driver, filesystem: Any = None) -> Driver:
    driver = Driver(disk, Journal(), dirs=DIRS, filesystem=filesystem)
    driver.kept, driver.count = dict(known.kept), known.count
    driver.do_open()
    driver.clock.time_ms = known.clock.time_ms
    return driver


class InOne(Faults):
    """Only in the first directory."""

    def __call__(self, call: Call) -> None:
        if call.path.startswith(DIRS[0]):
            super().__call__(call)


def faults_to_try(lasting: bool) -> Iterator[InOne]:
    for error in MEETS:
        nth = len(error) % STRIDE
        while True:
            faults = InOne(error, nth, None, lasting)
            yield faults
            if not faults.struck:
                break
            nth += STRIDE


def cleans(driver: Driver) -> None:
    """Rounds until nothing is to be done, however they end. Nothing is raised (CLN-7)."""
    driver.begin_cleaning()
    for _ in range(20):
        if not driver.cleaner.run_once("sim"):
            break
    else:
        raise AssertionError("the cleaner loops")
    assert driver.cleaner.activities() == []
    assert driver.manager._states.held == {}, "somebody is kept away"
    for key, kept in driver.kept.items():
        driver.kept[key] = kept._replace(checkpoint=ANY)
    driver.promise()


def is_clean(driver: Driver, key: TopicPartition) -> bool:
    assert driver.store is not None
    log = driver.store.get(key)
    found = records_of(log)
    sealed = [rec for rec in found if rec.offset < log.segments.active.base_offset]
    return (
        driver.store.cleaner_point(key) == log.segments.active.base_offset
        and len({rec.key for rec in sealed}) == len(sealed)
        and all(
            deadline_ms is not None and deadline_ms > driver.clock.now_ms()
            for offset, deadline_ms in tombstones(log).items()
            if offset < log.segments.active.base_offset
        )
    )


def check_reopened(driver: Driver) -> None:
    """What the next process finds, whether this one was killed or the power went, too."""
    allowed = {key: {kept} for key, kept in driver.kept.items()}
    image = driver.disk.fork()
    check_service(image, TOPIC, allowed, False, driver.clock.now_ms(), dirs=DIRS)
    image.forget_locks()
    again = opened(image, driver)
    again.clock.time_ms = driver.clock.now_ms() + SETTINGS.retry_backoff_max_ms
    cleans(again)
    for key in (A, B):
        assert is_clean(again, key), f"{key} is not cleaned after a start"


@pytest.mark.sweep
@pytest.mark.requirement("CLN-7", "CLN-3", "CMP-12", "CMP-9")
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "for good"])
def test_an_error_at_any_call_of_a_round(
    lasting: bool, count_cases: Callable[[str, int], None]
) -> None:
    ends: Counter[str] = Counter()
    start, known = laid()
    for faults in faults_to_try(lasting):
        driver = opened(start.fork(), known)
        try:
            driver.disk.hook = faults
            cleans(driver)
            driver.clock.time_ms += HOUR
            cleans(driver)
            faults.heal()
            ends[_outcome(driver, faults)] += 1
            driver.disk.hook = None
            check_reopened(driver)
        except Exception as error:
            raise AssertionError(f"{faults}: {type(error).__name__}: {error}") from error
    for outcome, least in (("offline", 10), ("went on", 5)):
        assert ends[outcome] > least, ends
    count_cases("rounds with a fault", sum(ends.values()))


def _outcome(driver: Driver, faults: Faults) -> str:
    store = driver.store
    assert store is not None
    assert is_clean(driver, B), "the other directory"
    assert DIRS[1] not in store.offline_dirs
    log = store.get(A)
    if not log.is_writable:
        # A swap that is carried on by the next start: the log itself has to wait for it.
        was_swap = has_intent(driver.disk, log.path) or any(
            call.kind == "fsync_directory" and call.path.endswith(STATE_DIRECTORY)
            for call in faults.struck
        )
        assert faults.error not in FULL or was_swap, log.offline
        assert (faults.error in FULL) == (not store.offline_dirs), log.offline
        return "offline"
    before = driver.kept[A].end
    driver.do(("put", "a", "z"))
    driver.do(("flush", "a"))
    assert log.log_end_offset == before + 1
    driver.clock.time_ms += SETTINGS.retry_backoff_max_ms
    cleans(driver)
    assert is_clean(driver, A), driver.manager.note_of(A)
    assert driver.manager.note_of(A).failure is None
    assert driver.manager.note_of(A).expiry(store.cleaner_point(A), by_segment=False) != UNKNOWN
    names = driver.disk.list_directory(log.path)
    assert not [name for name in names if name.endswith((".part", ".cleaned", ".swap"))], names
    return "went on"


class _ShortFile:
    def __init__(self, file: Any, disk: ShortReads):
        self._file = file
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def pread_into(self, buffer: Any, position: int) -> int:
        view = memoryview(buffer).cast("B")
        if self._file.path.startswith(DIRS[0]) and self._disk.is_next():
            view = view[: len(view) // 2]
        return int(self._file.pread_into(view, position))


class ShortReads:
    """A disk of which read number `nth` gives half of what is there."""

    def __init__(self, disk: SimDisk):
        self.nth = -1
        self.seen = 0
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, path: str, mode: Any) -> _ShortFile:
        return _ShortFile(self._disk.open(path, mode), self)

    def is_next(self) -> bool:
        self.seen += 1
        return self.seen == self.nth


@pytest.mark.sweep
@pytest.mark.requirement("CLN-7", "CMP-16")
def test_a_short_read_at_any_place_of_a_round(count_cases: Callable[[str, int], None]) -> None:
    start, known = laid()
    nth, quarantined = 0, 0
    while True:
        nth += 1
        disk = start.fork()
        short = ShortReads(disk)
        driver = opened(disk, known, short)
        short.seen, short.nth = 0, nth
        cleans(driver)
        if short.seen < nth:
            break
        assert is_clean(driver, B)
        assert driver.store is not None
        assert driver.store.offline_dirs == {}, f"read {nth}"
        quarantined += driver.manager.note_of(A).failure is not None
        driver.clock.time_ms += SETTINGS.retry_backoff_max_ms
        cleans(driver)
        assert is_clean(driver, A), f"read {nth}"
        check_reopened(driver)
    assert nth > 10
    assert quarantined > 3
    count_cases("rounds with a short read", nth - 1)
