"""Snapshots and `latest_frame` of logs with a ledger hold what `view=latest` does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import stratalog
from stratalog.base.errors import UsageError
from stratalog.config.book import SettingsBook
from stratalog.pipeline.latest_frame import latest_frame
from stratalog.pipeline.remote import compact_to
from stratalog.record.kernel.compile import JIT
from stratalog.segment.names import TopicPartition
from tests.admin.helpers import tree
from tests.pipeline.test_snapshot import here, take, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")
__all__ = ["here"]

CONFIG = {"cleanup.policy": "delete", "compaction.mode": "ledger", "internal.segment.bytes": 200}


BOOK = SettingsBook(topics={"t": {"cleanup.policy": "delete", "compaction.mode": "ledger"}})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two ledgers, and a raw log that has lost what only they have now."""
    with stratalog.open(tmp_path / "data", background=False) as store:
        topic = store.create_topic("t", config=CONFIG)
        for number in range(30):
            topic.append(f"k{number % 7}", f"v{number}")
        topic.compact()
        for number in range(30, 33):
            topic.append(f"k{number % 7}", f"v{number}")
        topic.compact()
        topic.append("k0", None)
        topic.append("new", "1")
        store.desk.service.store.delete_records(TopicPartition("t", 0), 31)
        store.desk.service.store.run_retention()
        assert next(iter(topic.read())).offset == 31
    return tmp_path / "data"


def newest(count: int) -> dict[bytes, bytes]:
    return {b"k%d" % (n % 7): b"v%d" % n for n in range(count)}


@pytest.mark.requirement("LDG-7", "SPK-7")
def test_a_snapshot_has_what_only_a_ledger_has(here: Any, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    expected = newest(33)
    del expected[b"k0"]
    expected[b"new"] = b"1"
    assert take(here, data, out).rows == 7
    assert values(out / "current", "t-0") == expected
    report = take(here, data, out, incremental=True)
    assert [item.reason for item in report.partitions] == ["it has a ledger"]
    assert values(out / "current", "t-0") == expected
    for end, rows in ((33, newest(33)), (30, newest(30))):
        take(here, data, out, as_of=end)
        assert values(out / "current", "t-0") == rows
    with pytest.raises(UsageError, match="as of offset 5"):
        take(here, data, out, as_of=5)
    assert values(out / "current", "t-0") == newest(30)


@pytest.mark.skipif(not JIT, reason="Spark's workers would run plain Python kernels")
@pytest.mark.requirement("LDG-7", "SPK-4")
def test_a_frame_of_the_newest_has_what_the_source_gives(spark: SparkSession, data: Path) -> None:
    for options in ({}, {"asOf": "ledger:1"}, {"asOf": 33}, {"tombstones": "keep"}):
        frame = latest_frame(spark, str(data), shuffleBytes=0, **options)
        reader = spark.read.format("stratalog").option("view", "latest")
        found = reader.options(**options).load(str(data))
        assert sorted(frame.collect()) == sorted(found.collect())
        assert frame.count() >= 7


@pytest.mark.skipif(not JIT, reason="Spark's workers would run plain Python kernels")
@pytest.mark.requirement("LDG-1", "SPK-9")
def test_the_compacted_copy_at_another_location(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    """The raw log stays at the source; each run is a generation, and its manifest comes last."""
    source, target = tmp_path / "source", tmp_path / "target"
    with stratalog.open(source, background=False) as store:
        topic = store.create_topic("t", config=CONFIG)
        topic.append_many([(f"k{number % 7}", f"v{number}") for number in range(33)])
    before = tree(source)
    compact_to(spark, [str(source)], str(target), book=BOOK)
    assert tree(source) == before
    frame = spark.read.format("stratalog").load(str(target))
    assert {row.key: row.value for row in frame.collect()} == newest(33)
    assert frame.count() == 7
    # What only the ledger beside the log has is in the copy, too.
    compact_to(spark, [str(data)], str(tmp_path / "other"), book=BOOK)
    latest = spark.read.format("stratalog").option("view", "latest")
    assert sorted(latest.load(str(tmp_path / "other")).collect()) == sorted(
        latest.load(str(data)).collect()
    )
    with pytest.raises(UsageError, match="its ledger holds records from 0 on"):
        compact_to(spark, [str(data)], str(tmp_path / "plain"))
