"""Two cleaner threads and those who get in their way, as a small model; and a walk over all of it.

Each cleaner takes any free partition again and again, cleans it chunk by chunk or deletes segments,
and may find the disk failing. The others need partitions for themselves: each once holds some,
waits for them, acts and resumes them (`Script`). One step of one actor at a time, every reachable
world, breadth-first.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from stratalog.base.errors import IllegalStepError
from stratalog.clean.states import (
    NONE,
    Event,
    State,
    States,
    Step,
    after_step,
)
from stratalog.segment.names import TopicPartition

PARTITIONS = (TopicPartition("a", 0), TopicPartition("a", 1))
A, B = PARTITIONS

Script = tuple[tuple[str, TopicPartition], ...]
"""What somebody does who needs partitions: hold (abort and pause), pause (only if nobody works on
it), wait (until nobody works on it), begin and end (acting on it), resume."""


def script(*partitions: TopicPartition, verbs: str = "hold wait begin end resume") -> Script:
    return tuple((verb, partition) for verb in verbs.split() for partition in partitions)


TRUNCATION = script(A)
CONFIG_CHANGE = script(A, B)  # the topic's policy loses `compact`, and gets it back
OFFLINE = script(B, A)  # the directory of both goes, and comes back
STOP_A_ROUND = script(B, verbs="hold wait resume")
PAUSE_BY_HAND = script(B, verbs="pause resume")

THREE = (TRUNCATION, CONFIG_CHANGE, OFFLINE)
FIVE = (*THREE, STOP_A_ROUND, PAUSE_BY_HAND)


@dataclass(frozen=True, slots=True)
class Cleaner:
    """What a cleaner thread does: `phase`, at `partition` unless idle. `late`: the chunks it has
    worked on since its round was aborted."""

    phase: str = "idle"
    partition: TopicPartition | None = None
    late: int = 0


@dataclass(frozen=True, slots=True)
class World:
    """All of the model. `places`: how far each script has come."""

    states: States
    cleaners: tuple[Cleaner, ...]
    places: tuple[int, ...]


@dataclass(frozen=True)
class Rules:
    """Who takes part, and what the negative tests break."""

    scripts: tuple[Script, ...]
    disk_fails: str = "never"  # or: after the round, in the round
    is_obedient: bool = True
    after: Callable[[State, Step], State | str] = after_step


WORKING = ("check", "chunk", "swap", "delete", "failed in the round")
HOLDING = ("waiting", "taking offline", "failed in the round")


def start(rules: Rules) -> World:
    return World(States(), (Cleaner(), Cleaner()), (0,) * len(rules.scripts))


def stepped(world: World, rules: Rules, partition: TopicPartition, step: Step) -> World:
    if rules.after is after_step:
        return replace(world, states=world.states.after(Event(partition, step)))
    state = rules.after(world.states.of(partition), step)
    if isinstance(state, str):
        raise IllegalStepError(state)
    held = {**world.states.held, partition: state}
    return replace(world, states=States({k: v for k, v in held.items() if v != NONE}))


def next_worlds(world: World, rules: Rules) -> Iterator[World]:
    for place, cleaner in enumerate(world.cleaners):
        for after, moved in cleaner_steps(world, rules, cleaner):
            cleaners = tuple(moved if i == place else c for i, c in enumerate(world.cleaners))
            yield replace(after, cleaners=cleaners)
    for index, steps in enumerate(rules.scripts):
        if world.places[index] < len(steps):
            after_script = script_step(world, rules, *steps[world.places[index]])
            if after_script is not None:
                places = tuple(p + (i == index) for i, p in enumerate(world.places))
                yield replace(after_script, places=places)


def script_step(world: World, rules: Rules, verb: str, partition: TopicPartition) -> World | None:
    """The world after it, None if it has to wait."""
    state = world.states.of(partition)
    if verb == "hold":
        return stepped(world, rules, partition, Step.ABORT_AND_PAUSE)
    if verb == "resume":
        return stepped(world, rules, partition, Step.RESUME)
    if verb in ("wait", "pause") and state.is_worked_on:
        return None
    return stepped(world, rules, partition, Step.PAUSE) if verb == "pause" else world


def cleaner_steps(world: World, rules: Rules, cleaner: Cleaner) -> Iterator[tuple[World, Cleaner]]:
    """Everything that a cleaner thread may do next."""
    partition = cleaner.partition
    if partition is None:
        for free in PARTITIONS:
            if world.states.of(free).is_free:
                yield stepped(world, rules, free, Step.START_CLEANING), Cleaner("check", free)
                yield stepped(world, rules, free, Step.START_DELETING), Cleaner("delete", free)
        return
    must_stop = world.states.of(partition).must_stop
    if cleaner.phase == "check":
        checked = stepped(world, rules, partition, Step.CHECK)
        if must_stop and rules.is_obedient:
            yield stepped(checked, rules, partition, Step.DONE_CLEANING), Cleaner()
        else:
            yield checked, replace(cleaner, phase="chunk")
            yield checked, replace(cleaner, phase="swap")
    elif cleaner.phase == "chunk":
        yield world, Cleaner("check", partition, cleaner.late + must_stop)
        if rules.disk_fails == "after the round":
            yield stepped(world, rules, partition, Step.DONE_CLEANING), Cleaner("failed", partition)
        elif rules.disk_fails == "in the round":
            held = stepped(world, rules, partition, Step.ABORT_AND_PAUSE)
            yield held, Cleaner("failed in the round", partition)
    elif cleaner.phase == "swap":
        yield stepped(world, rules, partition, Step.DONE_CLEANING), Cleaner()
    elif cleaner.phase == "delete":
        yield stepped(world, rules, partition, Step.DONE_DELETING), Cleaner()
    elif cleaner.phase == "failed":
        held = stepped(world, rules, partition, Step.ABORT_AND_PAUSE)
        yield held, Cleaner("waiting", partition)
    elif cleaner.phase == "taking offline":
        yield stepped(world, rules, partition, Step.RESUME), Cleaner()
    elif not world.states.of(partition).is_worked_on:  # waiting, or failed in the round
        yield world, Cleaner("taking offline", partition)


def broken_invariant(world: World, rules: Rules) -> str | None:
    """What is wrong in `world`, None if nothing is."""
    for partition in PARTITIONS:
        state = world.states.of(partition)
        at_it = [c for c in world.cleaners if c.partition == partition]
        workers = sum(cleaner.phase in WORKING for cleaner in at_it)
        if workers > 1:
            return "two cleaners work on one partition"
        if state.is_worked_on != (workers == 1):
            return f"{workers} cleaners work on a partition that is {state}"
        holders = sum(cleaner.phase in HOLDING for cleaner in at_it)
        for steps, place in zip(rules.scripts, world.places, strict=True):
            done = [verb for verb, at in steps[:place] if at == partition]
            holders += (done.count("hold") + done.count("pause")) - done.count("resume")
            is_acting = "begin" in done and "end" not in done
            if is_acting and workers:
                return "somebody acts on a partition while a cleaner works on it"
        if any(cleaner.phase == "taking offline" for cleaner in at_it) and workers:
            return "a cleaner takes a partition offline while another works on it"
        if state.pauses != holders:
            return f"{holders} hold a partition that is {state}"
        if any(cleaner.late > 1 for cleaner in at_it):
            return "a round goes on for more than a chunk after it was aborted"
    return None


def is_end(world: World, rules: Rules) -> bool:
    """Whether nobody has anything left to do."""
    return all(cleaner.partition is None for cleaner in world.cleaners) and all(
        place == len(steps) for place, steps in zip(world.places, rules.scripts, strict=True)
    )


@dataclass(frozen=True)
class Walk:
    """What a walk over all reachable worlds has found. `stuck`: those from which no end can be
    reached."""

    worlds: int
    moves: int
    ends: frozenset[World]
    stuck: int
    state_kinds: frozenset[State]


def walk(rules: Rules) -> Walk:
    """Every reachable world. Raises `AssertionError` for one that breaks an invariant."""
    first = start(rules)
    seen = {first: 0}
    order = deque([first])
    comes_from: dict[int, list[int]] = defaultdict(list)
    moves = 0
    ends: set[World] = set()
    while order:
        world = order.popleft()
        problem = broken_invariant(world, rules)
        assert problem is None, (problem, world)
        if is_end(world, rules):
            ends.add(world)
        for following in next_worlds(world, rules):
            moves += 1
            if following not in seen:
                seen[following] = len(seen)
                order.append(following)
            comes_from[seen[following]].append(seen[world])
    leads_to_end = {seen[end] for end in ends}
    back = deque(leads_to_end)
    while back:
        for earlier in comes_from[back.popleft()]:
            if earlier not in leads_to_end:
                leads_to_end.add(earlier)
                back.append(earlier)
    kinds = frozenset(world.states.of(partition) for world in seen for partition in PARTITIONS)
    return Walk(len(seen), moves, frozenset(ends), len(seen) - len(leads_to_end), kinds)
