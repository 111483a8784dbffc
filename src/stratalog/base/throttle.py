"""A bound on bytes per second, shared by all who draw on it.

How it works: every draw moves the time at which the next one may begin, by bytes over rate. Up to
`BURST_MS` may be drawn ahead of time, so that short waits do not add up to many little sleeps.

Invariants
- I1  Over any stretch of the clock, no more is drawn than rate times (its length plus `BURST_MS`),
      plus one draw of each that drew at once.
- I2  Nobody sleeps longer than `BURST_MS` without asking whether to go on.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from stratalog.base.clock import Clock

BURST_MS = 300
"""The window of Kafka's own throttle of its cleaner."""


class Throttle:
    """`rate`: bytes per second, infinite for none; may be set at any time. Any thread may draw.

    `_lock` guards the time up to which the bytes are given away, and the count of waiting.
    """

    def __init__(self, clock: Clock, rate: float = math.inf):
        self.rate = rate
        self.waited_ms = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._taken_until_ms = 0.0

    def draw(self, size_bytes: int, check: Callable[[], None] = lambda: None) -> None:
        """Account for `size_bytes`, and wait until they are due. `check` is called between waits;
        what it raises ends the waiting."""
        check()
        if math.isinf(self.rate):
            return
        with self._lock:
            now_ms = self._clock.now_ms()
            # A clock that was set back must not make everybody wait for the time it had.
            begin_ms = min(max(self._taken_until_ms, now_ms), now_ms + _MAX_AHEAD_MS)
            self._taken_until_ms = begin_ms + size_bytes / self.rate * 1000
            wait_ms = self._taken_until_ms - now_ms - BURST_MS
        while wait_ms > 0:
            slept_ms = min(math.ceil(wait_ms), BURST_MS)
            self._clock.sleep_ms(slept_ms)
            with self._lock:
                self.waited_ms += slept_ms
            wait_ms -= slept_ms
            check()


_MAX_AHEAD_MS = 60_000
