"""Jobs by the clock, as values."""

from __future__ import annotations

import pytest

from stratalog.log.schedule import schedule_of


def test_each_job_waits_for_its_interval_first() -> None:
    schedule = schedule_of({"roll": 100, "points": 250}, 1_000)

    assert schedule.due(1_000) == ()
    assert schedule.wait_ms(1_000) == 100
    assert schedule.due(1_099) == ()
    assert schedule.due(1_100) == ("roll",)
    assert schedule.due(1_250) == ("roll", "points")


def test_a_job_that_ran_waits_from_when_it_ran() -> None:
    schedule = schedule_of({"roll": 100, "points": 300}, 1_000).ran(("roll",), 1_170)

    assert schedule.due(1_269) == ()
    assert schedule.due(1_270) == ("roll",)
    assert schedule.wait_ms(1_250) == 20


def test_late_jobs_are_due_once_and_wait_for_nothing() -> None:
    schedule = schedule_of({"roll": 100}, 0)

    assert schedule.wait_ms(10_000) == 0
    assert schedule.ran(schedule.due(10_000), 10_000).due(10_099) == ()


@pytest.mark.parametrize("back_ms", [1, 100, 10_000_000])
def test_a_clock_that_was_set_back_delays_nothing(back_ms: int) -> None:
    schedule = schedule_of({"roll": 100}, 1_000_000_000)

    now_ms = 1_000_000_000 - back_ms
    assert schedule.due(now_ms) == ("roll",)
    assert schedule.ran(("roll",), now_ms).wait_ms(now_ms) == 100


def test_without_jobs_there_is_nothing_to_wait_for() -> None:
    assert schedule_of({}, 5).due(1 << 60) == ()
    assert schedule_of({}, 5).wait_ms(5) == (1 << 63) - 1
