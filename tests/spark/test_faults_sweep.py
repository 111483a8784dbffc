"""Faults that need a Spark of their own: drivers and executors killed, attempts outrun (SPK-3).

Each of these starts Spark in another process, which takes seconds; together they kill more than a
hundred times (`doomed.py` says how).
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.clean.local_engine import LocalEngine
from stratalog.spark.engine import SparkEngine
from tests.sim.sweeps import IS_SWEEP
from tests.spark.faulting import DISK, STAGES, Logs, Plan, clean, cut_small, strays, strike

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.slow, pytest.mark.sweep, pytest.mark.requirement("SPK-3")]
Count = Callable[[str, int], None]

PROJECT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 3600
"""Nothing is decided by it: a child that has not ended by then hangs."""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Logs:
    return Logs.write(tmp_path_factory.mktemp("faults"))


def doomed(*arguments: Any) -> tuple[int, dict[str, Any] | None, str]:
    """Run it; its exit code, what it printed, what it said. Returns when its last process, workers
    and Java among them, is gone."""
    mark = f"STRATALOG_DOOMED={uuid.uuid4().hex}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.doomed", *map(str, arguments)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, **dict([mark.split("=")])},
    )
    end = time.monotonic() + PATIENCE_SECONDS
    while marked(mark):
        assert time.monotonic() < end, "processes of a dead driver go on"
        time.sleep(0.1)
    lines = done.stdout.strip().splitlines()
    return done.returncode, json.loads(lines[-1]) if lines else None, done.stderr[-4000:]


def marked(mark: str) -> list[int]:
    """Processes with `mark` in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue  # gone, or a stranger's
    return found


@pytest.mark.parametrize("action", ["driver", "jvm"])
@pytest.mark.parametrize("stage", ["start", *STAGES, "done"])
def test_a_driver_killed_at_any_stage(
    stage: str, action: str, logs: Logs, tmp_path: Path, count_cases: Count
) -> None:
    """The Python that drives Spark, or the Java: the other one, and the workers, end with it."""
    root = logs.copy(tmp_path / "logs")
    code, told, said = doomed("driver", root, tmp_path, stage, action)
    if action == "driver":
        assert (code, told) == (-9, None), said
    elif stage == "done":
        assert (code, told) == (0, {"survived": 1}), said  # Spark had nothing to do any more
    else:
        assert code == 1, said
        assert strays(root) == [], "whoever drives tidies up"
    assert logs.check(root) == ("after" if code == 0 else "before")
    clean(root, LocalEngine(DISK, threads=1))
    logs.check_cleaned(root)
    count_cases(f"kill -9 of the {action} of a job on Spark", 1)


def test_a_driver_killed_at_each_change_after_its_job(
    logs: Logs, tmp_path: Path, count_cases: Count
) -> None:
    pickled = tmp_path / "pickled"
    pickled.write_bytes(pickle.dumps(logs))
    code, told, said = doomed("swap", pickled, tmp_path)
    assert code == 0, said
    assert told is not None
    assert set(told) == {"before", "between", "after", "with files of the round"}
    count_cases(
        "kill -9 of a driver while it swaps and notes",
        told["before"] + told["between"] + told["after"],
    )
    for name, count in told.items():
        count_cases(f"kill -9 of a driver while it swaps and notes, left {name}", count)


def test_executors_killed_and_attempts_outrun(
    logs: Logs, tmp_path: Path, count_cases: Count
) -> None:
    pickled = tmp_path / "pickled"
    pickled.write_bytes(pickle.dumps(logs))
    code, told, said = doomed("cluster", pickled, tmp_path, 16 if IS_SWEEP else 8)
    assert code == 0, said
    assert told is not None
    for name, count in told.items():
        count_cases(name, count)


@pytest.mark.parametrize("turn", range(4))
def test_workers_killed_in_each_task_of_each_stage(
    turn: int,
    spark: SparkSession,
    logs: Logs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count_cases: Count,
) -> None:
    """A task is tried four times: it may die in three of its stages."""
    chosen = [stage for place, stage in enumerate(STAGES) if turn in (3, place % 3)]
    cut_small(monkeypatch)
    root = logs.copy(tmp_path / "logs")
    plan = Plan(tmp_path / "flags", dict.fromkeys(chosen, "worker"), every=turn < 3)
    strike(monkeypatch, plan)
    clean(root, SparkEngine(spark))
    assert len(plan.done()) >= len(chosen)
    logs.check_cleaned(root)
    count_cases("kill -9 of Spark's Python workers", len(plan.done()))


# ---------------------------------------------------------------- disks of their own


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[None]:
    """A file system of so many bytes; skips where none may be mounted."""
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", path],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("no file system may be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@pytest.mark.requirement("LOG-7")
def test_a_real_disk_that_is_full(
    spark: SparkSession, logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_small(monkeypatch)
    with small_disk(tmp_path / "disk", 2 << 20):
        root = logs.copy(tmp_path / "disk" / "logs")
        filler = tmp_path / "disk" / "filler"
        with (
            open(filler, "wb", buffering=0) as file,
            pytest.raises(OSError, match="space"),
        ):
            while True:
                file.write(bytes(4096))
        os.truncate(filler, filler.stat().st_size - (12 << 10))
        strike(monkeypatch, Plan(tmp_path / "flags", {}))
        with pytest.raises(Exception, match="No space left on device") as caught:
            clean(root, SparkEngine(spark))
        assert "\n" not in str(caught.value)
        assert strays(root) == []
        filler.unlink()
        assert logs.check(root) == "before"
        clean(root, SparkEngine(spark))
        logs.check_cleaned(root)


@pytest.mark.requirement("LOG-7")
def test_no_space_for_what_is_shuffled(logs: Logs, tmp_path: Path) -> None:
    root = logs.copy(tmp_path / "logs")
    with small_disk(tmp_path / "spark", 24 << 10):
        code, told, said = doomed("shuffle", root, tmp_path)
    assert code == 0, said
    assert told is not None
    assert "\n" not in told["text"]
    assert "space" in told["text"], told
    assert strays(root) == []
    assert logs.check(root) == "before"
