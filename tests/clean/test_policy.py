"""What part of a log may be cleaned: every bound, each at its edge."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from stratalog.clean.policy import CleanableRange, SegmentFacts, cleanable_range
from tests.naive import plan
from tests.naive.files import Segment

NOW = 1_000_000
SEGMENTS = [  # bases 0, 100, 200 (active), 10 bytes for each offset
    SegmentFacts(0, 1000, NOW - 3000),
    SegmentFacts(100, 1000, NOW - 1000),
    SegmentFacts(200, 500, NOW),
]


def range_with(**changes: Any) -> CleanableRange:
    arguments = {
        "segments": SEGMENTS,
        "log_start_offset": 0,
        "log_end_offset": 250,
        "last_stable_offset": 250,
        "checkpoint": None,
        "min_compaction_lag_ms": 0,
        "now_ms": NOW,
        **changes,
    }
    return cleanable_range(arguments.pop("segments"), **arguments)


@pytest.mark.requirement("CMP-2", "CMP-3")
def test_all_but_the_active_segment_is_dirty_at_first() -> None:
    found = range_with()
    assert found == CleanableRange(0, 200, 200, 0, 2000, False)
    assert found.dirty_ratio == 1.0


@pytest.mark.requirement("CMP-2")
def test_a_checkpoint_splits_the_log() -> None:
    found = range_with(checkpoint=100)
    assert found == CleanableRange(100, 200, 200, 1000, 1000, False)
    assert found.dirty_ratio == 0.5
    # In the middle of a segment, that segment counts on both sides.
    assert range_with(checkpoint=150) == CleanableRange(150, 200, 200, 2000, 1000, False)
    assert range_with(checkpoint=200).cleanable_bytes == 0


@pytest.mark.requirement("CMP-3")
@pytest.mark.parametrize(
    ("checkpoint", "start", "first_dirty", "was_reset"),
    [
        (None, 0, 0, False),
        (None, 30, 30, False),
        (0, 0, 0, False),
        (29, 30, 30, True),
        (30, 30, 30, False),
        (250, 0, 250, False),
        (251, 0, 0, True),
        (251, 30, 30, True),
    ],
)
def test_a_checkpoint_outside_the_log_is_reset_to_its_start(
    checkpoint: int | None, start: int, first_dirty: int, was_reset: bool
) -> None:
    found = range_with(checkpoint=checkpoint, log_start_offset=start)
    assert (found.first_dirty, found.checkpoint_was_reset) == (first_dirty, was_reset)


@pytest.mark.requirement("CMP-3")
@pytest.mark.parametrize(
    ("lag_ms", "first_uncleanable"),
    [
        (0, 200),
        (999, 200),
        (1000, 200),  # the segment at 100 is exactly that old: it may be cleaned
        (1001, 100),
        (3000, 100),
        (3001, 0),
    ],
)
def test_young_segments_wait_for_the_minimum_lag(lag_ms: int, first_uncleanable: int) -> None:
    found = range_with(min_compaction_lag_ms=lag_ms)
    assert found.first_uncleanable == first_uncleanable
    assert found.cleanable_bytes == 10 * first_uncleanable


@pytest.mark.requirement("CMP-3")
def test_a_young_segment_below_the_checkpoint_holds_nothing_back() -> None:
    segments = [SegmentFacts(0, 1000, NOW), *SEGMENTS[1:]]
    assert range_with(segments=segments, min_compaction_lag_ms=500).first_uncleanable == 0
    found = range_with(segments=segments, min_compaction_lag_ms=500, checkpoint=100)
    assert (found.first_dirty, found.first_uncleanable) == (100, 200)


@pytest.mark.requirement("CMP-3", "CMP-14")
@pytest.mark.parametrize(
    ("last_stable_offset", "limit", "first_uncleanable"),
    [(250, 200, 200), (200, 200, 200), (199, 199, 100), (100, 100, 100), (99, 99, 0), (0, 0, 0)],
)
def test_an_open_transaction_holds_its_whole_segment_back(
    last_stable_offset: int, limit: int, first_uncleanable: int
) -> None:
    found = range_with(last_stable_offset=last_stable_offset)
    assert (found.limit_offset, found.first_uncleanable) == (limit, first_uncleanable)
    assert found.cleanable_bytes == 10 * first_uncleanable


@pytest.mark.requirement("CMP-3")
def test_a_transaction_open_below_the_checkpoint_leaves_nothing_to_clean() -> None:
    found = range_with(checkpoint=150, last_stable_offset=120)
    assert (found.first_dirty, found.first_uncleanable, found.cleanable_bytes) == (150, 100, 0)


def test_an_empty_log_is_not_dirty() -> None:
    found = range_with(
        segments=[SegmentFacts(7, 0, NOW)],
        log_start_offset=7,
        log_end_offset=7,
        last_stable_offset=7,
    )
    assert (found.first_dirty, found.cleanable_bytes, found.dirty_ratio) == (7, 0, 0.0)


@pytest.mark.requirement("CMP-2", "CMP-3")
def test_any_range_is_that_of_the_naive_twin() -> None:
    random = Random(1)
    for _ in range(3000):
        bases = [random.randrange(5)]
        for _ in range(random.randrange(6)):
            bases.append(bases[-1] + random.randrange(1, 12))
        sizes = [random.choice([0, 1, 7, 100]) for _ in bases]
        times = [random.randrange(20) for _ in bases]
        log_start = random.randrange(bases[0], bases[min(1, len(bases) - 1)] + 1)
        log_end = max(log_start, bases[-1] + random.randrange(6))
        stable = random.randrange(log_start, log_end + 1)
        checkpoint = random.choice([None, random.randrange(log_end + 4)])
        lag = random.choice([0, 0, random.randrange(1, 20)])
        found = cleanable_range(
            [SegmentFacts(*row) for row in zip(bases, sizes, times, strict=True)],
            log_start_offset=log_start,
            log_end_offset=log_end,
            last_stable_offset=stable,
            checkpoint=checkpoint,
            min_compaction_lag_ms=lag,
            now_ms=20,
        )
        expected = plan.cleanable_range(
            [
                Segment(base, bytes(size), time, 0, (), ())
                for base, size, time in zip(bases, sizes, times, strict=True)
            ],
            plan.Inputs(
                settings={"min.compaction.lag.ms": str(lag)},
                now_ms=20,
                log_start_offset=log_start,
                last_stable_offset=stable,
                log_end_offset=log_end,
                checkpoint=checkpoint,
            ),
        )
        assert found.first_dirty == expected.first_dirty
        assert found.limit_offset == expected.first_uncleanable_dirty
        assert found.first_uncleanable == expected.first_uncleanable
        assert found.clean_bytes == expected.clean_bytes
        if found.first_dirty <= found.first_uncleanable:
            assert found.cleanable_bytes == expected.cleanable_bytes
            assert found.dirty_ratio == expected.ratio
        else:
            assert found.cleanable_bytes == 0
