"""What is done to a log store while the power may go at any call. Steps: `tests.sim.client`.

`DURABILITY`, `DELETING`, `PLACES`: by what they are about, and by which test explores them.
"""

from __future__ import annotations

from random import Random

from stratalog.log.log_store import LOG_END
from stratalog.log.settings import LogSettings
from tests.sim.client import Step
from tests.sim.scenario import Scenario

# Small enough for indexes of several entries and for an index that matters.
SMALL = LogSettings(index_interval_bytes=64)
EACH = LogSettings(index_interval_bytes=64, flush_messages=1)
THIRD = LogSettings(index_interval_bytes=200, flush_messages=3)
TIMED = LogSettings(index_interval_bytes=100, flush_ms=1_000)
NARROW = LogSettings(index_interval_bytes=64, segment_bytes=700)
BY_SIZE = LogSettings(index_interval_bytes=64, segment_bytes=400, retention_bytes=500)
BY_TIME = LogSettings(index_interval_bytes=64, retention_ms=60_000)

TWO_SEGMENTS: tuple[Step, ...] = (
    *(("create", "a"), ("append", "a", 2), ("produce", "a", 4, 2), ("flush", "a"), ("roll", "a")),
    *(("append", "a", 1), ("write", "a", 5, 1)),
)
FOUR_SEGMENTS: tuple[Step, ...] = (
    *(("create", "a"), ("append", "a", 2), ("write", "a", 5, 1), ("roll", "a")),
    *(("produce", "a", 4, 2), ("abort", "a", 5), ("roll", "a"), ("append", "a", 2), ("flush", "a")),
    *(("roll", "a"), ("append", "a", 1), ("produce", "a", 4, 1), ("checkpoint",)),
)

DURABILITY = (
    Scenario(
        "every append is on the disk",
        (
            *(("create", "a"), ("append", "a", 1), ("produce", "a", 4, 2), ("roll", "a")),
            *(("append", "a", 1), ("produce", "a", 4, 1), ("append", "a", 3)),
        ),
        EACH,
    ),
    Scenario(
        "every third record is on the disk",
        (
            *(("create", "a"), ("append", "a", 1), ("append", "a", 1), ("produce", "a", 4, 1)),
            *(("roll", "a"), ("append", "a", 2), ("produce", "a", 4, 1), ("append", "a", 4)),
        ),
        THIRD,
    ),
    Scenario(
        "flushed by the clock",
        (
            *(("append", "a", 2), ("due", 1_000), ("append", "a", 1), ("append", "a", 1)),
            *(("due", 500), ("roll", "a"), ("append", "a", 1), ("due", 1_000)),
        ),
        TIMED,
        (("create", "a"),),
    ),
    Scenario(
        "transactions over a roll",
        (
            *(("write", "a", 5, 2), ("write", "a", 6, 1), ("roll", "a"), ("abort", "a", 5)),
            *(("write", "a", 5, 1), ("flush", "a"), ("abort", "a", 6), ("roll", "a")),
            *(("abort", "a", 5), ("write", "a", 6, 1), ("commit", "a", 6), ("flush", "a")),
            *(("checkpoint",), ("append", "a", 1)),
        ),
        SMALL,
        (("create", "a"), ("append", "a", 1)),
    ),
    Scenario(
        "aborted below the recovery point",
        (
            *(("write", "a", 5, 1), ("abort", "a", 5), ("write", "a", 5, 2), ("abort", "a", 5)),
            *(("roll", "a"), ("checkpoint",), ("append", "a", 1), ("roll", "a"), ("checkpoint",)),
            *(("produce", "a", 5, 1), ("flush", "a")),
        ),
        SMALL,
        (("create", "a"), ("append", "a", 1)),
    ),
    Scenario(
        "rolled by size, closed, opened",
        (
            *(("append", "a", 2), ("produce", "a", 4, 2), ("append", "a", 2), ("append", "a", 2)),
            *(("produce", "a", 4, 3), ("close",), ("open",), ("produce", "a", 4, 1)),
            *(("append", "a", 2), ("flush", "a"), ("append", "a", 1)),
        ),
        NARROW,
        (("create", "a"),),
        value_bytes=90,
    ),
    Scenario(
        "opened after no close",
        (("open",), ("append", "a", 1), ("flush", "a"), ("append", "a", 1), ("close",), ("open",)),
        SMALL,
        (*TWO_SEGMENTS, ("stop",)),
    ),
    Scenario(
        "opened after a close",
        (("open",), ("append", "a", 1), ("roll", "a"), ("append", "a", 1), ("close",)),
        SMALL,
        (*TWO_SEGMENTS, ("abort", "a", 5), ("close",)),
    ),
    Scenario(
        "two partitions and their checkpoints",
        (
            *(("append", "a", 1), ("append", "b", 2), ("flush", "b"), ("checkpoint",)),
            *(("append", "b", 1), ("roll", "a"), ("checkpoint",), ("delete_records", "a", 1)),
            *(("checkpoint",), ("append", "a", 1), ("flush", "a"), ("close",)),
        ),
        SMALL,
        (("create", "a"), ("create", "b")),
    ),
    Scenario(
        "replicated with gaps",
        (
            *(("append", "a", 1), ("replicate", "a", 3), ("replicate", "a", 2), ("flush", "a")),
            *(("replicate", "a", 5), ("append", "a", 1), ("flush", "a"), ("checkpoint",)),
        ),
        LogSettings(index_interval_bytes=64, segment_bytes=150),
        (("create", "a"),),
    ),
)

