"""Cut the power at every operation of a piece of product code, and judge what may be found.

    scenario(disk, journal)   runs product code and says in the journal what has been promised
    judge(image, promise, in_flight)   recovers the image and raises if a promise is broken
    recover(disk)             recovery alone, for cuts during recovery (`Depth2`)

The scenario runs once. Just before each of its operations, and after the last one, the disk is
forked; from each fork `tests.sim.cuts` makes the images, and each distinct (image, promise, in
flight) is judged once. `max_states` is shared out among the operations; what one does not need
the others get. Everything follows from the seed, so an operation and an image number say it
all (`replay`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count as counting
from random import Random

from tests.sim.cuts import CrashState, Limits, crash_states, tree_fingerprint
from tests.sim.disk import SimDisk
from tests.sim.nodes import Call

_TRACE_LINES = 8
_DEPTH2_LIMITS = Limits(exhaustive_operations=6, sampled_subsets=16, mixtures=4, torn_points=1)


class CrashFailure(AssertionError):  # noqa: N818 - reads as what it is in a test report
    """A judge was not content; the message says how to see it again."""


@dataclass
class Journal:
    """What a scenario has been promised, and what it is doing. Values must be hashable.

    A judge sees the values of the moment of the cut: a promise holds from the call of `promise`
    on, `in_flight` is None unless `begin` was called since.
    """

    promised: Hashable = None
    in_flight: Hashable = None

    def begin(self, value: Hashable) -> None:
        """What is asked for from now on: it may be found done, undone, or in part."""
        self.in_flight = value

    def promise(self, value: Hashable) -> None:
        """Replaces the promise, and ends what was in flight."""
        self.promised = value
        self.in_flight = None


Scenario = Callable[[SimDisk, Journal], None]
Judge = Callable[[SimDisk, Hashable, Hashable], None]
Recover = Callable[[SimDisk], object]


@dataclass(frozen=True, slots=True)
class Depth2:
    """Cut the recovery, too: of a `share` of the images, at every operation, with at most
    `images_per_operation` images each; at most `max_states` in all."""

    recover: Recover
    share: float = 0.05
    images_per_operation: int = 8
    max_states: int = 1 << 62


@dataclass(slots=True)
class ExploreStats:
    """`states`: distinct (image, promise, in flight) that were judged; `recoveries`: those that
    were recovered twice and compared; `complete`: `max_states` was enough."""

    name: str
    operations: int = 0
    images: int = 0
    states: int = 0
    recoveries: int = 0
    depth2_states: int = 0
    complete: bool = True

    def count(self, count_cases: Callable[[str, int], None]) -> ExploreStats:
        """Into the totals that are printed after a test run. Answers itself."""
        count_cases("crash points", self.operations)
        count_cases("crash states", self.states)
        count_cases("crash states of a recovery from a crash", self.depth2_states)
        count_cases("recoveries that were done twice", self.recoveries)
        return self


@dataclass(frozen=True, slots=True)
class Point:
    """The disk just before operation `operation` (`call`; None: after the last one)."""

    operation: int
    call: Call | None
    disk: SimDisk
    promise: Hashable
    in_flight: Hashable


def points_of(scenario: Scenario, start: SimDisk | None = None) -> Iterator[Point]:
    """Run the scenario; the disk at every operation. Raises what the scenario raises."""
    disk, journal, points = (start or SimDisk()).fork(), Journal(), []

    def note(call: Call | None) -> None:
        if call is None or call.changes:
            points.append(
                Point(len(points), call, disk.fork(), journal.promised, journal.in_flight)
            )

    disk.hook = note
    scenario(disk, journal)
    disk.hook = None
    note(None)
    return iter(points)


def explore(
    scenario: Scenario,
    judge: Judge,
    *,
    seed: int,
    max_states: int,
    depth2: Depth2 | None = None,
    start: SimDisk | None = None,
    limits: Limits | None = None,
    name: str | None = None,
) -> ExploreStats:
    """Judge what every crash of `scenario` may leave. `start`: the disk it begins with (made
    durable with `sync_all`, most often). Raises `CrashFailure` for the first broken promise."""
    stats = ExploreStats(name or getattr(scenario, "__name__", "scenario"))
    points = list(points_of(scenario, start))
    stats.operations = len(points) - 1
    run = _Run(judge, seed, limits or Limits(), depth2, stats, points)
    waiting = [(point, run.states(point)) for point in points]
    while waiting and stats.states < max_states:
        unfinished = []
        for place, (point, states) in enumerate(waiting):
            quota = -(-(max_states - stats.states) // (len(waiting) - place))
            if not run.judge_some(point, states, quota):
                unfinished.append((point, states))
        waiting = unfinished
    stats.complete = not waiting
    return stats


def replay(
    scenario: Scenario,
    judge: Judge,
    operation: int,
    image_number: int,
    *,
    seed: int,
    start: SimDisk | None = None,
    limits: Limits | None = None,
    inner: tuple[int, int] | None = None,
    recover: Recover | None = None,
) -> SimDisk:
    """Judge one state again, as a failure's message names it; the image, as it was found.

    `inner` and `recover`: operation and image number of the cut during recovery.
    """
    point = list(points_of(scenario, start))[operation]
    state = _state(point, image_number, f"{seed}/{operation}", limits or Limits())
    if inner is not None:
        assert recover is not None
        seed_text = f"{seed}/{operation}/{image_number}/{inner[0]}"
        points = list(points_of(lambda disk, _: recover(disk), state.disk()))
        state = _state(points[inner[0]], inner[1], seed_text, _DEPTH2_LIMITS)
    judge(state.disk(), point.promise, point.in_flight)
    return state.disk()


def _state(point: Point, number: int, seed_text: str, limits: Limits) -> CrashState:
    states = crash_states(point.disk, Random(seed_text), limits)
    return next(state for state in states if state.number == number)


@dataclass
class _Run:
    judge: Judge
    seed: int
    limits: Limits
    depth2: Depth2 | None
    stats: ExploreStats
    points: list[Point]
    judged: set[tuple[int, int]] = field(default_factory=set)
    moments: dict[tuple[Hashable, Hashable], int] = field(default_factory=dict)
    recovered: set[int] = field(default_factory=set)

    def states(self, point: Point) -> Iterator[CrashState]:
        return crash_states(point.disk, Random(f"{self.seed}/{point.operation}"), self.limits)

    def judge_some(self, point: Point, states: Iterator[CrashState], quota: int) -> bool:
        """Judge the next `quota` that are new; whether there are no more."""
        moment = self._moment(point)
        while quota > 0:
            state = next(states, None)
            if state is None:
                return True
            self.stats.images += 1
            key = (state.fingerprint, moment)
            if key in self.judged:
                continue
            quota -= 1
            self.judged.add(key)
            self.stats.states += 1
            with self._reporting(point, state):
                self.judge(state.disk(), point.promise, point.in_flight)
            if self.depth2 is not None and self._dice(state) < self.depth2.share:
                self._cut_recovery(self.depth2, point, state)
        return False

    def _moment(self, point: Point) -> int:
        """A number for what is promised and in flight, which may be large."""
        return self.moments.setdefault((point.promise, point.in_flight), len(self.moments))

    def _dice(self, state: CrashState) -> float:
        return Random(f"{self.seed}/{state.fingerprint}").random()

    def _cut_recovery(self, depth2: Depth2, point: Point, state: CrashState) -> None:
        if state.fingerprint in self.recovered:
            return
        self.recovered.add(state.fingerprint)
        with self._reporting(point, state):
            points = self._recover_twice(depth2.recover, state)
        for inner in points:
            seed_text = f"{self.seed}/{point.operation}/{state.number}/{inner.operation}"
            found = crash_states(inner.disk, Random(seed_text), _DEPTH2_LIMITS)
            for place, second in zip(counting(), found, strict=False):
                if (
                    place >= depth2.images_per_operation
                    or self.stats.depth2_states >= depth2.max_states
                ):
                    break
                key = (second.fingerprint, self._moment(point))
                if key in self.judged:
                    continue
                self.judged.add(key)
                self.stats.depth2_states += 1
                with self._reporting(point, state, inner, second):
                    self.judge(second.disk(), point.promise, point.in_flight)

    def _recover_twice(self, recover: Recover, state: CrashState) -> list[Point]:
        """The points of a recovery, which must come to rest: a second one changes nothing."""
        ends: list[SimDisk] = []

        def run(disk: SimDisk, _: Journal) -> None:
            recover(disk)
            ends.append(disk)

        points = list(points_of(run, state.disk()))
        again = ends[0].fork()
        recover(again)
        if tree_fingerprint(again) != tree_fingerprint(ends[0]):
            once, twice = ends[0].tree(), again.tree()
            paths = sorted(p for p in {*once, *twice} if once.get(p, 0) != twice.get(p, 0))
            raise AssertionError(f"recovering twice is not recovering once: {', '.join(paths)}")
        self.stats.recoveries += 1
        return points

    @contextmanager
    def _reporting(
        self,
        point: Point,
        state: CrashState,
        inner: Point | None = None,
        second: CrashState | None = None,
    ) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            lines = [
                f"{self.stats.name}: {type(error).__name__}: {error}",
                f"promise: {_short(point.promise)}; in flight: {_short(point.in_flight)}",
                f"cut before operation {point.operation} of {self.stats.operations}:",
                *self._trace(self.points, point.operation),
                f"image {state.number}:",
                state.describe(),
            ]
            more = ""
            if inner is not None and second is not None:
                more = f", inner=({inner.operation}, {second.number}), recover=..."
                lines.append(f"recovery cut before its operation {inner.operation}, {inner.call}")
                lines.append(f"image {second.number} of that:\n{second.describe()}")
            lines.append(
                f"again: replay(scenario, judge, {point.operation}, {state.number}, "
                f"seed={self.seed}{more})"
            )
            raise CrashFailure("\n".join(lines)) from error

    def _trace(self, points: list[Point], operation: int) -> list[str]:
        first = max(0, operation - _TRACE_LINES)
        lines = [f"  {p.operation}: {p.call}" for p in points[first:operation]]
        return [*lines, f"  CUT -> {points[operation].call or 'the end'}"]


def _short(value: Hashable) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:200]} ... {text[-80:]}"
