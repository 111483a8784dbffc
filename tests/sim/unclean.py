"""Scenarios that begin where somebody was stopped: what opening does is what they are about."""

from __future__ import annotations

from stratalog.log.log_store import LOG_END
from tests.sim.client import Step
from tests.sim.scenario import Scenario
from tests.sim.scenarios import SMALL

ONE_FLUSHED: tuple[Step, ...] = (("create", "a"), ("append", "a", 1), ("flush", "a"))
THREE_LEFT: tuple[Step, ...] = (
    *(("append", "a", 2), ("write", "a", 5, 1), ("roll", "a"), ("abort", "a", 5)),
    *(("append", "a", 1), ("roll", "a"), ("append", "a", 2)),
)
GOING_ON: tuple[Step, ...] = (
    *(("open",), ("append", "a", 1), ("flush", "a"), ("roll", "a"), ("append", "a", 1)),
    *(("flush", "a"), ("checkpoint",)),
)

LATE: tuple[Step, ...] = (
    *(("append", "a", 1), ("wait", 5_000), ("append", "a", 1), ("wait", -10_000)),
    *(("append", "a", 1), ("append", "a", 1), ("roll", "a")),
)
"""The latest record is in the middle: only the time index knows of it."""

UNCLEAN = (
    Scenario(
        "stopped in order, then not",
        (("open",), ("append", "a", 2), ("append", "a", 1)),
        SMALL,
        (*ONE_FLUSHED, ("append", "a", 1), ("close",)),
    ),
    Scenario("left in memory only", GOING_ON, SMALL, ONE_FLUSHED, left=THREE_LEFT),
    Scenario(
        "left in memory only, twice",
        (("open",), ("append", "a", 1), ("stop",), *GOING_ON),
        SMALL,
        ONE_FLUSHED,
        left=THREE_LEFT[2:],
    ),
    Scenario(
        "damaged, and segments behind it",
        GOING_ON,
        SMALL,
        ONE_FLUSHED,
        left=(*THREE_LEFT, ("roll", "a"), ("append", "a", 1), ("garble", "a", 5)),
        is_written=True,
    ),
    Scenario(
        "damaged in the first segment",
        GOING_ON,
        SMALL,
        (*ONE_FLUSHED, ("append", "a", 1), ("digest", "a")),
        left=(*THREE_LEFT, ("garble", "a", 2)),
    ),
    Scenario(
        "a digest of more than is left",
        (("open",), ("append", "a", 1), ("roll", "a"), ("append", "a", 1), ("flush", "a")),
        SMALL,
        (*ONE_FLUSHED, ("append", "a", 1), ("append", "a", 2), ("digest", "a"), ("tear", "a", 2)),
    ),
    Scenario(
        "nothing is left above the log's start",
        GOING_ON,
        SMALL,
        (
            *(("create", "a"), ("append", "a", 1), ("append", "a", 2)),
            *(("delete_records", "a", LOG_END), ("garble", "a", 0)),
        ),
    ),
    Scenario(
        "restored without leader epochs",
        (
            *(("create", "a"), ("replicate", "a", 0, -1), ("roll", "a"), ("replicate", "a", 0, -1)),
            *(("flush", "a"), ("replicate", "a", 0, -1)),
        ),
        SMALL,
    ),
    Scenario(
        "one leader after another",
        (
            *(("append", "a", 1), ("flush", "a"), ("append", "a", 1, 1), ("flush", "a")),
            *(("roll", "a"), ("append", "a", 1, 2), ("flush", "a"), ("append", "a", 1, 3)),
            # The epoch that ends with it is not to be back.
            *(("truncate", "a", 3), ("append", "a", 1, 4), ("flush", "a")),
        ),
        SMALL,
        ONE_FLUSHED,
    ),
    Scenario("out of the order of time", (*LATE, ("checkpoint",)), SMALL, ONE_FLUSHED),
    Scenario(
        "left in memory only, out of the order of time",
        (("open",), ("flush", "a"), ("checkpoint",)),
        SMALL,
        ONE_FLUSHED,
        left=(*LATE, ("append", "a", 1)),
    ),
)