COMPACTED = LogSettings(index_interval_bytes=64, cleanup_policy=("compact",))
SIX_SEGMENTS: tuple[Step, ...] = (
    *(("create", "a"), ("append", "a", 2), ("append", "a", 1), ("produce", "a", 4, 1)),
    *(("roll", "a"), ("append", "a", 1), ("write", "a", 5, 1), ("append", "a", 2)),
    *(("abort", "a", 5), ("roll", "a"), ("append", "a", 1), ("append", "a", 1)),
    *(("produce", "a", 4, 2), ("roll", "a"), ("append", "a", 2), ("write", "a", 6, 1)),
    *(("roll", "a"), ("append", "a", 1), ("append", "a", 1), ("abort", "a", 6), ("roll", "a")),
    *(("append", "a", 1), ("checkpoint",)),
)

SWAPS = (
    *(
        Scenario(
            f"{last - first + 1} segments become {count}",
            (("swap", "a", first, last, count), ("append", "a", 1)),
            COMPACTED,
            SIX_SEGMENTS,
        )
        for first, last, count in (
            *((1, 1, 1), (0, 1, 1), (0, 2, 1), (1, 4, 1)),
            *((1, 1, 2), (0, 1, 2), (2, 4, 2), (0, 3, 2)),
        )
    ),
    Scenario(
        "two swaps in a row",
        (
            *(("swap", "a", 0, 1, 1), ("swap", "a", 1, 3, 2), ("append", "a", 1)),
            *(("flush", "a"), ("close",)),
        ),
        COMPACTED,
        SIX_SEGMENTS,
    ),
    Scenario(
        "what was swapped is swapped again",
        (
            *(("swap", "a", 0, 1, 2), ("swap", "a", 0, 3, 1), ("close",), ("open",)),
            *(("produce", "a", 4, 1), ("flush", "a")),
        ),
        COMPACTED,
        SIX_SEGMENTS,
    ),
    Scenario(
        "swapped, appended, rolled, flushed",
        (
            *(("swap", "a", 1, 2, 1), ("append", "a", 2), ("roll", "a"), ("produce", "a", 4, 1)),
            *(("flush", "a"), ("swap", "a", 2, 4, 1), ("append", "a", 1), ("flush", "a")),
            ("checkpoint",),
        ),
        COMPACTED,
        SIX_SEGMENTS,
    ),
)

DELETING = (
    Scenario(
        "retention by size",
        (
            *(("retention",), ("append", "a", 2), ("produce", "a", 4, 1), ("append", "a", 2)),
            *(("retention",), ("due", 60_000), ("append", "a", 1), ("flush", "a")),
        ),
        BY_SIZE,
        (
            *(("create", "a"), ("append", "a", 2), ("write", "a", 5, 2), ("abort", "a", 5)),
            *(("produce", "a", 4, 2), ("append", "a", 3), ("append", "a", 2)),
        ),
        value_bytes=60,
    ),
    Scenario(
        "retention by time takes everything",
        (
            *(("append", "a", 1), ("due", 61_000), ("append", "a", 1), ("due", 300_000)),
            *(("append", "a", 2), ("flush", "a"), ("due", 60_000), ("append", "a", 1)),
        ),
        BY_TIME,
        FOUR_SEGMENTS,
    ),
    Scenario(
        "records are deleted, then their segments",
        (
            *(("delete_records", "a", 1), ("delete_records", "a", 6), ("retention",)),
            *(("append", "a", 1), ("delete_records", "a", LOG_END), ("append", "a", 1)),
            *(("flush", "a"), ("due", 60_000), ("close",)),
        ),
        SMALL,
        FOUR_SEGMENTS,
    ),
    Scenario(
        "unflushed records are deleted",
        (
            *(("append", "a", 2), ("delete_records", "a", LOG_END), ("append", "a", 1)),
            *(("roll", "a"), ("append", "a", 1), ("delete_records", "a", LOG_END)),
            *(("retention",), ("append", "a", 1), ("flush", "a")),
        ),
        SMALL,
        TWO_SEGMENTS,
    ),
    Scenario(
        "truncated inside a segment",
        (
            *(("truncate", "a", 8), ("append", "a", 1), ("flush", "a"), ("checkpoint",)),
            *(("truncate", "a", 4), ("produce", "a", 4, 1), ("flush", "a"), ("close",)),
        ),
        SMALL,
        FOUR_SEGMENTS,
    ),
    Scenario(
        "truncated between flushed batches",
        (
            *(("truncate", "a", 4), ("append", "a", 1), ("flush", "a"), ("truncate", "a", 3)),
            *(("produce", "a", 4, 1), ("flush", "a"), ("checkpoint",)),
        ),
        SMALL,
        (
            *(("create", "a"), ("append", "a", 1), ("roll", "a"), ("append", "a", 1)),
            *(("write", "a", 5, 1), ("abort", "a", 5), ("append", "a", 2), ("flush", "a")),
            ("append", "a", 1),
        ),
    ),
    Scenario(
        "truncated inside a batch",
        (
            *(("truncate", "a", 4), ("append", "a", 1), ("flush", "a"), ("checkpoint",)),
            *(("append", "a", 1), ("roll", "a"), ("append", "a", 1), ("truncate", "a", 1)),
            *(("append", "a", 1), ("flush", "a")),
        ),
        SMALL,
        FOUR_SEGMENTS,
    ),
    Scenario(
        "truncated to nothing",
        (("delete_records", "a", 1), ("truncate", "a", 1), ("append", "a", 1), ("flush", "a")),
        SMALL,
        TWO_SEGMENTS,
    ),
    Scenario(
        "truncated at a segment's start",
        (
            *(("truncate", "a", 4), ("append", "a", 2), ("flush", "a"), ("roll", "a")),
            *(("truncate", "a", 6), ("append", "a", 1), ("flush", "a"), ("checkpoint",)),
        ),
        SMALL,
        (*TWO_SEGMENTS, ("flush", "a"), ("checkpoint",)),
    ),
)

