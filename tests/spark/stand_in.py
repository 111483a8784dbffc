"""A stand-in for a Spark context in this very process, for what `SparkEngine` asks of one.

It is lazy and partitioned like Spark, and as unkind as Spark may be, from a seed:

- every row is pickled when it crosses a shuffle, and arrives in any order;
- a task may run twice, and the second run's rows are used (a retry, or a lost stage computed anew);
- each run has a task attempt number of its own.

So many more jobs than a real session could do in the time show that order, place and repetition do
not matter (T1, T3). That the real Spark does what it does is for `test_engine.py`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

REPEATS = 0.2
"""Share of tasks that run twice."""


@dataclass
class StandInSession:
    """`sparkContext` is all that the engine uses of a session."""

    sparkContext: StandInContext  # noqa: N815  Spark's name


class StandInContext:
    """Runs jobs on `parallelism` imaginary cores."""

    def __init__(self, seed: int, parallelism: int = 2) -> None:
        self.defaultParallelism = parallelism
        self.random = Random(seed)
        self.attempts = 0
        self.repeated = 0

    def broadcast(self, value: Any) -> _Broadcast:
        return _Broadcast(pickle.loads(pickle.dumps(value)))

    def parallelize(self, rows: Sequence[Any], slices: int) -> StandInRdd:
        assert slices == len(rows), "the engine makes a partition for each row"
        return StandInRdd(self, [[row] for row in rows].__getitem__, slices)

    def runJob(  # noqa: N802
        self, rdd: StandInRdd, function: Callable[[Iterable[Any]], Any], partitions: Iterable[int]
    ) -> list[Any]:
        return [row for number in partitions for row in function(iter(rdd.rows(number)))]

    def run_task(self, task: Callable[[], Iterable[Any]]) -> list[Any]:
        """A task's rows, from its last attempt."""
        is_repeated = self.random.random() < REPEATS
        self.repeated += is_repeated
        for _ in range(1 + is_repeated):
            self.attempts += 1
            rows = list(task())
        return rows

    def setJobGroup(self, *_: Any, **__: Any) -> None:  # noqa: N802
        pass

    def cancelJobGroup(self, group: str) -> None:  # noqa: N802
        pass

    def getLocalProperty(self, key: str) -> None:  # noqa: N802
        return None

    def setLocalProperty(self, *_: Any) -> None:  # noqa: N802
        pass

    def statusTracker(self) -> _NoTracker:  # noqa: N802
        return _NoTracker()


class StandInRdd:
    """Partitions that are computed when they are asked for."""

    def __init__(
        self, context: StandInContext, compute: Callable[[int], Iterable[Any]], count: int
    ) -> None:
        self._context = context
        self._compute = compute
        self._count = count

    def setName(self, name: str) -> StandInRdd:  # noqa: N802
        return self

    def rows(self, partition: int) -> Iterable[Any]:
        return self._context.run_task(lambda: self._compute(partition))

    def mapPartitions(self, function: Callable[[Iterator[Any]], Iterable[Any]]) -> StandInRdd:  # noqa: N802
        return StandInRdd(
            self._context, lambda place: function(iter(self._compute(place))), self._count
        )

    def mapPartitionsWithIndex(  # noqa: N802
        self, function: Callable[[int, Iterator[Any]], Iterable[Any]]
    ) -> StandInRdd:
        return StandInRdd(
            self._context, lambda place: function(place, iter(self._compute(place))), self._count
        )

    def partitionBy(self, count: int, place_of: Callable[[Any], int]) -> StandInRdd:  # noqa: N802
        """Shuffle once, as Spark keeps its shuffle files; the rows arrive in any order."""
        shuffled: list[list[bytes]] = []

        def fetch(partition: int) -> list[Any]:
            if not shuffled:
                shuffled.extend([] for _ in range(count))
                for source in range(self._count):
                    for key, value in self.rows(source):
                        shuffled[place_of(key) % count].append(pickle.dumps((key, value)))
            rows = list(map(pickle.loads, shuffled[partition]))
            self._context.random.shuffle(rows)
            return rows

        return StandInRdd(self._context, fetch, count)

    def collect(self) -> list[Any]:
        return [row for place in range(self._count) for row in self.rows(place)]


@dataclass
class _Broadcast:
    value: Any

    def destroy(self) -> None:
        self.value = None


class _NoTracker:
    def getJobIdsForGroup(self, group: str) -> list[int]:  # noqa: N802
        return []


@dataclass
class StandInTaskContext:
    """What `TaskContext` answers inside a task."""

    context: StandInContext

    def get(self) -> StandInTaskContext:
        return self

    def taskAttemptId(self) -> int:  # noqa: N802
        return self.context.attempts
