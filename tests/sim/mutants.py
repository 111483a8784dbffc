"""A scenario with one fsync left out, or with two adjacent steps exchanged.

    for mutation in mutations(scenario, start):
        mutated(scenario, mutation)         the same scenario, changed there; `trials` judges it

`Mutant` stands between the product and a `SimDisk`. Its changes are counted as the disk counts
them; one is left out (an fsync that says it is done), or comes after the next one.

A step is named by what it does and who asks for it: `fsync_directory partition @ recovery.recover`,
whichever segment or partition it is about. Two steps with one name are one site.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stratalog.base.filesystem import OpenMode
from tests.sim.disk import SimDisk
from tests.sim.explore import Journal, Scenario
from tests.sim.file import SimFile
from tests.sim.nodes import Call

if TYPE_CHECKING:
    from typing_extensions import Buffer

SYNCS = frozenset(("fsync", "fsync_directory"))
BOTH = ("drop", "swap")
_OF_ONE_FILE = frozenset(("write", "truncate", "fsync"))
_PARTITION = re.compile(r"^[a-z]+-\d+$")
_DOOMED = re.compile(r"^[a-z]+-\d+\.[0-9a-f]{32}-delete$")
_WHO_ONLY_PASSES_ON = frozenset(
    (
        *("tests.sim.disk", "tests.sim.file", "tests.sim.explore", __name__),
        *("stratalog.base.filesystem", "stratalog.segment.log_file"),
        *("stratalog.log.checkpoint", "stratalog.log.leader_epochs"),
    )
)


@dataclass(frozen=True, slots=True)
class Step:
    """A change, and the function that asked for it."""

    call: Call
    place: str

    def __str__(self) -> str:
        name = os.path.basename(self.call.path)
        if _DOOMED.match(name):
            name = "doomed"
        elif _PARTITION.match(name):
            name = "partition"
        return f"{self.call.kind} {re.sub('[0-9]', '', name)} @ {self.place}"


@dataclass(frozen=True, slots=True)
class Mutation:
    """`kind`: "drop" the operation at `operation`, or let it "swap" places with the next one."""

    kind: str
    operation: int
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        what = "without" if self.kind == "drop" else "exchanged"
        return f"{what} {self.operation}: {' <-> '.join(str(step.call) for step in self.steps)}"

    @property
    def site(self) -> str:
        return " <-> ".join(map(str, self.steps))


class Mutant:
    """A `FileSystem` whose operation number `drop` is left out, or `swap` comes one later."""

    def __init__(self, disk: SimDisk, *, drop: int | None = None, swap: int | None = None):
        self._disk = disk
        self._drop = drop
        self._swap = swap
        self._count = 0
        self._postponed: Callable[[], object] | None = None

    def __getattr__(self, name: str) -> Any:
        """What only asks, or answers something, goes through."""
        return getattr(self._disk, name)

    def step(self, kind: str, change: Callable[[], object]) -> None:
        """Do a change now, later or never. The next one that happens brings what was postponed."""
        before, place = self._disk.operations, self._count
        if kind in SYNCS and place == self._drop:
            self._count += 1
            return
        if place == self._swap and self._postponed is None:
            self._count += 1
            self._postponed = change
            return
        try:
            change()
        finally:
            happened = self._disk.operations - before
            self._count += happened
            if happened:
                self.finish()

    def finish(self) -> None:
        """Do what was postponed: the scenario may be over."""
        postponed, self._postponed = self._postponed, None
        if postponed is not None:
            postponed()

    def open(self, path: str, mode: OpenMode) -> MutantFile:
        file = MutantFile(self, path)
        if mode == "create":
            self.step("create", lambda: file.open(self._disk, mode))
        else:
            file.open(self._disk, mode)
        return file

    def lock(self, path: str, *, exclusive: bool) -> Callable[[], None]:
        """Never postponed: it answers something. It is about processes, no cut finds it held."""
        before = self._disk.operations
        release = self._disk.lock(path, exclusive=exclusive)
        happened = self._disk.operations - before
        self._count += happened
        if happened:
            self.finish()
        return release

    def make_directory(self, path: str) -> None:
        if self._disk.is_directory(path):
            self._disk.make_directory(path)
        else:
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
    """An open file of a `Mutant`; empty as long as its creation is postponed. A close waits for
    nothing: what was postponed still happens."""

    def __init__(self, mutant: Mutant, path: str):
        self._mutant = mutant
        self._path = path
        self._file: SimFile | None = None

    def open(self, disk: SimDisk, mode: OpenMode) -> None:
        self._file = disk.open(self._path, mode)

    @property
    def path(self) -> str:
        return self._path

    def _there(self) -> SimFile:
        assert self._file is not None, f"{self._path}: its creation is postponed"
        return self._file

    def pread_into(self, buffer: Buffer, position: int) -> int:
        return 0 if self._file is None else self._file.pread_into(buffer, position)

    def size_bytes(self) -> int:
        return 0 if self._file is None else self._file.size_bytes()

    def file_id(self) -> int:
        return self._there().file_id()

    def pwrite(self, data: Buffer, position: int) -> None:
        kept = bytes(data)
        self._mutant.step("write", lambda: self._there().pwrite(kept, position))

    def truncate(self, size_bytes: int) -> None:
        self._mutant.step("truncate", lambda: self._there().truncate(size_bytes))

    def fsync(self) -> None:
        self._mutant.step("fsync", lambda: self._there().fsync())

    def close(self) -> None:
        """Left open: the program is over soon, and a postponed step may need it."""


def mutated(scenario: Scenario, mutation: Mutation) -> Scenario:
    """The scenario with one operation left out or postponed."""

    def run(disk: SimDisk, journal: Journal) -> None:
        is_drop = mutation.kind == "drop"
        at = mutation.operation
        mutant = Mutant(disk, drop=at) if is_drop else Mutant(disk, swap=at)
        scenario(mutant, journal)  # type: ignore[arg-type]
        mutant.finish()

    return run


def steps_of(scenario: Scenario, start: SimDisk | None = None) -> list[Step]:
    """All changes of a scenario, in order."""
    disk, steps = (start or SimDisk()).fork(), []

    def note(call: Call) -> None:
        if call.changes:
            steps.append(Step(call, _place()))

    disk.hook = note
    scenario(disk, Journal())
    return steps


def _place() -> str:
    """The function that asks the disk for something, `module.function`."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        module, function = frame.f_globals["__name__"], frame.f_code.co_name
        if module not in _WHO_ONLY_PASSES_ON and not function.startswith("<"):
            return f"{module.rpartition('.')[2]}.{function.strip('_').removesuffix('_locked')}"
        frame = frame.f_back
    return "nobody"


def mutations(
    scenario: Scenario, start: SimDisk | None = None, kinds: Collection[str] = BOTH
) -> Iterator[Mutation]:
    """Every barrier to drop and every adjacent pair to exchange.

    No pair are a file's creation and what is done to the file that it answers, and a lock and what
    follows (`Mutant.lock`).
    """
    steps = steps_of(scenario, start)
    for i, step in enumerate(steps):
        if "drop" in kinds and step.call.kind in SYNCS:
            yield Mutation("drop", i, (step,))
        if "swap" in kinds and i + 1 < len(steps) and _is_pair(step.call, steps[i + 1].call):
            yield Mutation("swap", i, (step, steps[i + 1]))


def _is_pair(first: Call, second: Call) -> bool:
    if first.kind == "create":
        return second.path != first.path or second.kind not in _OF_ONE_FILE
    return first.kind != "lock"
