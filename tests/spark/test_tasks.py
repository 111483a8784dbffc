"""The Spark engine's plan on a stand-in for Spark: many jobs, every order, repeated tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stratalog.base.errors import CorruptionError
from stratalog.clean.engine import Progress
from stratalog.clean.local_engine import LocalEngine
from stratalog.segment import digest
from stratalog.segment.log_file import LogFile
from stratalog.spark import cutting, sending, tasks
from stratalog.spark.engine import SparkEngine
from tests.clean.driving import (
    FS,
    NOW_MS,
    Case,
    case_of,
    place,
    range_and_job,
    run,
    segment_files,
    surviving,
    write_case,
)
from tests.clean.test_properties import features_of, random_case, seeds
from tests.clean.test_versions import BY_TIME, events
from tests.clean.test_versions import features_of as versions_of
from tests.naive.random_batches import HOUR_MS
from tests.oracle import rounds
from tests.spark.stand_in import StandInContext, StandInSession, StandInTaskContext

pytest.importorskip("pyspark")
pytestmark = pytest.mark.usefixtures("hasty_disk")


def stand_in(seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[SparkEngine, StandInContext]:
    """An engine on it, of some number of cores, with buckets for all jobs or many for each."""
    random = Random(seed)
    context = StandInContext(seed, parallelism=random.choice([1, 2, 5]))
    monkeypatch.setattr(cutting, "BUCKET_BYTES", random.choice([256 << 20, 1 << 12]))
    monkeypatch.setattr(sending, "WAITING_ROWS", random.choice([1 << 20, 30]))
    monkeypatch.setattr(tasks, "TaskContext", StandInTaskContext(context))
    return SparkEngine(StandInSession(context), FS), context  # type: ignore[arg-type]


def assert_engines_agree(spark: SparkEngine, cases: list[Case], changes: list[dict]) -> int:
    """Clean all cases in one job, and on the local engine; the number that had work to do."""
    jobs, locals_ = [], []
    for case, change in zip(cases, changes, strict=True):
        _, job = range_and_job(case, **change)
        if job is not None:
            copy = case.copied(case.partition.parent.with_name(f"{case.partition.parent.name}-l"))
            _, same = range_and_job(copy, **change)
            assert same is not None
            jobs.append((case, job))
            locals_.append((copy, same))
    made = run(spark, [job for _, job in jobs])
    expected = run(LocalEngine(FS, threads=1), [job for _, job in locals_])
    for (case, job), (copy, _), one, other in zip(jobs, locals_, made, expected, strict=True):
        assert one.job is job
        assert one.end_offset == other.end_offset, case.name
        assert one.volume == other.volume, case.name
        assert [(g.sources, g.unchanged, g.modified_ms) for g in one.groups] == [
            (g.sources, g.unchanged, g.modified_ms) for g in other.groups
        ], case.name
        assert one.keys == other.keys, case.name
        place(case, one)
        place(copy, other)
        assert segment_files(case.partition) == segment_files(copy.partition), case.name
    return len(jobs)


@pytest.mark.requirement("SPK-1", "SPK-2", "CMP-5", "CMP-7")
@pytest.mark.parametrize("limited", [True, False], ids=["limit of keys", "any number of keys"])
def test_plan_gives_the_local_engines_bytes(
    limited: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count_cases: Callable[[str, int], None],
) -> None:
    done = repeated = 0
    for start in range(0, len(seeds(60)), 5):
        engine, context = stand_in(start, monkeypatch)
        cases = [
            random_case(seed, tmp_path / f"{seed}", features_of(seed))
            for seed in range(start, start + 5)
        ]
        changes = [{"chunk_bytes": 2048} if limited else {"max_keys": None}] * 5
        done += assert_engines_agree(engine, cases, changes)
        repeated += context.repeated
    assert done > len(seeds(60)) // 2
    assert repeated > 0
    count_cases("random logs, Spark's plan = local engine, on a stand-in", done)


@pytest.mark.requirement("SPK-2", "CMP-17")
def test_orders_of_versions_give_the_local_engines_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count_cases: Callable[[str, int], None]
) -> None:
    """Side by side with logs by offset in one job; also in blocks of few rows and small maps."""
    done = 0
    for start in range(0, len(seeds(12)), 6):
        if start:
            monkeypatch.setattr(sending, "TASK_MAP_BYTES", 16 << 10)
            monkeypatch.setattr(sending, "ROWS_PER_BLOCK", 7)
        engine, _ = stand_in(start, monkeypatch)
        cases = [
            random_case(
                seed, tmp_path / f"{seed}", (versions_of if seed % 3 else features_of)(seed)
            )
            for seed in range(start, start + 6)
        ]
        done += assert_engines_agree(engine, cases, [{"chunk_bytes": 2048}] * len(cases))
    assert done > len(seeds(12)) // 3
    count_cases("random logs by timestamp or header, Spark's plan = local engine", done)


@pytest.mark.requirement("SPK-2", "CMP-18")
def test_what_lies_past_the_end_holds_tombstones_on_spark_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of all buckets, in several groups, by a segment too young and the active one; blocks of
    few rows."""
    monkeypatch.setattr(sending, "ROWS_PER_BLOCK", 3)
    monkeypatch.setattr(sending, "WAITING_ROWS", 7)
    keys = [b"%d" % number for number in range(40)]
    segments = {
        base: [
            events(base + n, (key, None, 9), horizon_ms=NOW_MS - 1)
            for n, key in enumerate(keys[base : base + 10])
        ]
        for base in (0, 10, 20, 30)
    }
    segments[40] = [events(40, *((key, b"late", 8) for key in keys[::2]), (b"x", b"young", 23))]
    segments[70] = [events(70, *((key, b"late", 8) for key in keys[::5]))]
    settings = {**BY_TIME, "segment.bytes": "1600", "min.compaction.lag.ms": f"{5 * HOUR_MS}"}
    for seed in range(4):
        engine, _ = stand_in(seed, monkeypatch)
        case = write_case(tmp_path / f"{seed}", segments, settings)
        assert assert_engines_agree(engine, [case], [{}]) == 1
        left = [offset for offset in surviving(case.partition) if offset < 40]
        assert left == [offset for offset in range(40) if offset % 2 == 0 or offset % 5 == 0]


