"""Is a mutated scenario caught? And if not, could it have left anything that the original does not?

    original = Original(scenario, judge, start)
    trial = original.tried(mutation, max_states)      Trial(caught, is_equal, ...)

Both runs are held side by side. Only where the disk, or what is promised, is not the same is there
anything to judge: most mutants are back where the original is after a few steps, so a few states
are all there are. A mutant is caught when a judge complains, or when the scenario itself fails,
which happens when a step needed the one before it.

`is_equal` is a proof that an exchange A, B -> B, A adds no state at all, for one of two reasons,
given that both orders end in the same disk and the program goes on alike:

- A is no barrier. Then a cut after B alone finds what a cut after A and B may find: A is not
  durable, and whatever is not may be lost alone (`tests.sim.cuts`).
- Both are barriers, and nothing was promised between them. A barrier only takes away from what may
  be found, so a cut after B alone finds what a cut before both may find.

An exchange that is proven is judged like the others: it must survive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from random import Random

from tests.sim.cuts import CrashState, crash_states, plain_states
from tests.sim.disk import SimDisk
from tests.sim.explore import Judge, Point, Scenario, points_of
from tests.sim.mutants import BOTH, SYNCS, Mutation, mutated, mutations
from tests.sim.nodes import ROOT, FileNode, NameOperation

_PLAIN_FIRST = 4
_LOOKED_AT = 20
"""States that are known from another mutant cost little, but not nothing."""


@dataclass(frozen=True, slots=True)
class Trial:
    """`caught`: how, None if nothing did. `states` were judged; `is_complete`: these were all."""

    caught: str | None
    is_equal: bool = False
    states: int = 0
    is_complete: bool = False


def shape(disk: SimDisk) -> Hashable:
    """All that a cut may leave and all that programs see, but for times and inode numbers.

    Of the operations on names that are not durable, their order for each name is kept: those of
    different names may reach the disk in any order anyway.
    """
    known: dict[int, Hashable] = {}

    def of(number: int) -> Hashable:
        if number not in known:
            known[number] = _shape_of(disk, number, of)
        return known[number]

    return of(ROOT)


def _shape_of(disk: SimDisk, number: int, of: Callable[[int], Hashable]) -> Hashable:
    node = disk.nodes[number]
    if isinstance(node, FileNode):
        if not node.is_dirty:
            return (node.content,)
        return (node.content, node.durable, node.intact, node.versions)
    pending: defaultdict[str, list[Hashable]] = defaultdict(list)
    for made in node.pending:
        for name in {made.removed, made.added} - {None}:
            assert name is not None
            pending[name].append((*_names(made), of(made.node)))
    return (
        tuple((name, of(child)) for name, child in sorted(node.entries.items())),
        tuple((name, of(child)) for name, child in sorted(node.durable.items())),
        tuple((name, tuple(made)) for name, made in sorted(pending.items())),
    )


def _names(made: NameOperation) -> tuple[str, str | None, str | None]:
    return made.kind, made.removed, made.added


@dataclass
class Original:
    """A scenario as it is. `good`: states that the judge was content with."""

    scenario: Scenario
    judge: Judge
    start: SimDisk | None = None
    points: list[Point] = field(init=False)
    shapes: dict[int, Hashable] = field(default_factory=dict)
    good: set[tuple[int, int]] = field(default_factory=set)
    moments: dict[tuple[Hashable, Hashable], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.points = list(points_of(self.scenario, self.start))

    def mutations(self, kinds: Collection[str] = BOTH) -> Iterator[Mutation]:
        return mutations(self.scenario, self.start, kinds)

    def tried(self, mutation: Mutation, max_states: int) -> Trial:
        """Judge what the mutant may leave and the original does not, up to so many states."""
        try:
            points = list(points_of(mutated(self.scenario, mutation), self.start))
        except Exception as error:  # noqa: BLE001 - whatever it is, the order was needed
            return Trial(f"the scenario fails: {error!r}")
        others, is_back = self._others(mutation, points)
        is_equal = is_back and self._adds_nothing(mutation)
        return self._judged(others, max_states, is_equal)

    def _others(self, mutation: Mutation, points: list[Point]) -> tuple[list[Point], bool]:
        """The moments at which the mutant is not where the original is, and whether the exchange
        itself is all of them."""
        dropped = mutation.kind == "drop"
        calls = [point.call for point in self.points]
        others = []
        for place in range(mutation.operation, len(points)):
            mine, its_place = points[place], place + dropped
            if not self._is_same(mine, its_place):
                others.append(mine)
                continue
            if [point.call for point in points[place:]] == calls[its_place:] and all(
                self._is_same(point, i) for i, point in enumerate(points[place:], start=its_place)
            ):
                return others, place <= mutation.operation + 2
        return others, False

    def _is_same(self, mine: Point, place: int) -> bool:
        if place >= len(self.points):
            return False
        point = self.points[place]
        if (mine.promise, mine.in_flight) != (point.promise, point.in_flight):
            return False
        if place not in self.shapes:
            self.shapes[place] = shape(point.disk)
        return shape(mine.disk) == self.shapes[place]

    def _adds_nothing(self, mutation: Mutation) -> bool:
        """See the module. Both orders end in the same disk, and go on alike."""
        if mutation.kind == "drop":
            return False
        first, second = (step.call.kind in SYNCS for step in mutation.steps)
        before, between = self.points[mutation.operation : mutation.operation + 2]
        is_silent = (before.promise, before.in_flight) == (between.promise, between.in_flight)
        return not first or (second and is_silent)

    def _judged(self, points: list[Point], max_states: int, is_equal: bool) -> Trial:
        """What shows most is looked at first, and a few states of each moment before many of one.

        For a proven exchange, what the original may leave is judged as well.
        """
        judged = looked_at = 0
        for point, state in _states(points, max_states):
            looked_at += 1
            if judged >= max_states or looked_at >= _LOOKED_AT * max_states:
                return Trial(None, is_equal, judged)
            key = (state.fingerprint, self._moment(point))
            if key in self.good:
                continue
            judged += 1
            try:
                self.judge(state.disk(), point.promise, point.in_flight)
            except Exception as error:  # noqa: BLE001 - of the judge or of the product
                why = f"{type(error).__name__}: {error}, before {point.operation}: {point.call}"
                return Trial(f"{why}\n{state.describe()}", is_equal, judged)
            self.good.add(key)
        return Trial(None, is_equal, judged, is_complete=True)

    def _moment(self, point: Point) -> int:
        """A number for what is promised and in flight, which may be large."""
        return self.moments.setdefault((point.promise, point.in_flight), len(self.moments))


def _states(points: list[Point], max_states: int) -> Iterator[tuple[Point, CrashState]]:
    plain = [(point, plain_states(point.disk)) for point in points]
    yield from _in_turns(plain, _PLAIN_FIRST, rounds=1)
    yield from _in_turns(plain, max(1, max_states // (4 * max(1, len(points)))))
    every = [(point, crash_states(point.disk, Random(f"1/{point.operation}"))) for point in points]
    yield from _in_turns(every, max(1, max_states // max(1, len(points))))


def _in_turns(
    waiting: list[tuple[Point, Iterator[CrashState]]], quota: int, rounds: int = 1 << 62
) -> Iterator[tuple[Point, CrashState]]:
    """Of each so many, then of each so many again."""
    while waiting and rounds > 0:
        rounds -= 1
        unfinished = []
        for point, states in waiting:
            count = 0
            for state in islice(states, quota):
                count += 1
                yield point, state
            if count == quota:
                unfinished.append((point, states))
        waiting = unfinished


def survivors(
    scenario: Scenario,
    judge: Judge,
    *,
    max_states: int,
    start: SimDisk | None = None,
    kinds: Collection[str] = BOTH,
) -> tuple[list[Mutation], int]:
    """The mutations that nothing catches and nothing proves harmless, and how many were tried."""
    original = Original(scenario, judge, start)
    alive, count = [], 0
    for mutation in original.mutations(kinds):
        count += 1
        trial = original.tried(mutation, max_states)
        assert not (trial.caught and trial.is_equal), f"{mutation}: {trial.caught}"
        if trial.caught is None and not trial.is_equal:
            alive.append(mutation)
    return alive, count
