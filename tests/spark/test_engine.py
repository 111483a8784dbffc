"""The Spark engine on a real session: Kafka's rounds, random logs, killed workers, damage."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.base.clock import FixedClock
from stratalog.base.errors import CorruptionError
from stratalog.clean.engine import Progress
from stratalog.clean.job import CleanedPartition, CleaningJob
from stratalog.clean.local_engine import LocalEngine
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.spark import engine as engine_module
from stratalog.spark import tasks
from stratalog.spark.engine import SparkEngine
from tests.clean.driving import (
    FS,
    Case,
    case_of,
    clean_case,
    contents,
    place,
    range_and_job,
    run,
    segment_files,
)
from tests.clean.test_properties import features_of, random_case, seeds
from tests.clean.test_versions import features_of as versions_of
from tests.oracle import Round, compare_partitions, index_problems, rounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("hasty_disk")
CLEANED = [kafka for kafka in rounds() if kafka.cleaned]


@dataclass(frozen=True)
class Done:
    """A case cleaned on Spark, and an untouched copy of what it was."""

    case: Case
    before: Case
    changes: dict[str, Any]
    cleaned: CleanedPartition


@pytest.fixture(scope="module")
def done(
    spark: SparkSession, hasty_disk: None, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Done]:
    """Every round of Kafka's and some random logs, by name: all partitions of one Spark job."""
    root = tmp_path_factory.mktemp("spark")
    prepared: list[tuple[Case, Case, dict[str, Any], CleaningJob]] = []

    def prepare(case: Case, changes: dict[str, Any]) -> None:
        _, job = range_and_job(case, **changes)
        if job is not None:
            before = case.copied(root / f"{len(prepared)}-before")
            prepared.append((case, before, changes, job))

    for number, kafka in enumerate(CLEANED):
        prepare(case_of(kafka, root / f"kafka-{number}"), {})
    for seed in seeds(30):
        case = random_case(1000 + seed, root / f"random-{seed}", features_of(seed))
        prepare(case, {"max_keys": None} if seed % 3 else {})
    for seed in seeds(6):
        prepare(random_case(2000 + seed, root / f"versions-{seed}", versions_of(seed)), {})
    real = tasks.rewrite_task

    def rewrite_task(*arguments: Any, **options: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:  # the workers need not wait for the disk either
            patch.setattr(os, "fsync", lambda _descriptor: None)
            return real(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        ship(patch, rewrite_task=rewrite_task)
        made = run(SparkEngine(spark), [job for *_, job in prepared])
    found = {}
    for (case, before, changes, _), cleaned in zip(prepared, made, strict=True):
        place(case, cleaned)
        found[case.name] = Done(case, before, changes, cleaned)
    return found


@pytest.mark.requirement(
    *("SPK-1", "CMP-1", "CMP-2", "CMP-4", "CMP-5", "CMP-8", "CMP-10", "CMP-11", "CMP-13"),
    *("CMP-14", "CMP-15"),
)
@pytest.mark.parametrize("kafka", CLEANED, ids=lambda r: r.name)
def test_spark_makes_what_kafka_made(
    kafka: Round, done: dict[str, Done], count_cases: Callable[[str, int], None]
) -> None:
    one = done[kafka.name]
    assert compare_partitions(kafka.after, one.case.partition, kafka.before) == []
    assert index_problems(one.case.partition) == []
    assert one.cleaned.end_offset == kafka.end_offset
    assert one.cleaned.volume.records_after == kafka.stats["messages_written"]
    count_cases("rounds of Kafka's cleaner repeated on Spark", 1)


@pytest.mark.requirement("SPK-2", "CMP-7", "CMP-17")
def test_spark_makes_the_local_engines_bytes(
    done: dict[str, Done], count_cases: Callable[[str, int], None]
) -> None:
    assert len(done) > len(CLEANED)
    for name, one in done.items():
        cleaned = clean_case(LocalEngine(FS, threads=2), one.before, **one.changes)
        assert cleaned is not None
        assert segment_files(one.before.partition) == segment_files(one.case.partition), name
        assert cleaned.end_offset == one.cleaned.end_offset, name
        assert cleaned.volume == one.cleaned.volume, name
        assert cleaned.keys == one.cleaned.keys, name
    count_cases("logs with equal bytes from Spark and the local engine", len(done))


def test_a_dry_run_on_spark_counts_the_same_and_writes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    cases = plain_cases(tmp_path)
    jobs = jobs_of(cases)
    before = contents(tmp_path)
    seen: list[Progress] = []
    dry = SparkEngine(spark).clean(jobs, writes=False, on_progress=seen.append)
    assert contents(tmp_path) == before
    local = run(LocalEngine(FS), jobs, writes=False)
    assert [one.volume for one in dry] == [one.volume for one in local]
    total_bytes = sum(segment.size_bytes for job in jobs for segment in job.segments)
    assert {progress.phase for progress in seen} == {"index", "rewrite"}
    assert {progress.total_bytes for progress in seen} == {total_bytes}
    assert all(0 <= progress.done_bytes <= total_bytes for progress in seen)
    assert seen[-1] == Progress("rewrite", total_bytes, total_bytes)


# ---------------------------------------------------------------- giving up


class Enough(BaseException):
    """Not even an Exception, as Ctrl-C is none."""


@pytest.mark.requirement("CLN-4")
def test_whoever_watches_may_end_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that would run for minutes are cancelled, and what was raised is raised here."""
    real, may_run, waited = tasks.rewrite_task, str(tmp_path / "run"), str(tmp_path / "waited")

    def rewrite_task(*arguments: Any, **options: Any) -> Any:
        if not os.path.exists(may_run):
            time.sleep(300)
            os.close(os.open(waited, os.O_CREAT))
        return real(*arguments, **options)

    ship(monkeypatch, rewrite_task=rewrite_task)
    cases = plain_cases(tmp_path / "logs")
    jobs = jobs_of(cases)
    before = contents(tmp_path / "logs")
    told: list[Progress] = []

    def stop(progress: Progress) -> None:
        told.extend([progress] if progress.phase == "rewrite" else [])
        if len(told) == 3:
            raise Enough

    engine = SparkEngine(spark)
    with pytest.raises(Enough):
        engine.clean(jobs, writes=True, on_progress=stop)
    assert not os.path.exists(waited), "the tasks were waited for"
    assert len(told) == 3, "told again after it had raised"
    assert contents(tmp_path / "logs") == before
    # The same session and engine are fit for the next job.
    Path(may_run).touch()
    assert_as_local(cases, run(engine, jobs), tmp_path)


def test_nothing_to_do_is_no_job(spark: SparkSession) -> None:
    assert run(SparkEngine(spark), []) == []


# ---------------------------------------------------------------- workers that die


def plain_cases(directory: Path) -> list[Case]:
    """Logs of a few segments: without a codec, with one, with transactions."""
    names = ("plain-none/after", "plain-lz4/after", "transactions-none/1")
    chosen = [kafka for kafka in CLEANED if kafka.name.startswith(names)]
    assert len(chosen) == len(names)
    return [case_of(kafka, directory / f"{n}") for n, kafka in enumerate(chosen)]


def jobs_of(cases: list[Case]) -> list[CleaningJob]:
    jobs = [range_and_job(case, max_keys=None)[1] for case in cases]
    return [job for job in jobs if job is not None]


def ship(monkeypatch: pytest.MonkeyPatch, **functions: Callable[..., Any]) -> None:
    """Send these functions to the workers in place of those of `stratalog.spark.tasks`.

    Functions that are defined inside others travel by value, so workers need not see the tests.
    """
    shipped = SimpleNamespace(**{**vars(tasks), "__name__": "shipped"})
    for name in [name for name in vars(shipped) if name.startswith("__")]:
        delattr(shipped, name)
    vars(shipped).update(functions)
    monkeypatch.setattr(engine_module, "tasks", shipped)


def once(flag: Path) -> Callable[[], bool]:
    """True for the first caller of all processes."""
    path = str(flag)

    def is_first() -> bool:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    return is_first


def assert_as_local(cases: list[Case], made: list[CleanedPartition], directory: Path) -> None:
    """What Spark made is what the local engine makes of the same directories."""
    for number, (case, cleaned) in enumerate(zip(cases, made, strict=True)):
        named = {name for group in cleaned.groups for _, name in group.parts}
        assert all((case.partition / name).is_file() for name in named)
        other = case.copied(directory / f"local-{number}")
        for stray in other.partition.glob("*.part"):
            stray.unlink()
        place(case, cleaned)
        clean_case(LocalEngine(FS), other, max_keys=None)
        assert segment_files(case.partition) == segment_files(other.partition), case.name


@pytest.mark.requirement("SPK-1")
def test_a_worker_that_dies_while_indexing_is_replaced(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_first, real = once(tmp_path / "flag"), tasks.index_task

    def index_task(task: Any, job: Any, buckets: int) -> Iterator[Any]:
        rows = real(task, job, buckets)
        yield next(rows)
        if is_first():
            os.kill(os.getpid(), signal.SIGKILL)
        yield from rows

    ship(monkeypatch, index_task=index_task)
    cases = plain_cases(tmp_path / "logs")
    made = run(SparkEngine(spark), jobs_of(cases))
    assert (tmp_path / "flag").exists()
    assert_as_local(cases, made, tmp_path)


@pytest.mark.requirement("SPK-1")
@pytest.mark.parametrize("when", ["half-way", "at the end"])
def test_files_of_a_worker_that_died_while_rewriting_are_never_used(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    is_first, real = once(tmp_path / "flag"), tasks.rewrite_task
    half_way = when == "half-way"

    def rewrite_task(*arguments: Any, **options: Any) -> Any:
        if not is_first():
            return real(*arguments, **options)

        def die(*_: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        if half_way:
            # This process is about to end: what is changed in it ends with it.
            tasks.GroupRewriter._finish_files = die  # type: ignore[method-assign]
        real(*arguments, **options)
        die()
        return None

    ship(monkeypatch, rewrite_task=rewrite_task)
    cases = plain_cases(tmp_path / "logs")
    made = run(SparkEngine(spark), jobs_of(cases))

    written = {path.name for case in cases for path in case.partition.glob("*.part")}
    named = {name for one in made for group in one.groups for _, name in group.parts}
    strays = written - named
    assert named <= written
    assert len(strays) == 1 if half_way else len(strays) >= 3
    assert_as_local(cases, made, tmp_path)
    for case in cases:
        open_log(case)
        assert list(case.partition.glob("*.part")) == []


def open_log(case: Case) -> None:
    settings = LogSettings(producer_expiration_ms=case.producer_expiration_ms)
    clock = FixedClock(case.inputs.now_ms)
    PartitionLog.open(str(case.partition), settings, FS, clock).close()


# ---------------------------------------------------------------- damage


@pytest.mark.requirement("CMP-16", "SPK-1")
def test_damage_found_while_indexing_names_the_place(spark: SparkSession, tmp_path: Path) -> None:
    cases = plain_cases(tmp_path)
    jobs = jobs_of(cases)
    damaged = sorted(cases[1].partition.glob("*.log"))[1]
    data = bytearray(damaged.read_bytes())
    data[-3] ^= 0x10
    damaged.write_bytes(data)
    before = contents(tmp_path)
    with pytest.raises(CorruptionError, match="CRC-32C does not match") as caught:
        run(SparkEngine(spark), jobs)
    assert caught.value.file == str(damaged)
    assert caught.value.position is not None
    assert contents(tmp_path) == before


@pytest.mark.requirement("CMP-16", "SPK-1")
def test_damage_found_while_rewriting_names_the_place(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that change between the two passes, as a failing disk may have it."""
    real = tasks.rewrite_task

    def rewrite_task(task: Any, job: Any, blocks: Iterable[Any], **options: Any) -> Any:
        path = os.path.join(job.directory, f"{task.group[-1].base_offset:020d}.log")
        if "plain-none" in job.name:
            os.truncate(path, 1000)
        return real(task, job, blocks, **options)

    ship(monkeypatch, rewrite_task=rewrite_task)
    cases = plain_cases(tmp_path)
    with pytest.raises(CorruptionError, match="early") as caught:
        run(SparkEngine(spark), jobs_of(cases))
    assert Path(caught.value.file or "").parent == cases[names(cases).index("plain-none")].partition


def names(cases: list[Case]) -> list[str]:
    return [case.name.partition("/")[0] for case in cases]
