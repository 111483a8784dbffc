"""Running an engine once over a generated log, and looking at what came out.

Every run works in a directory of its own with hard links to the log's files: cleaning changes no
file in place, so the log stays as it was, and in the page cache.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from logs import DEFAULT_MEMORY_BYTES, BenchLog

from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean.engine import Engine, Progress
from stratalog.clean.job import CleanedPartition
from stratalog.log import swap
from stratalog.record.kernel.warmup import ensure_warm, exercise
from stratalog.segment.names import FileKind


@dataclass(slots=True)
class Phases:
    """When each phase of a clean began: wall clock and processor time of the whole process."""

    began: dict[str, tuple[float, float]] = field(default_factory=dict)

    def __call__(self, progress: Progress) -> None:
        if progress.phase not in self.began:
            self.began[progress.phase] = (time.perf_counter(), time.process_time())


@dataclass(frozen=True, slots=True)
class Run:
    """One clean. Seconds of wall clock, and how many cores were busy on average."""

    outcome: CleanedPartition
    seconds: float
    index_seconds: float
    rewrite_seconds: float
    index_cores: float
    rewrite_cores: float


def warm_kernels() -> None:
    """Compile the kernels if this machine has not, and load them into this process."""
    ensure_warm(lambda text: print(text, file=sys.stderr))
    exercise()


@contextmanager
def linked_run(log: BenchLog, scratch: str) -> Iterator[BenchLog]:
    """The log in a fresh directory, and the disk at rest."""
    directory = os.path.join(scratch, "run", "bench-0")
    linked = log.linked(directory)
    os.sync()
    try:
        yield linked
    finally:
        shutil.rmtree(os.path.dirname(directory))


def clean_once(engine: Engine, log: BenchLog, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> Run:
    """Clean the log, fsync included, without putting the result in place; checks the outcome."""
    job = log.job(memory_bytes)
    phases = Phases()
    start, start_cpu = time.perf_counter(), time.process_time()
    (outcome,) = engine.clean([job], writes=True, on_progress=phases)
    end, end_cpu = time.perf_counter(), time.process_time()
    check(outcome, log)
    middle, middle_cpu = phases.began["rewrite"]
    return Run(
        outcome,
        end - start,
        middle - start,
        end - middle,
        (middle_cpu - start_cpu) / (middle - start),
        (end_cpu - middle_cpu) / (end - middle),
    )


def check(outcome: CleanedPartition, log: BenchLog) -> None:
    """A fast engine that loses records is no use: one record of each key must have stayed."""
    volume = outcome.volume
    found = (outcome.end_offset, volume.records_before, volume.records_after, outcome.keys)
    wanted = (log.records, log.records, log.keys, log.keys)
    if found != wanted:
        raise SystemExit(f"wrong outcome (end, records before, after, keys): {found}, not {wanted}")


def swap_in(outcome: CleanedPartition) -> None:
    """Put all groups in place of their sources, durably, and remove those."""
    filesystem = LocalFileSystem()
    directory = outcome.job.directory
    for group in outcome.groups:
        if group.parts:
            parts = {FileKind(kind): name for kind, name in group.parts}
            new = (swap.SegmentParts(group.sources[0], parts),)
            swap.swap(filesystem, directory, swap.Replacement(group.sources, new))
    swap.remove_deleted(filesystem, directory)
