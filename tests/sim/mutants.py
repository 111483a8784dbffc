"""Does each barrier matter? The same scenario with one fsync left out, or two steps exchanged.

    survivors(scenario, judge, seed=1, max_states=2_000, start=disk) == []

`Mutant` stands between the product and a `SimDisk`. Its changes are counted as the disk counts
them; one is left out (an fsync that says it is done), or comes after the next one. What a mutated
scenario leaves is explored as usual: a mutant is caught when a judge complains, or when the
scenario itself fails, which happens when a step needed the one before it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from stratalog.base.filesystem import OpenMode
from tests.sim.cuts import plain_states
from tests.sim.disk import SimDisk
from tests.sim.explore import Journal, Judge, Scenario, explore, points_of
from tests.sim.file import SimFile
from tests.sim.nodes import Call

if TYPE_CHECKING:
    from typing_extensions import Buffer

SYNCS = frozenset(("fsync", "fsync_directory"))
MOVABLE = frozenset(
    (*SYNCS, "write", "truncate", "rename", "unlink", "set_modified", "remove_directory")
)
"""Changes that answer nothing, so that they can come later than they were asked for."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """`kind`: "drop" the operation at `operation`, or let it "swap" places with the next one."""

    kind: str
    operation: int
    calls: tuple[Call, ...]

    def __str__(self) -> str:
        what = "without" if self.kind == "drop" else "exchanged"
        return f"{what} {self.operation}: {' <-> '.join(map(str, self.calls))}"

    @property
    def site(self) -> tuple[str, ...]:
        """The kind of step, whichever segment it is about: names without their digits."""
        digits = str.maketrans("", "", "0123456789")
        names = (f"{c.kind} {os.path.basename(c.path)}".translate(digits) for c in self.calls)
        return (self.kind, *names)


class Mutant:
    """A `FileSystem` whose operation number `drop` is left out, or `swap` comes one later."""

    def __init__(self, disk: SimDisk, *, drop: int | None = None, swap: int | None = None):
        self._disk = disk
        self._drop = drop
        self._swap = swap
        self._count = 0
        self._postponed: Callable[[], None] | None = None

    def __getattr__(self, name: str) -> Any:
        """What only asks, or answers something, goes through."""
        return getattr(self._disk, name)

    def step(self, kind: str, change: Callable[[], Any]) -> Any:
        """Do a change now, later or never. Any change but the first of a swap brings that one."""
        before, place = self._disk.operations, self._count
        if kind in SYNCS and place == self._drop:
            self._count += 1
            return None
        if kind in MOVABLE and place == self._swap:
            self._count += 1
            self._postponed = change
            return None
        try:
            answer = change()
        finally:
            self._count += self._disk.operations - before
        postponed, self._postponed = self._postponed, None
        if postponed is not None:
            postponed()
        return answer

    def finish(self) -> None:
        """The scenario is over."""
        if self._postponed is not None:
            self._postponed()

    def open(self, path: str, mode: OpenMode) -> MutantFile:
        kind = "create" if mode == "create" else "open"
        return MutantFile(self, self.step(kind, lambda: self._disk.open(path, mode)))

    def lock(self, path: str, *, exclusive: bool) -> Callable[[], None]:
        return self.step("lock", lambda: self._disk.lock(path, exclusive=exclusive))

    def make_directory(self, path: str) -> None:
        self.step("make_directory", lambda: self._disk.make_directory(path))

    def remove_directory(self, path: str) -> None:
        self.step("remove_directory", lambda: self._disk.remove_directory(path))

    def rename(self, old_path: str, new_path: str) -> None:
        self.step("rename", lambda: self._disk.rename(old_path, new_path))

    def unlink(self, path: str) -> None:
        self.step("unlink", lambda: self._disk.unlink(path))

    def set_modified(self, path: str, modified_ms: int) -> None:
        self.step("set_modified", lambda: self._disk.set_modified(path, modified_ms))

    def fsync_directory(self, path: str) -> None:
        self.step("fsync_directory", lambda: self._disk.fsync_directory(path))


class MutantFile:
    """An open file of a `Mutant`. A close waits for nothing: what was postponed still happens."""

    def __init__(self, mutant: Mutant, file: SimFile):
        self._mutant = mutant
        self._file = file

    @property
    def path(self) -> str:
        return self._file.path

    def pread_into(self, buffer: Buffer, position: int) -> int:
        return self._file.pread_into(buffer, position)

    def size_bytes(self) -> int:
        return self._file.size_bytes()

    def file_id(self) -> int:
        return self._file.file_id()

    def pwrite(self, data: Buffer, position: int) -> None:
        kept = bytes(data)
        self._mutant.step("write", lambda: self._file.pwrite(kept, position))

    def truncate(self, size_bytes: int) -> None:
        self._mutant.step("truncate", lambda: self._file.truncate(size_bytes))

    def fsync(self) -> None:
        self._mutant.step("fsync", self._file.fsync)

    def close(self) -> None:
        """Left open: the program is over soon, and a postponed step may need it."""


def mutated(scenario: Scenario, *, drop: int | None = None, swap: int | None = None) -> Scenario:
    """The scenario with one operation left out or postponed."""

    def run(disk: SimDisk, journal: Journal) -> None:
        mutant = Mutant(disk, drop=drop, swap=swap)
        scenario(mutant, journal)
        mutant.finish()

    return run


def mutations(
    scenario: Scenario, start: SimDisk | None = None, kinds: Collection[str] = ("drop", "swap")
) -> Iterator[Mutation]:
    """Every barrier to drop and every adjacent pair to exchange. Pairs that cannot make a
    difference are left out: two fsyncs of files, and an fsync before a write of another file."""
    calls = [point.call for point in points_of(scenario, start) if point.call is not None]
    for i, call in enumerate(calls):
        if "drop" in kinds and call.kind in SYNCS:
            yield Mutation("drop", i, (call,))
        if "swap" in kinds and call.kind in MOVABLE and i + 1 < len(calls):
            following = calls[i + 1]
            if {call.kind, following.kind} & SYNCS and not _is_harmless(call, following):
                yield Mutation("swap", i, (call, following))


def _is_harmless(first: Call, second: Call) -> bool:
    """The one is a file's fsync, the other is about another file's content."""
    of_files = {"fsync", "write", "truncate", "set_modified"}
    return {first.kind, second.kind} <= of_files and (
        first.path != second.path or first.kind == second.kind
    )


def survivors(
    scenario: Scenario,
    judge: Judge,
    *,
    seed: int,
    max_states: int,
    start: SimDisk | None = None,
    kinds: Collection[str] = ("drop", "swap"),
    skip: Callable[[Mutation], bool] = lambda _: False,
) -> tuple[list[Mutation], int]:
    """The mutations that nothing catches, and how many were tried.

    `skip`: mutations that are known to be harmless; say why beside it.
    """
    alive, tried = [], 0
    for mutation in mutations(scenario, start, kinds):
        if skip(mutation):
            continue
        tried += 1
        if not is_caught(mutation, scenario, judge, seed=seed, max_states=max_states, start=start):
            alive.append(mutation)
    return alive, tried


def is_caught(
    mutation: Mutation,
    scenario: Scenario,
    judge: Judge,
    *,
    seed: int,
    max_states: int,
    start: SimDisk | None = None,
) -> bool:
    """Whether a judge complains, or the scenario itself. What shows most is looked at first."""
    changed = mutated(scenario, **{mutation.kind: mutation.operation})
    try:
        points = list(points_of(changed, start))[mutation.operation :]
        seen: set[tuple[int, Hashable, Hashable]] = set()
        for first, last in ((0, 4), (4, None)):
            for point in points:
                for state in islice(plain_states(point.disk), first, last):
                    key = (state.fingerprint, point.promise, point.in_flight)
                    if key not in seen and len(seen) < max_states:
                        seen.add(key)
                        judge(state.disk(), point.promise, point.in_flight)
        rest = max_states - len(seen)
        explore(changed, judge, seed=seed, max_states=rest, start=start)
    except Exception:  # noqa: BLE001 - by the judge or by itself, it is caught
        return True
    return False
