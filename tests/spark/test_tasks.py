"""The Spark engine's plan on a stand-in for Spark: many jobs, every order, repeated tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from stratalog.clean.local_engine import LocalEngine
from stratalog.spark import tasks
from stratalog.spark.engine import SparkEngine
from tests.clean.driving import FS, Case, case_of, place, range_and_job, run, segment_files
from tests.clean.test_properties import features_of, random_case, seeds
from tests.oracle import rounds
from tests.spark.stand_in import StandInContext, StandInSession, StandInTaskContext

pytest.importorskip("pyspark")
pytestmark = pytest.mark.usefixtures("hasty_disk")


def stand_in(seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[SparkEngine, StandInContext]:
    context = StandInContext(seed, parallelism=Random(seed).choice([1, 2, 5]))
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


@pytest.mark.requirement("SPK-2")
def test_blocks_and_maps_of_any_size_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task's map that fills again and again, blocks of few rows, one segment a task."""
    monkeypatch.setattr(tasks, "TASK_MAP_BYTES", 16 << 10)
    monkeypatch.setattr(tasks, "ROWS_PER_BLOCK", 7)
    engine, _ = stand_in(1, monkeypatch)
    cases = [case_of(kafka, tmp_path / f"{number}") for number, kafka in enumerate(_large())]
    changes = [{"max_keys": None, "chunk_bytes": 1 << 10}] * len(cases)
    assert assert_engines_agree(engine, cases, changes) == len(cases)


def _large() -> list:
    named = ("plain-none", "plain-lz4", "tombstones-none/5", "transactions-none", "map-full/3")
    return [kafka for kafka in rounds() if kafka.name.startswith(named)]
