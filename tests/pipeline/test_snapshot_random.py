"""Snapshots built upon snapshots, of logs that are appended to, cleaned and shortened in between.

Every partition is a case with a history of its own; all of them go through a snapshot together.
Most cases run on a stand-in for Spark's context that does the tasks here, one after another; some
on a session, where partitions are shared by a shuffle, too.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog.admin.deleting import UpTo, delete_records, plan_deletion
from stratalog.admin.report import Mode
from stratalog.base.clock import FixedClock
from stratalog.config.settings import resolve
from stratalog.pipeline import snapshot as snapshot_module
from stratalog.pipeline import snapshot_plan
from stratalog.pipeline.options import Choice
from stratalog.pipeline.places import find_places, opened_view
from stratalog.pipeline.snapshot import SnapshotReport, snapshot, snapshot_frame
from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.codec import Codec
from stratalog.record.control import ControlType
from stratalog.record.kernel.compile import JIT
from tests.admin.helpers import DISK, HOUR_MS, NOW_MS, run
from tests.log.helpers import open_log
from tests.naive.logs import Features, write_random_log
from tests.pipeline.source_rows import Row, naive_latest
from tests.pipeline.test_source import collected
from tests.sim.sweeps import IS_SWEEP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.requirement("SPK-7", "LDG-7"),
    pytest.mark.usefixtures("hasty_disk"),
]
Count = Callable[[str, int], None]
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


class Subject:
    """One partition, and what happens to it. Its log directory is its own."""

    def __init__(self, seed: int, root: Path):
        self.random = Random(seed)
        directory = root / f"dir{seed}"
        directory.mkdir(parents=True)
        features = Features(
            batches=30, keys=12, huge_gaps=False, log_start=False, checkpoints=False
        )
        log = write_random_log(seed, directory, features, topic=f"t{seed}")
        self.partition = log.partition
        # Or nothing would say that a log is the same one, all of whose segments were cleaned.
        self.partition.joinpath("partition.metadata").write_text(f"version: 0\ntopic_id: {seed}\n")
        self.now_ms = NOW_MS + 1000 * HOUR_MS
        self.producer = 1000
        self.done: list[str] = []

    def evolve(self, happened: Counter[str]) -> None:
        """Some of what may happen to a log between two snapshots."""
        for _ in range(self.random.randint(0, 4)):
            step = self.random.choice([self._append, self._append, self._clean, self._shorten])
            self.now_ms += self.random.choice([1, HOUR_MS])
            step()
            happened[step.__name__] += 1
            self.done.append(step.__name__)

    def _append(self) -> None:
        random = self.random
        with open_log(
            self.partition, FixedClock(self.now_ms), log_start_offset=self._start()
        ) as log:
            for _ in range(random.randint(1, 4)):
                records = [
                    NewRecord(
                        b"key-%d" % random.randrange(12),
                        None if random.random() < 0.35 else b"%d" % random.randrange(99),
                        self.now_ms,
                    )
                    for _ in range(random.randint(1, 5))
                ]
                if random.random() < 0.3:
                    self.producer += 1
                    log.append(
                        build_batch(
                            records,
                            producer_id=self.producer,
                            producer_epoch=0,
                            base_sequence=0,
                            transactional=True,
                        )
                    )
                    kind = random.choice([ControlType.COMMIT, ControlType.ABORT])
                    log.append_marker(kind, producer_id=self.producer, producer_epoch=0)
                else:
                    log.append_records(records, codec=random.choice([Codec.NONE, Codec.ZSTD]))
                if random.random() < 0.4:
                    log.roll()

    def _clean(self) -> None:
        """Twice, a long time apart: a tombstone that came since the last snapshot may be gone."""
        for _ in range(self.random.randint(1, 2)):
            self.now_ms += HOUR_MS
            given = {"delete.retention.ms": "0", "min.cleanable.dirty.ratio": "0"}
            run([self.partition], Mode.IN_PLACE, given=given, now_ms=self.now_ms)

    def _shorten(self) -> None:
        with opened_view(self.place) as view:
            start, end = view.log_start_offset, view.last_stable_offset
        offset = self.random.choice([end, self.random.randint(start, end), start])
        settings = resolve({"cleanup.policy": "delete"})
        wanted = {self.place.topic_partition: UpTo(offset)}
        clock = FixedClock(self.now_ms)
        planned = plan_deletion(str(self.partition.parent), wanted, settings, DISK, clock)
        done = delete_records(planned, settings, DISK, clock, lambda _: None, lambda: None)
        assert all(item.error is None for item in done), done

    def _start(self) -> int:
        with opened_view(self.place) as view:
            return view.log_start_offset

    @property
    def place(self) -> Any:
        (found,) = find_places([str(self.partition)], Choice())
        return found

    def rows(self) -> list[Row]:
        """The rows that a snapshot must hold."""
        with opened_view(self.place) as view:
            start, stable = view.log_start_offset, view.last_stable_offset
        return [
            {name: row[name] for name in COLUMNS}
            for row in naive_latest(self.partition, committed_to=stable, start=start)
        ]


def rows_of(directory: Path) -> dict[str, list[Row]]:
    """A snapshot's rows as pyarrow reads them, by partition and offset; times in microseconds."""
    found: dict[str, list[Row]] = {}
    if not list(directory.glob("*.parquet")):
        return found
    whole = pq.read_table(directory)
    place = whole.schema.names.index("timestamp")
    whole = whole.set_column(place, "timestamp", whole.column(place).cast(pa.int64()))
    for row in whole.to_pylist():
        found.setdefault(f"{row['topic']}-{row['partition']}", []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: row["offset"])
    return found


