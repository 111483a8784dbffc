"""Who may work on a partition: the table cell by cell, then every interleaving of who uses it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog.base.errors import IllegalStepError, UsageError
from stratalog.clean.states import (
    ABORT,
    IN_PROGRESS,
    NONE,
    Event,
    Kind,
    State,
    States,
    Step,
    aborted,
    after_step,
    paused,
)
from tests.clean.states_model import (
    FIVE,
    OFFLINE,
    THREE,
    TRUNCATION,
    A,
    B,
    Cleaner,
    Rules,
    Script,
    World,
    script,
    walk,
)

STATES = [NONE, IN_PROGRESS, aborted(1), aborted(2), paused(1), paused(2)]

LEGAL = {
    (NONE, Step.START_CLEANING): IN_PROGRESS,
    (NONE, Step.START_DELETING): IN_PROGRESS,
    (NONE, Step.ABORT_AND_PAUSE): paused(1),
    (NONE, Step.PAUSE): paused(1),
    (IN_PROGRESS, Step.DONE_CLEANING): NONE,
    (IN_PROGRESS, Step.DONE_DELETING): NONE,
    (IN_PROGRESS, Step.CHECK): IN_PROGRESS,
    (IN_PROGRESS, Step.ABORT_AND_PAUSE): aborted(1),
    (aborted(1), Step.DONE_CLEANING): paused(1),
    (aborted(1), Step.DONE_DELETING): paused(1),
    (aborted(1), Step.CHECK): aborted(1),
    (aborted(1), Step.ABORT_AND_PAUSE): aborted(2),
    (aborted(2), Step.DONE_CLEANING): paused(2),
    (aborted(2), Step.DONE_DELETING): paused(2),
    (aborted(2), Step.CHECK): aborted(2),
    (aborted(2), Step.ABORT_AND_PAUSE): aborted(3),
    (paused(1), Step.ABORT_AND_PAUSE): paused(2),
    (paused(1), Step.PAUSE): paused(2),
    (paused(1), Step.RESUME): NONE,
    (paused(2), Step.ABORT_AND_PAUSE): paused(3),
    (paused(2), Step.PAUSE): paused(3),
    (paused(2), Step.RESUME): paused(1),
}


def holding(state: State) -> States:
    return States({} if state == NONE else {A: state})


def after_all(states: States, *steps: Step) -> States:
    for step in steps:
        states = states.after(Event(A, step))
    return states


@pytest.mark.requirement("CLN-4")
@pytest.mark.parametrize("step", Step)
@pytest.mark.parametrize("state", STATES, ids=str)
def test_each_cell_of_the_table(state: State, step: Step) -> None:
    before = States({**holding(state).held, B: paused(7)})
    expected = LEGAL.get((state, step))
    if expected is not None:
        after = before.after(Event(A, step))
        assert after.of(A) == expected
        assert after.of(B) == paused(7)
        return
    with pytest.raises(IllegalStepError, match=rf"a-0: no {step.value} while ") as caught:
        before.after(Event(A, step))
    assert isinstance(caught.value, UsageError)
    assert str(state) in str(caught.value)


@pytest.mark.requirement("CLN-4")
def test_pauses_are_counted() -> None:
    three = after_all(States(), Step.PAUSE, Step.ABORT_AND_PAUSE, Step.PAUSE)
    assert three.of(A) == paused(3)
    one = after_all(three, Step.RESUME, Step.RESUME)
    assert one.of(A) == paused(1)
    assert one.after(Event(A, Step.RESUME)) == States()


@pytest.mark.requirement("CLN-4")
def test_an_aborted_round_ends_as_paused() -> None:
    stopping = after_all(States(), Step.START_CLEANING, ABORT[0])
    assert stopping.of(A).must_stop
    ended = stopping.after(Event(A, Step.DONE_CLEANING))
    assert ended.of(A) == paused(1)
    assert not ended.of(A).is_free
    assert ended.after(Event(A, ABORT[1])).of(A).is_free


@pytest.mark.requirement("CLN-4")
def test_a_round_that_is_aborted_twice_waits_for_both() -> None:
    """Kafka raises IllegalStateException at the second."""
    twice = after_all(
        States(), Step.START_CLEANING, Step.ABORT_AND_PAUSE, Step.ABORT_AND_PAUSE, Step.CHECK
    )
    assert (twice.of(A).is_worked_on, twice.of(A).must_stop) == (True, True)
    ended = twice.after(Event(A, Step.DONE_CLEANING))
    assert ended.of(A) == paused(2)
    assert after_all(ended, Step.RESUME).of(A) == paused(1)


def test_states_are_values() -> None:
    empty = States()
    one = empty.after(Event(A, Step.PAUSE))
    assert (empty.of(A), one.of(A)) == (NONE, paused(1))
    both = one.after(Event(B, Step.START_CLEANING))
    other_way = empty.after(Event(B, Step.START_CLEANING)).after(Event(A, Step.PAUSE))
    assert both == other_way
    assert len({both, other_way, one, empty}) == 3
    assert dict(after_all(one, Step.RESUME).held) == {}
    with pytest.raises(AssertionError):
        State(Kind.PAUSED, 0)
    with pytest.raises(AssertionError):
        State(Kind.NONE, 1)


@pytest.mark.requirement("CLN-4", "CLN-5")
@pytest.mark.parametrize(
    ("scripts", "disk_fails", "most_pauses"),
    [
        pytest.param(THREE, "never", 3, id="three"),
        pytest.param(THREE, "after the round", 5, id="three and failing disks"),
        pytest.param(FIVE, "never", 4, id="five"),
        pytest.param(
            FIVE, "after the round", 6, id="five and failing disks", marks=pytest.mark.slow
        ),
    ],
)
def test_every_interleaving_is_sound(
    scripts: tuple[Script, ...],
    disk_fails: str,
    most_pauses: int,
    count_cases: Callable[[str, int], None],
) -> None:
    rules = Rules(scripts, disk_fails)
    found = walk(rules)
    finished = tuple(len(steps) for steps in scripts)
    # Pauses balance: the only end is the one where every partition is in state none.
    assert found.ends == {World(States(), (Cleaner(), Cleaner()), finished)}
    assert found.stuck == 0
    # The walk went everywhere that it claims: all nested pauses and aborts have been seen.
    assert max(state.pauses for state in found.state_kinds) == most_pauses
    assert aborted(2) in found.state_kinds
    count_cases("states of the cleaner's model", found.worlds)
    count_cases("moves in the cleaner's model", found.moves)


@pytest.mark.requirement("CLN-4")
def test_the_walk_finds_a_truncation_that_does_not_wait() -> None:
    hasty = script(A, verbs="hold begin end resume")
    with pytest.raises(AssertionError, match="acts on a partition while a cleaner works"):
        walk(Rules((hasty,)))


@pytest.mark.requirement("CLN-4")
def test_the_walk_finds_a_pause_that_is_never_resumed() -> None:
    found = walk(Rules((TRUNCATION, script(B, verbs="hold wait"))))
    assert {end.states.of(B) for end in found.ends} == {paused(1)}


@pytest.mark.requirement("CLN-4")
def test_the_walk_finds_a_cleaner_that_waits_for_itself() -> None:
    found = walk(Rules((TRUNCATION,), "in the round"))
    assert found.stuck > 0


@pytest.mark.requirement("CLN-4")
def test_the_walk_finds_a_cleaner_that_does_not_stop() -> None:
    with pytest.raises(AssertionError, match="more than a chunk after it was aborted"):
        walk(Rules((TRUNCATION,), is_obedient=False))


@pytest.mark.requirement("CLN-4")
def test_the_walk_finds_that_kafka_refuses_a_second_abort() -> None:
    def kafka(state: State, step: Step) -> State | str:
        if state.kind is Kind.ABORTED and step is Step.ABORT_AND_PAUSE:
            return "already aborted"
        return after_step(state, step)

    with pytest.raises(IllegalStepError, match="already aborted"):
        walk(Rules((TRUNCATION, OFFLINE), after=kafka))


@pytest.mark.requirement("CLN-4")
@pytest.mark.parametrize(
    ("state", "step", "wrong", "problem"),
    [
        (IN_PROGRESS, Step.ABORT_AND_PAUSE, paused(1), "work on a partition that is paused"),
        (aborted(1), Step.DONE_CLEANING, NONE, "hold a partition that is none"),
        (aborted(2), Step.DONE_CLEANING, paused(1), "hold a partition that is paused"),
        (aborted(1), Step.ABORT_AND_PAUSE, aborted(1), "hold a partition that is aborted"),
        (paused(2), Step.RESUME, NONE, "hold a partition that is none"),
        (NONE, Step.START_CLEANING, NONE, "work on a partition that is none"),
        (aborted(1), Step.CHECK, IN_PROGRESS, "hold a partition that is none"),
    ],
)
def test_the_walk_finds_a_wrong_cell(state: State, step: Step, wrong: State, problem: str) -> None:
    def broken(before: State, taken: Step) -> State | str:
        return wrong if (before, taken) == (state, step) else after_step(before, taken)

    with pytest.raises(AssertionError, match=problem):
        walk(Rules((TRUNCATION, OFFLINE), after=broken))
