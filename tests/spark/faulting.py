"""Faults for jobs on Spark: what strikes is decided inside the tasks, at a place, never at a time.

    Plan         what strikes at which stage, and where the flags lie that say that it did
    struck(plan) functions to ship to the workers in place of those of `stratalog.spark.tasks`
    Logs         two partitions, as they were and as the local engine cleans them

Stages: `index`, `index-end`, `merge`, `rewrite`, `rewrite-write` (half of a write of batches is
done), `rewrite-end` (the files are written, nobody knows it yet), `join`, `join-end`. A fault
strikes the first attempt of every task of its stage, or of the first task only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stratalog.admin.compaction import CompactionOptions, compact
from stratalog.admin.report import CompactionReport, Mode
from stratalog.base.clock import FixedClock
from stratalog.base.filesystem import FileSystem, LocalFileSystem
from stratalog.clean.engine import Engine
from stratalog.clean.local_engine import LocalEngine
from stratalog.config.settings import resolve
from stratalog.log.checkpoint import read_checkpoint
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.segment.names import FileState, TopicPartition, parse
from stratalog.spark import cutting, tasks
from stratalog.spark import engine as engine_module
from tests.admin.helpers import NOW_MS, records, write_log

STAGES = (
    *("index", "index-end", "merge", "rewrite", "rewrite-write", "rewrite-end"),
    *("join", "join-end"),
)
DISK = LocalFileSystem()
SEGMENT_BYTES = 40_000
ONE, SEVERAL = TopicPartition("one", 0), TopicPartition("several", 0)


@dataclass(frozen=True)
class Plan:
    """`actions`: stage -> "worker", "executor", "driver", "jvm", "both" (killed with -9), "full"
    (no space left) or "slow" (waits until another attempt has done it). `flags`: a directory.
    `every`: each task of a stage is struck once, not only the first one."""

    flags: Path
    actions: dict[str, str]
    every: bool = True
    driver: int = field(default_factory=os.getpid)

    def done(self) -> list[str]:
        """What has struck, one name a stroke."""
        return sorted(path.name for path in self.flags.glob("struck-*"))


def struck(plan: Plan) -> dict[str, Callable[..., Any]]:
    """The functions, defined in here to travel by value: workers need not see the tests."""
    flags, actions, every, driver = str(plan.flags), dict(plan.actions), plan.every, plan.driver
    stages = STAGES
    real = {name: getattr(tasks, name) for name in ("index_task", "merge_bucket")}
    real |= {name: getattr(tasks, name) for name in ("rewrite_task", "join_task")}

    def at(stage: str, key: str) -> None:
        import errno
        import os
        import signal
        import time

        def made(name: str) -> bool:
            try:
                os.close(os.open(os.path.join(flags, name), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return False
            return True

        def parent_of(pid: int) -> int:
            with open(f"/proc/{pid}/stat") as file:
                return int(file.read().rpartition(")")[2].split()[1])

        name = f"{stage}-{key}" if every else stage
        action = actions.get(stage)
        if action is None:
            return
        if not made(f"struck-{name}"):
            made(f"again-{name}")  # which is what a slow attempt waits for
            return
        here = os.getpid()
        machine = parent_of(os.getppid())  # worker -> its daemon -> the JVM
        if action == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        if action == "slow":
            again, ended = (os.path.join(flags, f"{word}-{name}") for word in ("again", "ended"))
            try:
                while not os.path.exists(again):
                    time.sleep(0.02)
            finally:
                made(os.path.basename(ended))
            return
        victims = {
            "worker": [here],
            "executor": [machine],
            "jvm": [machine],
            "driver": [driver],
            "both": [driver, machine],
        }
        for pid in victims[action]:
            os.kill(pid, signal.SIGKILL)
        if action != "driver":
            time.sleep(600)  # killed with its parent, or given up by it
        # A driver that is gone is not noticed at once: its tasks go on.

    def where() -> str:
        from pyspark import TaskContext

        context = TaskContext.get()
        return "0" if context is None else str(context.partitionId())

    def index_task(task: Any, job: Any, buckets: int) -> Iterator[Any]:
        key = f"{task.job}-{task.pieces[0].first_offset}"
        at("index", key)
        yield from real["index_task"](task, job, buckets)
        at("index-end", key)

    def merge_bucket(blocks: Any, owners: Any) -> Iterator[Any]:
        yield from real["merge_bucket"](blocks, owners)
        at("merge", where())

    def rewrite_task(task: Any, job: Any, blocks: Any, **options: Any) -> Any:
        import os

        key = f"{task.job}-{task.pieces[0].first_offset}"
        at("rewrite", key)
        pwrite = os.pwrite

        def write_half(descriptor: int, data: Any, position: int) -> int:
            if len(data) > 200:  # batches, no entries of an index
                pwrite(descriptor, data[: len(data) // 2], position)
                at("rewrite-write", key)
            return pwrite(descriptor, data, position)

        os.pwrite = write_half
        try:
            done = real["rewrite_task"](task, job, blocks, **options)
        finally:
            os.pwrite = pwrite
        at("rewrite-end", key)
        return done

    def join_task(task: Any, *arguments: Any, **options: Any) -> Any:
        key = f"{task.job}-{task.group[0].base_offset}"
        at("join", key)
        done = real["join_task"](task, *arguments, **options)
        at("join-end", key)
        return done

    assert set(actions) <= set(stages)
    return {
        "index_task": index_task,
        "merge_bucket": merge_bucket,
        "rewrite_task": rewrite_task,
        "join_task": join_task,
    }


def strike(patch: pytest.MonkeyPatch, plan: Plan) -> None:
    """From now on the plan's faults strike the jobs of this process."""
    plan.flags.mkdir(parents=True, exist_ok=True)
    shipped = SimpleNamespace(**{**vars(tasks), "__name__": "shipped"})
    for name in [name for name in vars(shipped) if name.startswith("__")]:
        delattr(shipped, name)
    vars(shipped).update(struck(plan))
    patch.setattr(engine_module, "tasks", shipped)