class HereRows:
    """What `parallelize` answers, as far as snapshots use it; values cross as pickles, as there."""

    def __init__(self, rows: Iterable[Any]):
        self._rows = list(rows)

    def mapPartitions(self, work: Callable[[Iterable[Any]], Iterable[Any]]) -> HereRows:  # noqa: N802
        return HereRows(found for row in self._rows for found in work([row]))

    def mapValues(self, work: Callable[[Any], Any]) -> HereRows:  # noqa: N802
        return HereRows((key, work(value)) for key, value in self._rows)

    def collect(self) -> list[Any]:
        return self._rows


class Here:
    """A session that runs every task in this process."""

    defaultParallelism = 2  # noqa: N815

    @property
    def sparkContext(self) -> Here:  # noqa: N802
        return self

    @property
    def conf(self) -> dict[str, str]:
        return {"spark.sql.session.timeZone": "UTC"}

    def parallelize(self, rows: Iterable[Any], _slices: int) -> HereRows:
        return HereRows(pickle.loads(pickle.dumps(list(rows))))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(snapshot_module, "watched", lambda *_: nullcontext())
    return Here()


@pytest.mark.sweep
def test_a_snapshot_built_upon_another_is_a_whole_one(
    here: Any, tmp_path: Path, count_cases: Count
) -> None:
    happened: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for first in range(100, 2100 if IS_SWEEP else 140, 20):
        subjects = [Subject(first + seed, tmp_path) for seed in range(20)]
        _take_snapshots(here, subjects, tmp_path / f"out{first}", 5, happened, kinds, {})
    assert kinds["incremental"] > kinds["whole"]
    assert kinds["unchanged"]
    assert min(happened.values()) > 10
    count_cases("partitions in snapshots built upon others", kinds["incremental"])


@pytest.mark.skipif(not JIT, reason="Spark's workers would run plain Python kernels")
def test_the_same_of_partitions_that_are_shared(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count_cases: Count
) -> None:
    """By buckets of keys, and read by a shuffle; those that are not large as before."""
    monkeypatch.setattr(snapshot_plan, "BUCKET_BYTES", 5000)
    options = {"shuffleBytes": 1000, "maxPartitionBytes": 2000}
    subjects = [Subject(500 + seed, tmp_path) for seed in range(4)]
    happened: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    report = _take_snapshots(spark, subjects, tmp_path / "out", 3, happened, kinds, options)
    assert any(item.files > 1 for item in report.partitions), "no partition has buckets"
    paths = [subject.partition.parent for subject in subjects]
    frame = collected(snapshot_frame(spark, paths, includeHeaders=True, **options))
    expected = {subject.partition.name: subject.rows() for subject in subjects}
    assert frame == {name: rows for name, rows in expected.items() if rows}
    count_cases("partitions in snapshots by buckets", sum(kinds.values()))


def _take_snapshots(
    spark: Any,
    subjects: list[Subject],
    out: Path,
    rounds: int,
    happened: Counter[str],
    kinds: Counter[str],
    options: dict[str, Any],
) -> SnapshotReport:
    """One after another, each built upon the one before, each with the rows of a whole one."""
    paths = [subject.partition.parent for subject in subjects]
    for number in range(rounds):
        for subject in subjects:
            if number:
                subject.evolve(happened)
        report = snapshot(spark, paths, out, incremental=number > 0, includeHeaders=True, **options)
        found = rows_of(out / "current")
        by_name = {item.name: item for item in report.partitions}
        for subject in subjects:
            told = by_name[subject.partition.name]
            expected = subject.rows()
            rows = found.pop(subject.partition.name, [])
            assert rows == expected, (number, subject.partition, subject.done, told)
            assert (told.rows, told.kind == "whole") == (len(expected), number == 0)
            kinds[told.kind] += 1
            subject.done.append("snapshot")
        assert found == {}
        assert report.note is None
    return report
