"""The compacted copy of topics in ledger mode at another location: each run upon the one before.

Directory to directory by threads and by Spark's engine, and a worker for each partition where a
bucket is involved: the same segments, byte for byte, as those of a ledger beside the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.admin.location_manifest import MANIFEST, decode
from stratalog.base.clock import FixedClock
from stratalog.pipeline import remote_ledger
from stratalog.pipeline.remote import compact_to
from stratalog.pipeline.remote_target import Location
from stratalog.pipeline.table import LogTable
from stratalog.record.builder import NewRecord
from stratalog.record.kernel.compile import JIT
from tests.log.helpers import NOW, open_log
from tests.pipeline.ledger_copies import (
    BOOK,
    SEGMENT_BYTES,
    WORDS,
    beside,
    by_threads,
    files_of,
    grow,
    manifest_in,
    one_log,
    segments,
)
from tests.pipeline.object_server import ObjectServer, object_server, stand_in_session
from tests.pipeline.test_objects import rows
from tests.sim.sweeps import IS_SWEEP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.requirement("LDG-1", "SPK-9"),
    pytest.mark.usefixtures("hasty_disk"),
]
Count = Callable[[str, int], None]


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectServer]:
    with object_server() as server:
        yield server


@pytest.mark.parametrize("seed", range(12 if IS_SWEEP else 2))
def test_whoever_makes_a_copy_makes_the_same(
    s3: ObjectServer, tmp_path: Path, seed: int, count_cases: Count
) -> None:
    random, spark = Random(seed), stand_in_session(seed)
    log_dir, threads, engine, fetched = (tmp_path / name for name in ("data", "a", "b", "c"))
    bucket = f"same-{seed}"
    whole, upward = s3.uri(bucket, "whole"), s3.uri(bucket, "upward")
    runs = 0
    for turn in range(4):
        grow(log_dir, random, turn)
        now_ms = NOW + turn * 1000
        clock = FixedClock(now_ms)
        source = s3.put(log_dir, bucket, f"source-{turn}")
        before = files_of(log_dir)
        told = [
            by_threads(log_dir, threads, now_ms),
            compact_to(spark, [str(log_dir)], str(engine), book=BOOK, clock=clock),
            compact_to(spark, [source], whole, book=BOOK, store=s3.store, clock=clock),
            compact_to(spark, [str(log_dir)], upward, book=BOOK, store=s3.store, clock=clock),
            compact_to(spark, [source], str(fetched), book=BOOK, store=s3.store, clock=clock),
        ]
        assert files_of(log_dir) == before
        expected = beside(log_dir, now_ms)
        made = [
            segments(files_of(threads)),
            segments(files_of(engine)),
            segments(s3.contents(bucket, "whole")),
            segments(s3.contents(bucket, "upward")),
            segments(files_of(fetched)),
        ]
        for found in made:
            assert found.keys() == expected.keys()
            assert found == expected
        assert len({tuple(map(summary, report.partitions)) for report in told}) == 1
        for path in (whole, str(threads)):
            assert rows(path, s3, isolation="read_committed") == rows(str(engine), s3)
        runs += len(told)
    count_cases("runs at locations that left what a ledger beside the log is", runs)


def summary(report: Any) -> tuple[Any, ...]:
    ledger = dict(report.ledger)
    for name in ("engine", "duration_ms", "number"):
        del ledger[name]
    facts = (report.partition, report.log_start_offset, report.log_end_offset, report.first_dirty)
    size = (report.log_segments_before, report.log_bytes_before, report.skipped)
    return (*facts, *size, report.counts, tuple(sorted(ledger.items())))


@pytest.mark.parametrize("seed", range(12 if IS_SWEEP else 4))
def test_step_by_step_is_as_from_scratch(tmp_path: Path, seed: int, count_cases: Count) -> None:
    """Record for record, but for tombstones and markers, which go in their time."""
    random = Random(100 + seed)
    log_dir, out = tmp_path / "data", tmp_path / "out"
    for turn in range(5):
        grow(log_dir, random, turn)
        by_threads(log_dir, out, NOW + turn * 1000)
        by_threads(log_dir, tmp_path / f"anew-{turn}", NOW + turn * 1000)
        assert with_values(out) == with_values(tmp_path / f"anew-{turn}")
    count_cases("copies made step by step and from scratch", 5)


def with_values(out: Path) -> list[tuple[Any, ...]]:
    manifest = decode((out / MANIFEST).read_bytes(), MANIFEST)
    found = []
    for entry in manifest.partitions:
        with open_log(out / manifest.directory / entry.partition, read_only=True) as log:
            found += [
                (entry.partition, record.offset, record.key, record.value)
                for record in log.read_records(log.log_start_offset)
                if record.value is not None
            ]
    return found


@pytest.mark.skipif(not JIT, reason="Spark's workers would run plain Python kernels")
def test_a_session_makes_the_same(s3: ObjectServer, spark: SparkSession, tmp_path: Path) -> None:
    log_dir, random = tmp_path / "data", Random(5)
    target = s3.uri("session", "target")
    for turn in range(2):
        grow(log_dir, random, turn)
        source = s3.put(log_dir, "session", f"source-{turn}")
        clock = FixedClock(NOW + turn)
        compact_to(spark, [str(log_dir)], str(tmp_path / "out"), book=BOOK, clock=clock)
        compact_to(spark, [source], target, book=BOOK, store=s3.store, clock=clock)
        expected = beside(log_dir, NOW + turn)
        assert segments(files_of(tmp_path / "out")) == expected
        assert segments(s3.contents("session", "target")) == expected
    view = spark.read.format("stratalog").options(**s3.options, view="latest")
    assert sorted(view.load(target).collect()) == sorted(view.load(str(tmp_path / "out")).collect())


# ---------------------------------------------------------------- what is read


def test_only_what_is_new_is_fetched_and_the_store_copies_the_rest(
    s3: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark, target = stand_in_session(), s3.uri("fetch", "target")
    log_dir = one_log(tmp_path, keys=1000)
    compact_to(spark, [s3.put(log_dir, "fetch", "1")], target, book=BOOK, store=s3.store)
    with open_log(log_dir / "orders-0", segment_bytes=SEGMENT_BYTES) as log:
        log.append_records([NewRecord(b"k199", b"new", NOW)])
    source = s3.put(log_dir, "fetch", "2")
    fetched: list[str] = []
    copied: list[str] = []
    monkeypatch.setattr(
        remote_ledger,
        "_fetch",
        seeing(remote_ledger._fetch, lambda pairs: fetched.extend(path for path, _ in pairs)),
    )
    monkeypatch.setattr(
        Location,
        "copy",
        seeing(Location.copy, lambda _, pairs: copied.extend(path for path, _ in pairs)),
    )
    compact_to(spark, [source], target, book=BOOK, store=s3.store)
    raw = {path for path in fetched if path.startswith(source) and path.endswith(".log")}
    assert len(raw) == 1, "the segment that holds the horizon, and none before"
    assert len(list((log_dir / "orders-0").glob("*.log"))) > 5
    assert {path for path in copied if path.endswith(".log")}
    assert all(path.startswith(target) for path in copied)


def seeing(real: Callable[..., Any], look: Callable[..., None]) -> Callable[..., Any]:
    def seen(*arguments: Any) -> Any:
        look(*arguments[: look.__code__.co_argcount])
        return real(*arguments)

    return seen


def test_nothing_new_is_no_generation(
    s3: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is not even fetched."""
    spark, target = stand_in_session(), s3.uri("idle", "target")
    log_dir = one_log(tmp_path)
    source = s3.put(log_dir, "idle", "source")
    compact_to(spark, [source], target, book=BOOK, store=s3.store)
    before = s3.contents("idle", "target")
    monkeypatch.setattr(remote_ledger, "_fetch_base", None)
    report = compact_to(spark, [source], target, book=BOOK, store=s3.store)
    assert s3.contents("idle", "target") == before
    assert report.generation is None
    assert report.partitions[0].skipped == "its ledger reaches offset 200: nothing is new"