@pytest.mark.requirement("SPK-1", "RCV-7")
def test_tasks_hold_what_they_read_against_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte of a header that no checksum covers; the driver does not look."""
    monkeypatch.setattr(cutting, "LEAST_SHARE_BYTES", 400)
    found = 0
    for seed in seeds(8):
        case = random_case(seed, tmp_path / f"{seed}", features_of(seed))
        _, job = range_and_job(case, max_keys=None)
        if job is None or not any(source.size_bytes for source in job.segments):
            continue
        source = max(job.segments, key=lambda one: one.size_bytes)
        path = case.partition / f"{source.base_offset:020d}.log"
        content = bytearray(path.read_bytes())
        if content[16] != 2:
            continue  # of the old formats, other bytes are covered
        log = LogFile.open(FS, str(path))
        directory = str(case.partition)
        made = digest.build_digest(FS, directory, source.base_offset, log, log.size_bytes())
        digest.store_digest(FS, directory, source.base_offset, made)
        log.close()
        content[14] ^= 1  # the leader epoch
        with open(path, "r+b") as file:
            file.write(content)
        engine, _ = stand_in(seed, monkeypatch)
        with pytest.raises(CorruptionError, match="the batch headers from here on") as raised:
            run(engine, [job])
        assert raised.value.file == str(path)
        found += 1
    assert found > 2


@pytest.mark.requirement("CLN-4")
@pytest.mark.parametrize("late", [False, True], ids=["while it works", "when it is done"])
def test_a_watcher_that_raises_ends_the_action_and_is_heard(
    late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raised on the polling thread; Spark answers a cancelled job group with an error of its own,
    or with results, if the last task was done before it heard of it."""
    engine, context = stand_in(1, monkeypatch)
    monkeypatch.setattr("stratalog.spark.describing._POLL_SECONDS", 0.001)
    case = random_case(0, tmp_path / "log", features_of(0))
    _, job = range_and_job(case, max_keys=None)
    assert job is not None
    cancelled, real = threading.Event(), context.runJob
    monkeypatch.setattr(context, "cancelJobGroup", lambda _group: cancelled.set())

    def run_job(*arguments: Any) -> list[Any]:
        assert cancelled.wait(60), "the job group was not cancelled"
        if not late:
            raise RuntimeError("job cancelled as part of its group")
        return real(*arguments)

    monkeypatch.setattr(context, "runJob", run_job)
    told: list[Progress] = []

    def stop(progress: Progress) -> None:
        told.append(progress)
        if len(told) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.clean([job], writes=True, on_progress=stop)
    assert len(told) == 2


@pytest.mark.requirement("SPK-2")
def test_blocks_and_maps_of_any_size_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task's map that fills again and again, blocks of few rows, one segment a task."""
    monkeypatch.setattr(sending, "TASK_MAP_BYTES", 16 << 10)
    monkeypatch.setattr(sending, "ROWS_PER_BLOCK", 7)
    engine, _ = stand_in(1, monkeypatch)
    cases = [case_of(kafka, tmp_path / f"{number}") for number, kafka in enumerate(_large())]
    changes = [{"max_keys": None, "chunk_bytes": 1 << 10}] * len(cases)
    assert assert_engines_agree(engine, cases, changes) == len(cases)


def _large() -> list:
    named = ("plain-none", "plain-lz4", "tombstones-none/5", "transactions-none", "map-full/3")
    return [kafka for kafka in rounds() if kafka.name.startswith(named)]