def cut_small(patch: pytest.MonkeyPatch) -> None:
    """Groups and segments of tens of kilobytes are cut, as those of gigabytes are."""
    patch.setattr(cutting, "LEAST_SHARE_BYTES", 1)
    patch.setattr(cutting, "MOST_SHARE_BYTES", 5_000)


# ---------------------------------------------------------------- logs

Files = dict[str, bytes]


@dataclass(frozen=True)
class Logs:
    """A log directory of two partitions, each with an empty active segment: `one` is a single
    group, `several` a group for each of its segments. `before` and `after`: their segments' files
    by partition; `after` is what the local engine makes of them."""

    root: Path
    before: dict[TopicPartition, Files]
    after: dict[TopicPartition, Files]

    @classmethod
    def write(cls, scratch: Path) -> Logs:
        """In the new directory `scratch`."""
        root = scratch / "logs"

        def of(segment: int) -> Callable[[int], str]:
            """Every second key is the segment's own."""
            return lambda n: f"own-{segment}-{n % 37}" if n % 2 else f"key-{7 * n % 61}"

        for key, value, size in ((ONE, "v" * 40, 140), (SEVERAL, "v" * 150, 160)):
            content = [
                [records(map(of(segment), range(at, at + 20)), value) for at in range(0, size, 20)]
                + [records([f"key-{segment}"], None)]
                for segment in range(3)
            ]
            write_log(root / str(key), content, rolls_last=True)
        before = {key: files(root / str(key)) for key in (ONE, SEVERAL)}
        other = scratch / "cleaned"
        shutil.copytree(root, other)
        clean(other, LocalEngine(DISK, threads=1))
        after = {key: files(other / str(key)) for key in (ONE, SEVERAL)}
        shutil.rmtree(other)
        for key in (ONE, SEVERAL):
            assert before[key] != after[key]
        assert len(after[ONE]) < len(before[ONE]), "its segments became one"
        assert set(after[SEVERAL]) == set(before[SEVERAL]), "each segment is a group"
        return cls(root, before, after)

    def copy(self, target: Path) -> Path:
        shutil.copytree(self.root, target)
        return target

    def check(self, root: Path) -> str:
        """After a fault: start again, and look. Whether `root` is "before", "after" or "between",
        which is where some groups are in place and others are not."""
        start(root)
        found = {key: files(root / str(key)) for key in (ONE, SEVERAL)}
        assert strays(root) == [], "the next start left files of the last round"
        assert found[ONE] in (self.before[ONE], self.after[ONE])
        assert set(found[SEVERAL]) == set(self.before[SEVERAL])
        bases = {name.partition(".")[0] for name in found[SEVERAL]}
        for base in bases:
            of_group = {n: data for n, data in found[SEVERAL].items() if n.startswith(base)}
            whole = [
                {n: data for n, data in side[SEVERAL].items() if n.startswith(base)}
                for side in (self.before, self.after)
            ]
            assert of_group in whole, f"{base}: neither as it was nor cleaned"
        checkpoint = read_checkpoint(DISK, str(root / "cleaner-offset-checkpoint"))
        for key in (ONE, SEVERAL):
            if checkpoint.get(key):
                assert found[key] == self.after[key], "the checkpoint went ahead of the swap"
        if found == self.before:
            return "before"
        return "after" if found == self.after else "between"

    def check_cleaned(self, root: Path) -> None:
        """Wholly cleaned: the local engine's bytes; and the next start leaves nothing else."""
        assert {key: files(root / str(key)) for key in (ONE, SEVERAL)} == self.after
        assert self.check(root) == "after"


def files(partition: Path) -> Files:
    """Bytes and times of the segments' files, by name; nothing else that lies there."""
    found = {}
    for path in sorted(partition.iterdir()):
        parsed = parse(path.name)
        if (
            parsed is not None
            and parsed.state is FileState.FINAL
            and parsed.kind.value != "snapshot"
        ):
            modified = b"" if path.suffix != ".log" else b"%d " % path.stat().st_mtime_ns
            found[path.name] = modified + path.read_bytes()
    return found


def strays(root: Path) -> list[str]:
    """Files of unfinished rounds and swaps, intents among them; not `.tmp`: one of a fixed name is
    what a write of a small file begins with, and the next one replaces it."""
    return [
        str(path.relative_to(root))
        for path in sorted(root.rglob("*"))
        if path.name == "swap-intent"
        or path.name.endswith((".part", ".cleaned", ".swap", ".deleted"))
    ]


def start(root: Path) -> None:
    """What whoever starts next does first: open both logs."""
    for key in (ONE, SEVERAL):
        settings = LogSettings(cleanup_policy=("compact",))
        PartitionLog.open(str(root / str(key)), settings, DISK, FixedClock(NOW_MS)).close()


def clean(
    root: Path, engine: Engine | Callable[[], Engine], filesystem: FileSystem = DISK
) -> CompactionReport:
    """`stratalog compact --in-place`."""
    settings = resolve(
        {"internal.segment.bytes": str(SEGMENT_BYTES)}, {"cleanup.policy": ("compact",)}
    )
    return compact(
        [str(root)],
        CompactionOptions(Mode.IN_PLACE, settings, engine="spark"),
        engine if callable(engine) else lambda: engine,
        filesystem,
        FixedClock(NOW_MS),
        lambda _: None,
    )
