"""Faults while logs are cleaned on Spark: a log is as it was or wholly cleaned (SPK-3).

Here what is quick: workers that are killed on the shared session, disks that fill, and a process
with everything in it (driver, tasks, swap) that is killed at its changes of files, one after the
other, on the stand-in for Spark. Executors, real drivers and speculation: `test_faults_sweep.py`.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.admin.service import open_service
from stratalog.base.clock import FixedClock
from stratalog.base.errors import LogLockedError, StorageFullError, StorageIOError
from stratalog.config.book import SettingsBook
from stratalog.spark import engine, tasks
from stratalog.spark.engine import SparkEngine
from stratalog.spark.failures import failure_of
from tests.clean.services import NOW, put
from tests.crash.killing import KillingFileSystem
from tests.sim.sweeps import IS_SWEEP
from tests.spark.faulting import DISK, ONE, Logs, Plan, clean, cut_small, strays, strike
from tests.spark.stand_in import StandInContext, StandInSession, StandInTaskContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")
Count = Callable[[str, int], None]

STEP = 1 if IS_SWEEP else 17
"""Of the changes that a run makes, every so many-th is one at which it is killed."""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Logs:
    return Logs.write(tmp_path_factory.mktemp("faults"))


def stand_in_engine(patch: pytest.MonkeyPatch, filesystem: object = DISK) -> SparkEngine:
    context = StandInContext(seed=1, parallelism=2)
    patch.setattr(tasks, "TaskContext", StandInTaskContext(context))
    return SparkEngine(StandInSession(context), filesystem)  # type: ignore[arg-type]


# ---------------------------------------------------------------- the whole process


@pytest.mark.sweep
@pytest.mark.requirement("SPK-3")
def test_a_process_killed_at_any_change_leaves_each_group_old_or_new(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count_cases: Count
) -> None:
    """Tasks, driver and owner are one process here, which dies at its n-th change of a file."""
    cut_small(monkeypatch)
    killing = KillingFileSystem(1 << 40)
    monkeypatch.setattr(tasks, "LocalFileSystem", lambda: killing)
    clean(logs.copy(tmp_path / "whole"), stand_in_engine(monkeypatch, killing), killing)  # type: ignore[arg-type]
    changes = (1 << 40) - killing.left
    logs.check_cleaned(tmp_path / "whole")
    found: Counter[str] = Counter()
    for left in range(1, changes + 1, STEP):
        root = logs.copy(tmp_path / f"{left}")
        pid = os.fork()
        if pid == 0:
            try:
                killing.left = left
                clean(root, stand_in_engine(monkeypatch, killing), killing)  # type: ignore[arg-type]
                os._exit(0)
            finally:
                os._exit(1)
        status = os.waitpid(pid, 0)[1]
        if status == 0 and left > changes // 2:
            break  # which tasks the stand-in repeats, and so how much there is to change, varies
        assert status == signal.SIGKILL, f"change {left} of {changes}"
        found["with files of the round"] += bool(strays(root))
        found[logs.check(root)] += 1
    assert set(found) == {"before", "between", "after", "with files of the round"}
    count_cases(
        "kill -9 of driver and tasks in one process",
        sum(found.values()) - found["with files of the round"],
    )
    for name, count in found.items():
        count_cases(f"kill -9 of driver and tasks in one process, left {name}", count)


# ---------------------------------------------------------------- workers on a real session


@pytest.mark.requirement("SPK-3", "LOG-7")
def test_workers_killed_or_without_space_at_every_stage_of_one_job(
    spark: SparkSession,
    logs: Logs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count_cases: Count,
) -> None:
    """A disk that is full for one worker costs another attempt, as its death does."""
    cut_small(monkeypatch)
    root = logs.copy(tmp_path / "logs")
    killed = ("index", "merge", "rewrite-end", "join-end")
    full = ("rewrite-write", "join")
    actions = {**dict.fromkeys(killed, "worker"), **dict.fromkeys(full, "full")}
    plan = Plan(tmp_path / "flags", actions, every=False)
    strike(monkeypatch, plan)
    clean(root, SparkEngine(spark))
    assert plan.done() == sorted(f"struck-{stage}" for stage in actions)
    logs.check_cleaned(root)
    count_cases("kill -9 of Spark's Python workers", len(killed))
    count_cases("attempts of Spark's tasks that found no space", len(full))


@pytest.mark.requirement("SPK-3", "LOG-7")
def test_a_disk_that_stays_full_is_one_line_and_the_log_is_as_it_was(
    spark: SparkSession, logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition's tasks fail; the files of the other's, which is through, go too."""
    cut_small(monkeypatch)
    root = logs.copy(tmp_path / "logs")
    real = tasks.rewrite_task

    def rewrite_task(task: Any, *arguments: Any, **options: Any) -> Any:
        if task.job == 1:
            raise StorageFullError("/logs/x.part: No space left on device")
        return real(task, *arguments, **options)

    strike(monkeypatch, Plan(tmp_path / "flags", {}))
    monkeypatch.setattr(engine.tasks, "rewrite_task", rewrite_task)
    with pytest.raises(StorageFullError, match=r"^/logs/x\.part: No space left on device$"):
        clean(root, SparkEngine(spark))
    assert logs.check(root) == "before"


