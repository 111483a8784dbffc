"""A process that cleans logs on Spark, and may be killed: `python -m tests.spark.doomed ...`.

    driver ROOT SCRATCH STAGE ACTION      one clean; Spark, or what drives it, dies at STAGE
    swap LOGS SCRATCH                     one job; its driver, forked, dies at each change of files
    cluster LOGS SCRATCH ROUNDS           executors of a cluster die; slow tasks are done twice
    shuffle ROOT SCRATCH                  one clean; no space for what is shuffled

Prints one JSON object; what is wrong ends it with a traceback. Runs in a process of its own because
a process has one Spark, and because it is to be killed.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stratalog.clean.job import CleanedPartition, CleaningJob
from stratalog.spark.engine import SparkEngine
from stratalog.spark.session import spark_session
from tests.crash.killing import KillingFileSystem
from tests.spark.faulting import STAGES, Logs, Plan, clean, cut_small, strays, strike

CLUSTER = "local-cluster[2,1,1024]"
CLUSTER_CONF = {
    # A slow attempt is only ever outrun by another executor's, and local mode has no other.
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.0",
    "spark.speculation.minTaskRuntime": "0ms",
    # As many executors as are killed.
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.executor.memory": "512m",
    "spark.task.maxFailures": "12",
    "spark.stage.maxConsecutiveAttempts": "12",
}


def session(scratch: Path, master: str = "local[2]", **conf: str) -> Any:
    local = scratch / "spark"
    local.mkdir(exist_ok=True)
    return spark_session(master, "doomed", {"spark.local.dir": str(local), **conf})


def driver(root: Path, scratch: Path, stage: str, action: str) -> dict[str, int]:
    """`stage`: one of a task's, "start" (nothing has been asked of Spark) or "done" (all has been
    answered, nothing is in place)."""
    patch = pytest.MonkeyPatch()
    cut_small(patch)
    engine = SparkEngine(session(scratch))

    def die() -> None:
        pids = {"driver": [os.getpid()], "jvm": [jvm()], "both": [jvm(), os.getpid()]}
        for pid in pids[action]:
            os.kill(pid, signal.SIGKILL)

    class Dying:
        def clean(self, jobs: Any, **options: Any) -> Any:
            if stage == "start":
                die()
            done = engine.clean(jobs, **options)
            if stage == "done":
                die()
            return done

    if stage in STAGES:
        strike(patch, Plan(scratch / "flags", {stage: action}, every=False))
    clean(root, Dying())
    return {"survived": 1}


def jvm() -> int:
    """The Java of this process's Spark."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    assert context is not None
    return int(context._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]


def swap(logs: Logs, scratch: Path) -> dict[str, int]:
    """The job is done once; what follows is done by one fork after the other, each of which dies at
    its next change, until one gets through."""
    patch = pytest.MonkeyPatch()
    cut_small(patch)
    engine = SparkEngine(session(scratch))
    root, aside = logs.copy(scratch / "logs"), scratch / "aside"
    found: Counter[str] = Counter()
    killing = KillingFileSystem(1 << 40)

    class Forking:
        def clean(self, jobs: list[CleaningJob], **options: Any) -> list[CleanedPartition]:
            done = engine.clean(jobs, **options)
            shutil.copytree(root, aside)
            for left in range(1, 1 << 20):
                pid = os.fork()
                if pid == 0:
                    killing.left = left
                    return done
                status = os.waitpid(pid, 0)[1]
                if status == 0:
                    logs.check_cleaned(root)
                    raise KeyboardInterrupt  # the parent has seen enough
                assert status == signal.SIGKILL, status
                found["with files of the round"] += bool(strays(root))
                found[logs.check(root)] += 1
                shutil.rmtree(root)
                shutil.copytree(aside, root)
            raise AssertionError

    main = os.getpid()
    try:
        clean(root, Forking(), killing)  # type: ignore[arg-type]
    except KeyboardInterrupt:
        return dict(found)
    finally:
        if os.getpid() != main:
            os._exit(0 if sys.exception() is None else 1)
    raise AssertionError


def cluster(logs: Logs, scratch: Path, rounds: int) -> dict[str, int]:
    """In each round executors die at one stage or two; then slow tasks, one stage after another."""
    spark = session(scratch, CLUSTER, **CLUSTER_CONF)
    engine = SparkEngine(spark)
    found: Counter[str] = Counter()

    def once(name: str, actions: dict[str, str]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            cut_small(patch)
            root = logs.copy(scratch / name)
            plan = Plan(scratch / f"flags-{name}", actions, every=False)
            strike(patch, plan)
            clean(root, engine)
            assert len(plan.done()) == len(actions), (plan.done(), actions)
            if "slow" in actions.values():
                # The slow attempt goes on, or has been ended by Spark; its files are of the round.
                again = [path.name for path in plan.flags.glob("again-*")]
                assert again, "nobody else has tried"
                found["tasks done twice, the first attempt being slow"] += len(again)
            else:
                found["executors killed"] += len(actions)
            logs.check_cleaned(root)
            shutil.rmtree(root)

    for number in range(rounds):
        stage = STAGES[number % len(STAGES)]
        other = STAGES[(5 * number + number // len(STAGES)) % len(STAGES)]
        once(f"round-{number}", dict.fromkeys({stage, other}, "executor"))
    for stage in ("index", "rewrite", "rewrite-write", "rewrite-end"):
        once(f"slow-{stage}", {stage: "slow"})
    spark.stop()
    return dict(found)


def shuffle(root: Path, scratch: Path) -> dict[str, str]:
    """`scratch` / "spark" is a small disk."""
    patch = pytest.MonkeyPatch()
    cut_small(patch)
    try:
        clean(root, SparkEngine(session(scratch)))
    except Exception as error:  # noqa: BLE001  it is what the caller looks at
        return {"raised": type(error).__name__, "text": str(error)}
    return {"text": "there was space"}


def main(mode: str, logs: str, scratch: str, *rest: str) -> None:
    """`logs` is a pickled `Logs` for those modes that make copies."""
    where = Path(scratch)
    told: dict[str, Any]
    if mode == "driver":
        told = driver(Path(logs), where, *rest)
    elif mode == "shuffle":
        told = shuffle(Path(logs), where)
    else:
        given: Logs = pickle.loads(Path(logs).read_bytes())
        told = swap(given, where) if mode == "swap" else cluster(given, where, int(rest[0]))
    sys.stdout.write(f"{json.dumps(told)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
