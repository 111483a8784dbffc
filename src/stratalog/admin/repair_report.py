"""What `log repair` is told, and what it answers: plain values, and their form in JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stratalog.admin.damage import Damage
from stratalog.admin.mend import Step
from stratalog.admin.verify import Problem
from stratalog.ledger.manifest import Generation

CUT, SKIP = "cut", "skip"
WAITS = "waits"
"""A step that is not taken, because some logs are not settled."""


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """`applies` False: only show. `choice`: `CUT`, `SKIP`, or None to leave damage alone."""

    applies: bool
    choice: str | None = None
    interval_bytes: int = 4096


@dataclass(frozen=True, slots=True)
class DirectoryRepair:
    """A log directory's own files."""

    directory: str
    closed_in_order: bool
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class PartitionRepair:
    """One partition. `damage`: what no crash explains; `is_undecided`: it waits for a choice.

    `left`: what is still wrong afterwards, because no repair can know better. `error`: why the
    partition could not be looked at. `lost`: what is gone as a whole. `ledger`: the one in use; a
    log that ends below its horizon goes on there.
    """

    partition: str
    directory: str
    segments: int = 0
    log_bytes: int = 0
    quarantine: str | None = None
    steps: tuple[Step, ...] = ()
    damage: Damage | None = None
    undecided: str | None = None
    left: tuple[Problem, ...] = ()
    error: str | None = None
    lost: tuple[str, ...] = ()
    ledger: Generation | None = None

    @property
    def is_ok(self) -> bool:
        return self.undecided is None and not self.left and self.error is None

    def as_json(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "directory": self.directory,
            "segments": self.segments,
            "log_bytes": self.log_bytes,
            "quarantine": self.quarantine,
            "steps": [{"what": step.what, "text": step.text} for step in self.steps],
            "damage": None if self.damage is None else self.damage.as_json(),
            "lost": list(self.lost),
            "ledger": None
            if self.ledger is None
            else {
                "number": self.ledger.number,
                "start_offset": self.ledger.start_offset,
                "horizon": self.ledger.horizon,
            },
            "undecided": self.undecided,
            "left": [
                {"file": problem.file, "position": problem.position, "reason": problem.reason}
                for problem in self.left
            ],
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class RepairReport:
    """A whole run."""

    applied: bool
    directories: tuple[DirectoryRepair, ...]
    partitions: tuple[PartitionRepair, ...]

    @property
    def is_ok(self) -> bool:
        """Everything is in order, or would be afterwards."""
        return all(partition.is_ok for partition in self.partitions)

    @property
    def has_steps(self) -> bool:
        steps = [item.steps for item in self.directories] + [item.steps for item in self.partitions]
        return any(step.what != WAITS for taken in steps for step in taken)

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.is_ok,
            "applied": self.applied,
            "directories": [
                {
                    "directory": item.directory,
                    "closed_in_order": item.closed_in_order,
                    "steps": [{"what": step.what, "text": step.text} for step in item.steps],
                }
                for item in self.directories
            ],
            "partitions": [item.as_json() for item in self.partitions],
        }
