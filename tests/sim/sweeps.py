"""How much is tried: every day, and with STRATALOG_SWEEP=1 (`make sweep`)."""

from __future__ import annotations

import os

IS_SWEEP = os.environ.get("STRATALOG_SWEEP") == "1"
FACTOR = 10


def budget(every_day: int) -> int:
    """So many states, or more in a sweep."""
    return every_day * FACTOR if IS_SWEEP else every_day