def test_partitions_without_anything_new_stay_in_the_copy(s3: ObjectServer, tmp_path: Path) -> None:
    spark, target = stand_in_session(), s3.uri("some", "target")
    log_dir = one_log(tmp_path)
    for name in ("orders-1", "orders-2"):
        with open_log(log_dir / name) as log:
            log.append_records([NewRecord(b"a", b"1", NOW)])
    compact_to(spark, [s3.put(log_dir, "some", "1")], target, book=BOOK, store=s3.store)
    with open_log(log_dir / "orders-1") as log:
        log.append_records([NewRecord(b"b", b"2", NOW)])
    source = s3.put(log_dir, "some", "2")
    paths = [f"{source}/orders-0", f"{source}/orders-1"]
    report = compact_to(spark, paths, target, book=BOOK, store=s3.store)
    assert [item.skipped is None for item in report.partitions] == [False, True]
    found = {(row["partition"], row["key"]) for row in rows(target, s3)}
    assert len(found) == 30 + 2 + 1
    names = [entry.partition for entry in manifest_in(s3, "some", "target").partitions]
    assert names == ["orders-0", "orders-1", "orders-2"]


def test_topics_of_both_modes_go_into_one_bucket(s3: ObjectServer, tmp_path: Path) -> None:
    spark, target = stand_in_session(), s3.uri("both", "target")
    log_dir = one_log(tmp_path)
    with open_log(log_dir / "users-0") as log:
        for _ in range(2):
            log.append_records([NewRecord(b"a", b"1", NOW), NewRecord(b"b", b"2", NOW)])
    source = s3.put(log_dir, "both", "source")
    for turn in (1, 2):
        compact_to(spark, [source], target, book=BOOK, store=s3.store)
        manifest = manifest_in(s3, "both", "target")
        assert manifest.generation == turn
        assert [entry.ledger is not None for entry in manifest.partitions] == [True, False]
        assert len(rows(target, s3)) == 30 + 2


@pytest.mark.skipif(not JIT, reason="Spark's workers would run plain Python kernels")
def test_a_table_goes_on_with_a_copy(spark: SparkSession, tmp_path: Path) -> None:
    log_dir, out = one_log(tmp_path), tmp_path / "out"
    table = LogTable.forPath(spark, str(log_dir), config=WORDS, now_ms=NOW)
    for count, result in ((0, "compacted"), (0, "skipped"), (200, "compacted")):
        if count:
            one_log(tmp_path, at=count)
        [row] = table.optimize().executeCompaction(out=str(out)).collect()
        assert row.result == result
    assert decode((out / MANIFEST).read_bytes(), MANIFEST).generation == 2
    assert segments(files_of(out)) == beside(log_dir, NOW)