PLACES = (
    Scenario(
        "made, deleted, made again",
        (
            *(("create", "a"), ("append", "a", 3), ("flush", "a"), ("checkpoint",)),
            *(("delete_records", "a", 2), ("delete", "a"), ("create", "a"), ("append", "a", 1)),
            *(("flush", "a"), ("due", 60_000), ("append", "a", 1), ("close",)),
        ),
        SMALL,
    ),
    Scenario(
        "one of two is deleted and made again",
        (
            *(("delete", "a"), ("append", "b", 1), ("create", "a"), ("produce", "a", 4, 1)),
            *(("flush", "a"), ("checkpoint",), ("delete", "b"), ("due", 60_000), ("close",)),
        ),
        SMALL,
        (
            *FOUR_SEGMENTS,
            *(("create", "b"), ("append", "b", 2), ("delete_records", "a", 6), ("flush", "a")),
            *(("checkpoint",), ("close",), ("open",)),
        ),
    ),
    Scenario(
        "deleted after a close, made again after the next",
        (
            *(("open",), ("delete", "a"), ("close",), ("open",), ("create", "a")),
            *(("append", "a", 1), ("close",)),
        ),
        SMALL,
        (*TWO_SEGMENTS, ("delete_records", "a", 3), ("close",)),
    ),
)

_KINDS = ("append", "produce", "txn", "flush", "roll", "checkpoint", "delete_records", "truncate")
_WEIGHTS = (6, 3, 3, 2, 2, 1, 1, 1)


def random_scenario(seed: int) -> Scenario:
    """Ten to twenty steps on one log, of any kind."""
    rng = Random(seed)
    steps: list[Step] = []
    end = start = 0
    is_open = dict.fromkeys((5, 6), False)
    for kind in rng.choices(_KINDS, _WEIGHTS, k=rng.randint(10, 20)):
        n = rng.randint(1, 3)
        match kind:
            case "append":
                steps.append(("append", "a", n))
                end += n
            case "produce":
                steps.append(("produce", "a", 4, n))
                end += n
            case "txn":
                producer_id = rng.choice((5, 6))
                if is_open[producer_id] and rng.random() < 0.7:
                    steps.append((rng.choice(("abort", "abort", "commit")), "a", producer_id))
                    is_open[producer_id], n = False, 1
                else:
                    steps.append(("write", "a", producer_id, n))
                    is_open[producer_id] = True
                end += n
            case "delete_records":
                start = rng.randint(start, end)
                steps.append(("delete_records", "a", start))
            case "checkpoint":
                steps.append(("checkpoint",))
            case "flush" | "roll":
                steps.append((kind, "a"))
            case "truncate" if not any(is_open.values()):
                pass
    settings = LogSettings(
        index_interval_bytes=rng.choice((1, 100, 400)),
        segment_bytes=rng.choice((600, 900, 1 << 20)),
        flush_messages=rng.choice((1, 4, 1 << 40, 1 << 40)),
    )
    cut = rng.randint(0, 5)
    return Scenario(
        f"random scenario {seed}",
        tuple(steps[cut:]),
        settings,
        (("create", "a"), *steps[:cut]),
        value_bytes=rng.choice((5, 60, 150)),
    )
