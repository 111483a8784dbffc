"""From a partition's state to a job."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from stratalog.clean.job import ActiveProducer, CleaningJob, CleanSpec, SourceSegment, new_secret
from stratalog.clean.plan import PartitionState, SegmentState, plan_clean, range_of
from stratalog.segment.txn_index import AbortedTxn

SPEC = CleanSpec(now_ms=1000, delete_retention_ms=300)
STATE = PartitionState(
    "orders-0",
    "/logs/orders-0",
    (
        SegmentState(0, 500, 8, 12, 700, 650),
        SegmentState(40, 600, 16, 24, 800, 750),
        SegmentState(90, 100, 0, 0, 900, 900),
    ),
    log_start_offset=0,
    log_end_offset=120,
    last_stable_offset=120,
    checkpoint=None,
    producers=(ActiveProducer(7, 1, 60), ActiveProducer(8, 0, -1)),
    aborted=(AbortedTxn(7, 3, 20, 21), AbortedTxn(7, 30, 50, 51)),
)


def planned(spec: CleanSpec = SPEC, **changes: Any) -> CleaningJob | None:
    state = replace(STATE, **changes)
    return plan_clean(state, range_of(state, min_compaction_lag_ms=0, now_ms=spec.now_ms), spec)


@pytest.mark.requirement("CMP-2", "CMP-3")
def test_a_job_names_all_segments_below_the_uncleanable_ones() -> None:
    assert planned() == CleaningJob(
        "orders-0",
        "/logs/orders-0",
        SPEC,
        (SourceSegment(0, 40, 500, 8, 12, 700), SourceSegment(40, 90, 600, 16, 24, 800)),
        first_dirty=0,
        first_uncleanable=90,
        aborted=STATE.aborted,
        producers=STATE.producers,
        legacy_horizon_ms=0,
    )


@pytest.mark.requirement("CMP-2")
@pytest.mark.parametrize(
    ("checkpoint", "clean", "dirty"),
    [(0, [], [0, 40]), (39, [0], [0, 40]), (40, [0], [40]), (41, [0, 40], [40])],
)
def test_the_checkpoint_splits_its_segments(
    checkpoint: int, clean: list[int], dirty: list[int]
) -> None:
    job = planned(checkpoint=checkpoint)
    assert job is not None
    assert [segment.base_offset for segment in job.clean_segments] == clean
    assert [segment.base_offset for segment in job.dirty_segments] == dirty


@pytest.mark.requirement("CMP-8")
@pytest.mark.parametrize(("checkpoint", "horizon"), [(0, 0), (1, 400), (40, 400), (41, 500)])
def test_old_tombstones_go_by_the_time_of_the_last_clean_segment(
    checkpoint: int, horizon: int
) -> None:
    job = planned(checkpoint=checkpoint)
    assert job is not None
    assert job.legacy_horizon_ms == horizon


@pytest.mark.requirement("CMP-3", "CMP-14")
def test_nothing_to_clean_is_no_job() -> None:
    assert planned(checkpoint=90) is None
    assert planned(checkpoint=120) is None
    assert planned(last_stable_offset=39) is None
    assert planned(segments=STATE.segments[2:], log_start_offset=90) is None
    empty = tuple(replace(segment, size_bytes=0) for segment in STATE.segments)
    assert planned(segments=empty) is None


@pytest.mark.requirement("CMP-14")
def test_aborted_ranges_that_end_below_the_log_start_are_unknown() -> None:
    job = planned(log_start_offset=21)
    assert job is not None
    assert job.aborted == STATE.aborted[1:]


def test_a_job_travels() -> None:
    job = planned()
    assert pickle.loads(pickle.dumps(job)) == job


@pytest.mark.requirement("CMP-6")
def test_each_run_has_a_secret_of_its_own() -> None:
    assert len({new_secret() for _ in range(100)}) == 100
    assert CleanSpec(now_ms=0).hash_secret != CleanSpec(now_ms=0).hash_secret
    assert all(0 <= word < 1 << 64 for word in new_secret())
