"""`verify` over directories: every partition checked, and compared with another's if asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stratalog.admin.directories import PartitionPlace, find_partitions
from stratalog.admin.fold import Comparison, compare_partitions
from stratalog.admin.verify import (
    PartitionCheck,
    Problem,
    verify_checkpoints,
    verify_partition,
)
from stratalog.base.clock import Clock
from stratalog.base.errors import CorruptionError, StorageIOError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.engine import OnProgress
from stratalog.config.settings import Settings


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was checked. `problems`: those of no single partition; `missing`: partitions that only
    one of the two directories has."""

    partitions: tuple[PartitionCheck, ...]
    problems: tuple[Problem, ...]
    comparisons: tuple[Comparison, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def all_problems(self) -> list[Problem]:
        return [*(p for check in self.partitions for p in check.problems), *self.problems]

    @property
    def is_ok(self) -> bool:
        """Nothing is damaged, and nothing differs."""
        return (
            not self.all_problems
            and not self.missing
            and all(comparison.different == 0 for comparison in self.comparisons)
        )

    def as_json(self) -> dict[str, Any]:
        return {"ok": self.is_ok, **asdict(self)}


def verify(
    targets: Sequence[str],
    against: str | None,
    settings: Settings,
    filesystem: FileSystem,
    clock: Clock,
    on_progress: OnProgress,
) -> VerifyReport:
    """Check the partitions in `targets`; `against`: also compare the latest values with that
    directory's (CMP-18). A partition that cannot be read is a problem of its own.

    Raises `UsageError`.
    """
    places = find_partitions(targets, filesystem)
    checks = tuple(_check(place, filesystem, on_progress) for place in places)
    problems = [
        problem
        for log_dir in sorted({place.log_dir for place in places})
        for problem in verify_checkpoints(log_dir, filesystem)
    ]
    if against is None:
        return VerifyReport(checks, tuple(problems))
    others = find_partitions([against], filesystem)
    pairs, missing = _paired(places, others)
    comparisons = []
    sound = {check.directory for check in checks if not check.problems}
    for place, other in pairs:
        if place.path not in sound:
            continue  # its problems are told; what a damaged log stands for is not known
        try:
            comparisons.append(
                compare_partitions(place, other, settings, filesystem, clock, on_progress)
            )
        except CorruptionError as error:
            problems.append(Problem(error.file or other.path, error.position, error.reason))
    return VerifyReport(checks, tuple(problems), tuple(comparisons), missing)


def _check(
    place: PartitionPlace, filesystem: FileSystem, on_progress: OnProgress
) -> PartitionCheck:
    """A partition's check; what the disk does not give is a problem, and others go on."""
    try:
        return verify_partition(place, filesystem, on_progress)
    except (StorageIOError, FileNotFoundError) as error:
        # Its text begins with the path, mostly that of one file.
        problem = Problem(place.path, None, f"cannot be read: {error}")
        return PartitionCheck(place.name, place.path, 0, 0, 0, 0, (problem,))


def _paired(
    places: Sequence[PartitionPlace], others: Sequence[PartitionPlace]
) -> tuple[list[tuple[PartitionPlace, PartitionPlace]], tuple[str, ...]]:
    """Partitions of equal names; of two single ones the names do not matter."""
    if len(places) == len(others) == 1:
        return [(places[0], others[0])], ()
    by_name = {other.name: other for other in others}
    pairs = [(place, by_name[place.name]) for place in places if place.name in by_name]
    names = {place.name for place in places}
    return pairs, tuple(sorted(names ^ by_name.keys()))
