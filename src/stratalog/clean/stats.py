"""What the cleaner has done, as plain counters; the floor of metrics reads them.

Counters only grow while the process lives. A `Durations` is a histogram with fixed bounds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field

from stratalog.clean.history import Entry

BOUNDS_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0)


@dataclass(slots=True)
class Durations:
    """`counts[i]`: durations of at most `BOUNDS_SECONDS[i]` and above the bound before; the last
    one: above all."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_SECONDS) + 1))
    total_seconds: float = 0.0

    def add(self, seconds: float) -> None:
        place = next(
            (i for i, bound in enumerate(BOUNDS_SECONDS) if seconds <= bound), len(BOUNDS_SECONDS)
        )
        self.counts[place] += 1
        self.total_seconds += seconds


@dataclass(slots=True)
class CleanerStats:
    """Belongs to the `Cleaner`, whose lock guards it.

    `runs` by (trigger, result); `removed` records by reason (the fields of `Drops`); `last` is the
    newest entry of each thread, from which Kafka's gauges are made. `last_loop_ms`: when a thread
    last looked for something to clean, or began to; None before the first.
    """

    runs: Counter[tuple[str, str]] = field(default_factory=Counter)
    removed: Counter[str] = field(default_factory=Counter)
    read_bytes: int = 0
    written_bytes: int = 0
    durations: dict[str, Durations] = field(
        default_factory=lambda: {"index": Durations(), "rewrite": Durations()}
    )
    last: dict[str, Entry] = field(default_factory=dict)
    last_run_ms: int | None = None
    last_loop_ms: int | None = None

    def add(self, entry: Entry, *, read_bytes: int, written_bytes: int, now_ms: int) -> None:
        """Count a round that has ended."""
        self.runs[entry.trigger, entry.result] += 1
        self.removed.update(asdict(entry.drops))
        self.read_bytes += read_bytes
        self.written_bytes += written_bytes
        if entry.result == "cleaned":
            self.durations["index"].add(entry.index_ms / 1000)
            self.durations["rewrite"].add(entry.rewrite_ms / 1000)
            self.last[entry.thread] = entry
            self.last_run_ms = now_ms
