"""What a store does by the clock, as values: jobs, when each is due, what is next. Pure.

Times are in ms of the caller's clock; nothing here waits. A clock that was set back makes no job
wait longer than its interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stratalog.record.layout import INT64_MAX


@dataclass(frozen=True, slots=True)
class Schedule:
    """`intervals_ms` and `last_run_ms` of each job, by name."""

    intervals_ms: Mapping[str, int]
    last_run_ms: Mapping[str, int]

    def due(self, now_ms: int) -> tuple[str, ...]:
        """The jobs whose time has come, in the order in which they were given."""
        return tuple(name for name in self.intervals_ms if self._wait_ms(name, now_ms) <= 0)

    def ran(self, names: tuple[str, ...], now_ms: int) -> Schedule:
        """After these jobs have run."""
        return Schedule(self.intervals_ms, {**self.last_run_ms, **dict.fromkeys(names, now_ms)})

    def wait_ms(self, now_ms: int) -> int:
        """How long until a job is due."""
        waits = (self._wait_ms(name, now_ms) for name in self.intervals_ms)
        return max(min(waits, default=INT64_MAX), 0)

    def _wait_ms(self, name: str, now_ms: int) -> int:
        last_ms = self.last_run_ms[name]
        return self.intervals_ms[name] - (now_ms - last_ms) if now_ms >= last_ms else 0


def schedule_of(intervals_ms: Mapping[str, int], now_ms: int) -> Schedule:
    """All jobs wait for their interval first."""
    return Schedule(intervals_ms, dict.fromkeys(intervals_ms, now_ms))
