"""What somebody who watches Spark reads of our jobs: a group and a description (SPK-8).

    stratalog compact: index orders-0, orders-1, orders-2 ... (12 partitions, 3.4 GiB)

Spark's page shows the description of a job and of its stages; without one it shows a line of our
code. The group is what a job is cancelled by.

Invariants
- D1  Afterwards the thread's jobs are described as they were before: by whoever's program it is.
- D2  What an observer of progress raises ends the jobs within a poll, and is raised by `watched`.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_NAMES = 3
_POLL_SECONDS = 0.2
_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


def description(work: str, names: Sequence[str], size_bytes: int | None = None) -> str:
    """`work`, on which partitions, of how many bytes of `.log`, in one line."""
    some = ", ".join(names[:_NAMES]) + (" ..." if len(names) > _NAMES else "")
    count = f"{len(names):,} partition{'' if len(names) == 1 else 's'}"
    measure = count if size_bytes is None else f"{count}, {_size(size_bytes)}"
    return f"stratalog {work} {some} ({measure})"


def _size(size_bytes: int) -> str:
    value, place = float(size_bytes), 0
    while value >= 1000 and place < len(_UNITS) - 1:
        value, place = value / 1024, place + 1
    return f"{value:.0f} B" if place == 0 else f"{value:.1f} {_UNITS[place]}"


@contextmanager
def described(context: SparkContext, text: str) -> Iterator[str]:
    """This thread's jobs get `text` as their description, and a new group, which is answered."""
    before = {name: context.getLocalProperty(name) for name in _PROPERTIES}
    group = f"stratalog-{secrets.token_hex(4)}"
    context.setJobGroup(group, text, interruptOnCancel=True)
    try:
        yield group
    finally:
        for name, value in before.items():
            # Spark takes None for "unset"; its annotation does not say so.
            context.setLocalProperty(name, value)  # type: ignore[arg-type]


@contextmanager
def watched(context: SparkContext, text: str, on_share: Callable[[float], None]) -> Iterator[None]:
    """As `described`; `on_share` is told, from another thread, which share of the tasks is done.

    What it raises ends the jobs and is raised here (D2).
    """
    stop = threading.Event()
    raised: list[BaseException] = []

    def poll(group: str) -> None:
        while not stop.wait(_POLL_SECONDS):
            if not raised:
                try:
                    on_share(_share_done(context, group))
                except BaseException as error:  # noqa: BLE001  raised again in the caller
                    raised.append(error)
            if raised:
                # Again and again: an action that has not reached Spark yet is not cancelled.
                context.cancelJobGroup(group)

    with described(context, text) as group:
        thread = threading.Thread(target=poll, args=(group,), daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            context.cancelJobGroup(group)
            if raised:
                raise raised[0] from None
            raise
        finally:
            stop.set()
            thread.join()
    if raised:
        raise raised[0]


def _share_done(context: SparkContext, group: str) -> float:
    tracker = context.statusTracker()
    done = total = 0
    for job_id in tracker.getJobIdsForGroup(group):
        job = tracker.getJobInfo(job_id)
        for stage_id in job.stageIds if job is not None else ():
            stage = tracker.getStageInfo(stage_id)
            if stage is not None:
                done += stage.numCompletedTasks
                total += stage.numTasks
    return done / total if total else 0.0