@pytest.mark.requirement("SPK-3", "CLN-1")
def test_a_round_of_the_service_leaves_no_file_of_a_worker_that_died(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log stays open: nobody else would remove it."""
    plan = Plan(tmp_path / "flags", {"rewrite-end": "worker"}, every=False)
    strike(monkeypatch, plan)
    words = {"log.cleanup.policy": "compact", "cleaner.engine": "spark"}
    book = SettingsBook(broker=words)
    with open_service([str(tmp_path / "logs")], book, DISK, FixedClock(NOW)) as service:
        log = service.store.create(ONE)
        for number in range(3):
            put(log, ("a", str(number)), (f"k{number}", "x"))
            log.roll()
        assert service.cleaner.run_once()
        [entry] = service.history(ONE)
        assert (entry.engine, entry.result) == ("spark", "cleaned"), entry
        assert plan.done() == ["struck-rewrite-end"]
        assert list((tmp_path / "logs" / str(ONE)).glob("*.part")) == []


# ---------------------------------------------------------------- one line of many

WORKER = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 14.0 failed 4 \
times, most recent failure: Lost task 0.3 in stage 14.0 (TID 42) (host executor driver): \
"""
TRACEBACK = """org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was \
thrown from the Python worker: Traceback (most recent call last):
  File "/x/worker.py", line 4222, in process
    serializer.dump_stream(out_iter, outfile)
    ~~~~~~~~~~~~~~~~~~~~~~^^^^^^^^^^^^^^^^^^^
{last}
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1097)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2935)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
SomethingElse: of no account
"""


@pytest.mark.requirement("SPK-3")
@pytest.mark.parametrize(
    ("last", "kind", "words"),
    [
        (
            "stratalog.base.errors.StorageFullError: /a b/x.part: No space left on device",
            StorageFullError,
            "/a b/x.part: No space left on device",
        ),
        ("stratalog.base.errors.LogLockedError: it is held", LogLockedError, "it is held"),
        (
            "ZeroDivisionError: division by zero",
            StorageIOError,
            "Spark gave up: ZeroDivisionError: division by zero",
        ),
        ("AssertionError", StorageIOError, "Spark gave up: AssertionError"),
        (
            "ModuleNotFoundError: No module named 'stratalog'\nand a line more",
            StorageIOError,
            "Spark gave up: ModuleNotFoundError: No module named 'stratalog'",
        ),
        ("x.y.OddError: " + "long " * 200, StorageIOError, None),
    ],
)
def test_pages_of_java_are_one_line(last: str, kind: type[Exception], words: str | None) -> None:
    error = failure_of(WORKER + TRACEBACK.format(last=last))
    assert type(error) is kind
    assert words is None or str(error) == words
    assert "\n" not in str(error)
    assert len(str(error)) < 400


@pytest.mark.requirement("SPK-3")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            WORKER
            + "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). "
            "Consider setting 'spark.x' to 'true' for the better Python traceback.\n\tat x.y",
            "Spark gave up: Python worker exited unexpectedly (crashed)",
        ),
        (
            WORKER + "java.io.IOException: No space left on device\n\tat x.y(Z.java)",
            "Spark gave up: IOException: No space left on device",
        ),
        (
            WORKER
            + "ExecutorLostFailure (executor 3 exited) Reason: worker lost\nDriver stacktrace:\n",
            "Spark gave up: ExecutorLostFailure (executor 3 exited) Reason: worker lost",
        ),
        (
            "Cannot call methods on a stopped SparkContext.\nIt was made at\nx",
            "Cannot call methods",
        ),
        ("", "Spark gave up"),
    ],
)
def test_what_no_python_said_is_one_line_too(text: str, words: str) -> None:
    error = failure_of(text)
    assert type(error) is StorageIOError
    assert words in str(error)
    assert "\n" not in str(error)
    assert "Consider" not in str(error)
