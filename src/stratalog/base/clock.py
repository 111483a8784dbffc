"""The only door to the time of day, so that every rule about time can be replayed.

Deciding functions take `now_ms` as an argument and never see a clock; only the few stateful
objects hold one. Times are milliseconds since 1970-01-01 UTC, as in Kafka.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Tells the time and waits."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        ...

    def sleep_ms(self, duration_ms: int) -> None:
        """Wait for `duration_ms` milliseconds of this clock's time."""
        ...


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep_ms(self, duration_ms: int) -> None:
        time.sleep(duration_ms / 1000)


@dataclass(frozen=True, slots=True)
class StoppedClock:
    """Always the same time, for `--now` and for what has to be of one moment; waiting for another
    process takes as long as it takes."""

    time_ms: int

    def now_ms(self) -> int:
        return self.time_ms

    def sleep_ms(self, duration_ms: int) -> None:
        time.sleep(duration_ms / 1000)


@dataclass(slots=True)
class FixedClock:
    """A clock that stands still until it is moved, and is moved by waiting: for tests."""

    time_ms: int

    def now_ms(self) -> int:
        return self.time_ms

    def sleep_ms(self, duration_ms: int) -> None:
        self.time_ms += duration_ms
