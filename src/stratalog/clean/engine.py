"""What every engine does: clean jobs, answer outcomes. It writes only `.part` files.

Two engines exist: threads on this machine (`local_engine`) and Spark (`stratalog.spark.engine`).
For equal jobs they answer equal outcomes and write equal bytes (SPK-2). Neither renames or removes
anything: putting the result in place is the owner's business (`log/swap.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from stratalog.clean.job import CleanedPartition, CleaningJob


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the work is. `phase` is `index` or `rewrite`; bytes are of .log files, all jobs."""

    phase: str
    done_bytes: int
    total_bytes: int


OnProgress = Callable[[Progress], None]


class Engine(Protocol):
    """Runs cleaning jobs."""

    def clean(
        self, jobs: Sequence[CleaningJob], *, writes: bool, on_progress: OnProgress
    ) -> list[CleanedPartition]:
        """Clean `jobs`, in their order. Without `writes` only decide: a dry run.

        Raises `CorruptionError` for damage, with the file's name, before anything is in place.
        """
        ...
