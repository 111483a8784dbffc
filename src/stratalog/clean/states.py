"""Who may work on a partition: the cleaner, or whoever has asked it to keep away (CLN-4, CLN-5).

A partition is in one of four states. `n` counts those who asked for a pause and have not resumed:

    none          nobody works on it: a cleaner may start
    in progress   one cleaner thread works on it, cleaning or deleting old segments
    aborted(n)    as in progress, but the thread is to stop; n wait for that, at least one
    paused(n)     nobody works on it, and n see to it that no cleaner starts, at least one

`_TABLE` is all of it: a row for each step, a cell for each state, which holds either the state that
follows or why the step is wrong there. `States` is an immutable value; its owner keeps the current
one under a lock, puts `states.after(event)` in its place, and wakes whoever waits.

Who needs a partition for itself (a truncation, a deletion, a directory that goes offline, a topic
whose policy loses `compact`) takes these steps:

    ABORT_AND_PAUSE, wait until `is_worked_on` is false, act, RESUME

Stopping a round and nothing else (`ABORT`) is the same with nothing to do in between.

Kafka raises if a round that was aborted is aborted again. Here the second one waits like the first
and its pause counts: a truncation and a failing disk at the same time are no mistake of either.

Invariants
- I1  A partition that is worked on has exactly one thread: only none leads to in progress.
- I2  A round that was aborted ends as paused, never as none, and nothing leads from aborted back to
      in progress (CLN-4).
- I3  The number of a state is the number of ABORT_AND_PAUSE and PAUSE less that of RESUME.
- I4  Who works on a partition must not wait for it: a cleaner thread that finds its disk failing
      ends its round first.

Source: CLN-4, CLN-5; Kafka's LogCleanerManager.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

from stratalog.base.errors import IllegalStepError
from stratalog.segment.names import TopicPartition


class Kind(Enum):
    """A state without its number."""

    NONE = "none"
    IN_PROGRESS = "in progress"
    ABORTED = "aborted"
    PAUSED = "paused"


class Step(Enum):
    """What can happen to a partition.

    CHECK is the question of a cleaner, between two chunks, whether it may go on (Kafka's
    checkCleaningAborted): it changes nothing; `must_stop` is the answer.
    """

    START_CLEANING = "start cleaning"
    START_DELETING = "start deleting"
    DONE_CLEANING = "done cleaning"
    DONE_DELETING = "done deleting"
    CHECK = "check for an abort"
    ABORT_AND_PAUSE = "abort and pause"
    PAUSE = "pause"
    RESUME = "resume"


ABORT: Final = (Step.ABORT_AND_PAUSE, Step.RESUME)
"""Stopping a round, no more (Kafka's abortCleaning): the second step when the round has ended."""


@dataclass(frozen=True, slots=True)
class State:
    """A partition's state. `pauses`: how many RESUME are still to come."""

    kind: Kind = Kind.NONE
    pauses: int = 0

    def __post_init__(self) -> None:
        assert (self.pauses > 0) == (self.kind in (Kind.ABORTED, Kind.PAUSED)), self

    def __str__(self) -> str:
        return f"{self.kind.value}({self.pauses})" if self.pauses else self.kind.value

    @property
    def is_free(self) -> bool:
        """Whether a cleaner may start."""
        return self.kind is Kind.NONE

    @property
    def is_worked_on(self) -> bool:
        """Whether a cleaner thread is at it. While it is, who has aborted it waits."""
        return self.kind in (Kind.IN_PROGRESS, Kind.ABORTED)

    @property
    def must_stop(self) -> bool:
        """Whether the thread that is at it has to end its round as it stands."""
        return self.kind is Kind.ABORTED


NONE: Final = State()
IN_PROGRESS: Final = State(Kind.IN_PROGRESS)


def paused(pauses: int) -> State:
    """paused(n); paused(0) is none."""
    return State(Kind.PAUSED, pauses) if pauses else NONE


def aborted(pauses: int) -> State:
    """A round that is to stop and ends as paused(`pauses`)."""
    return State(Kind.ABORTED, pauses)


@dataclass(frozen=True, slots=True)
class _To:
    """A legal cell: the kind that follows, and how many pauses are added."""

    kind: Kind
    added: int = 0


_Cell = _To | str
_WORK = _To(Kind.IN_PROGRESS)
_END = _To(Kind.NONE)
_PAUSE = _To(Kind.PAUSED, 1)
_BUSY = "a cleaner thread works on it"
_STOPPING = "its round is being stopped"
_HELD = "it is paused"
_IDLE = "no cleaner thread works on it"
_STOP_FIRST = "a cleaner thread works on it and has to be stopped first"
_NOT_YET = "its round is still being stopped: resume it when that has ended"

_TABLE: Final[dict[Step, tuple[_Cell, _Cell, _Cell, _Cell]]] = {
    # in which state:     none    in progress                aborted                paused
    Step.START_CLEANING: (_WORK, _BUSY, _STOPPING, _HELD),
    Step.START_DELETING: (_WORK, _BUSY, _STOPPING, _HELD),
    Step.DONE_CLEANING: (_IDLE, _END, _To(Kind.PAUSED), _IDLE),
    Step.DONE_DELETING: (_IDLE, _END, _To(Kind.PAUSED), _IDLE),
    Step.CHECK: (_IDLE, _WORK, _To(Kind.ABORTED), _IDLE),
    Step.ABORT_AND_PAUSE: (_PAUSE, _To(Kind.ABORTED, 1), _To(Kind.ABORTED, 1), _PAUSE),
    Step.PAUSE: (_PAUSE, _STOP_FIRST, _STOP_FIRST, _PAUSE),
    Step.RESUME: ("nobody has paused it", "nobody has paused it", _NOT_YET, _To(Kind.PAUSED, -1)),
}
_COLUMN: Final = {kind: column for column, kind in enumerate(Kind)}


def after_step(state: State, step: Step) -> State | str:
    """The state that follows, or, as text, why `step` is wrong in `state`."""
    cell = _TABLE[step][_COLUMN[state.kind]]
    if isinstance(cell, str):
        return cell
    pauses = state.pauses + cell.added
    return paused(pauses) if cell.kind is Kind.PAUSED else State(cell.kind, pauses)


@dataclass(frozen=True, slots=True)
class Event:
    """A step of one partition."""

    topic_partition: TopicPartition
    step: Step


@dataclass(frozen=True, slots=True)
class States:
    """The states of all partitions; one that is not in `held` is in state none.

    `held` is copied by each event: it is small, as few partitions are worked on or paused.
    """

    held: Mapping[TopicPartition, State] = field(default_factory=lambda: MappingProxyType({}))

    def __hash__(self) -> int:
        return hash(frozenset(self.held.items()))

    def of(self, topic_partition: TopicPartition) -> State:
        return self.held.get(topic_partition, NONE)

    def after(self, event: Event) -> States:
        """The states once `event` has happened. Raises `IllegalStepError`."""
        before = self.of(event.topic_partition)
        state = after_step(before, event.step)
        if isinstance(state, str):
            raise IllegalStepError(
                f"{event.topic_partition}: no {event.step.value} while {before}: {state}"
            )
        if state == before:
            return self
        held = {**self.held, event.topic_partition: state}
        if state == NONE:
            del held[event.topic_partition]
        return States(MappingProxyType(held))
