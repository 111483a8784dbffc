"""The cleaners' throttle: its rate holds over any stretch, whoever draws and whatever the clock."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest

from stratalog.base.clock import FixedClock
from stratalog.base.throttle import BURST_MS, Throttle

NOW = 1_700_000_000_000
Count = Callable[[str, int], None]


class SharedClock:
    """A clock for several threads: it moves when all of them sleep, to when the first one wakes."""

    def __init__(self, threads: int):
        self.time_ms = NOW
        self.longest_ms = 0
        self._awake = threads
        self._waking: list[int] = []
        self._changed = threading.Condition()

    def now_ms(self) -> int:
        return self.time_ms

    def sleep_ms(self, duration_ms: int) -> None:
        with self._changed:
            self.longest_ms = max(self.longest_ms, duration_ms)
            until_ms = self.time_ms + duration_ms
            self._waking.append(until_ms)
            self._step_back()
            while self.time_ms < until_ms:
                self._changed.wait()

    def leave(self) -> None:
        """A thread has ended."""
        with self._changed:
            self._step_back()

    def _step_back(self) -> None:
        self._awake -= 1
        if self._awake == 0 and self._waking:
            self.time_ms = min(self._waking)
            self._awake = self._waking.count(self.time_ms)
            self._waking = [at for at in self._waking if at > self.time_ms]
            self._changed.notify_all()


def check_rate(draws: list[tuple[int, int]], rate: float, drawers: int) -> None:
    """(when, bytes) of each draw that has returned, in order; see I1 of the throttle."""
    largest = max(size for _, size in draws)
    for first in range(len(draws)):
        drawn = 0
        for at_ms, size in draws[first:]:
            drawn += size
            bound = rate * (at_ms - draws[first][0] + BURST_MS) / 1000 + drawers * largest
            assert drawn <= bound + 1e-6 * drawn, (first, at_ms)


@pytest.mark.requirement("CLN-1", "CLN-8")
def test_the_rate_holds_over_any_stretch(count_cases: Count) -> None:
    drawn = 0
    for seed in range(60):
        random = Random(seed)
        rate = random.choice([10.0, 1000.0, 1e6])
        clock = FixedClock(NOW)
        throttle = Throttle(clock, rate)
        draws: list[tuple[int, int]] = []
        for _ in range(60):
            if random.random() < 0.3:
                clock.sleep_ms(random.choice([1, 50, 299, 5_000, 3_600_000]))
            size = random.choice([0, 1, int(rate / 100), int(rate), int(rate * 3)])
            throttle.draw(size)
            draws.append((clock.now_ms(), size))
        check_rate(draws, rate, 1)
        drawn += len(draws)
    count_cases("draws from the cleaners' throttle", drawn)


@pytest.mark.requirement("CLN-1", "CLN-8")
def test_nobody_waits_longer_than_the_rate_asks() -> None:
    clock = FixedClock(NOW)
    throttle = Throttle(clock, 1000.0)
    for _ in range(100):
        throttle.draw(100)
    assert 100 * 100 - BURST_MS <= clock.now_ms() - NOW <= 100 * 100
    assert throttle.waited_ms == clock.now_ms() - NOW


def test_a_burst_is_free_and_rest_saves_no_more_than_a_burst() -> None:
    clock = FixedClock(NOW)
    throttle = Throttle(clock, 1000.0)
    for _ in range(3):
        throttle.draw(BURST_MS)
        assert clock.now_ms() == NOW, "a burst of the rate passes at once"
        throttle.draw(1)
        assert clock.now_ms() == NOW + 1
        later_ms = NOW + 3_600_000
        clock.time_ms = later_ms
        throttle.draw(BURST_MS + 7)
        assert clock.now_ms() == later_ms + 7, "an idle hour is not made up for"
        clock.time_ms, throttle = NOW, Throttle(clock, 1000.0)


@pytest.mark.requirement("CLN-1")
@pytest.mark.parametrize("drawers", [2, 5])
def test_several_threads_share_one_rate(drawers: int) -> None:
    rate, each = 10_000.0, 40
    clock = SharedClock(drawers)
    throttle = Throttle(clock, rate)
    draws: list[tuple[int, int]] = []
    lock = threading.Lock()

    def draw(number: int) -> None:
        random = Random(number)
        for _ in range(each):
            size = random.choice([10, 1000, 5000])
            throttle.draw(size)
            with lock:
                draws.append((clock.now_ms(), size))
        clock.leave()

    threads = [threading.Thread(target=draw, args=(number,)) for number in range(drawers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(draws) == each * drawers
    check_rate(draws, rate, drawers)
    total = sum(size for _, size in draws)
    took_ms = clock.now_ms() - NOW
    assert took_ms >= total / rate * 1000 - BURST_MS - 1
    assert took_ms <= total / rate * 1000 + each * drawers, "and no slower than that"
    assert clock.longest_ms <= BURST_MS


@pytest.mark.requirement("CLN-8")
@pytest.mark.parametrize("back_ms", [1, 1000, 3_600_000, 10 * 365 * 86_400_000])
def test_a_clock_that_is_set_back_costs_a_minute_at_most(back_ms: int) -> None:
    clock = FixedClock(NOW)
    throttle = Throttle(clock, 1000.0)
    throttle.draw(5000)
    clock.time_ms -= back_ms
    start_ms = clock.now_ms()
    for _ in range(50):
        throttle.draw(100)
    assert clock.now_ms() - start_ms <= 60_000 + 50 * 100


@pytest.mark.requirement("CLN-4", "CLN-8")
def test_whoever_waits_is_asked_whether_to_go_on() -> None:
    clock = FixedClock(NOW)
    throttle = Throttle(clock, 1000.0)
    asked: list[int] = []

    def check() -> None:
        asked.append(clock.now_ms())
        if clock.now_ms() >= NOW + 2000:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        throttle.draw(1_000_000, check)
    assert asked[0] == NOW, "before anything"
    assert max(later - earlier for earlier, later in pairwise(asked)) <= BURST_MS
    assert clock.now_ms() < NOW + 2000 + BURST_MS
    with pytest.raises(InterruptedError):
        Throttle(clock).draw(1, check)


def test_without_a_rate_nobody_waits_and_a_rate_may_be_changed() -> None:
    clock = FixedClock(NOW)
    throttle = Throttle(clock)
    assert math.isinf(throttle.rate)
    for _ in range(10):
        throttle.draw(1 << 60)
    assert clock.now_ms() == NOW
    throttle.rate = 1000.0
    throttle.draw(1000 + BURST_MS)
    assert clock.now_ms() == NOW + 1000
    throttle.rate = math.inf
    throttle.draw(1 << 60)
    assert clock.now_ms() == NOW + 1000
    assert throttle.waited_ms == 1000
