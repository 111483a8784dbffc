"""Snapshots on a real session, opened by the readers that people have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from stratalog.pipeline.snapshot import snapshot, snapshot_frame
from stratalog.record.builder import NewRecord
from stratalog.record.kernel.compile import JIT
from tests.admin.helpers import NOW_MS
from tests.log.helpers import open_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.requirement("SPK-7"),
    pytest.mark.skipif(not JIT, reason="Spark's workers would run plain Python kernels"),
]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("snapshots") / "logs"
    for name in ("orders-0", "_orders-1"):
        with open_log(root / name) as log:
            for first in range(0, 40, 10):
                log.append_records(
                    [
                        NewRecord(b"k%d" % (n % 15), b"v%d" % n, NOW_MS + n)
                        for n in range(first, first + 10)
                    ]
                )
    return root


EXPECTED = {
    (topic, b"k%d" % (n % 15), b"v%d" % n) for topic in ("orders", "_orders") for n in range(25, 40)
}


def test_readers_of_parquet_see_one_whole_snapshot(
    spark: SparkSession, logs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for _ in range(2):  # the second leaves one before
        report = snapshot(spark, logs, out)
    assert report.path == str(out / "current")
    current = f"{out}/current"
    by_arrow = pq.read_table(current).select(["topic", "key", "value"]).to_pylist()
    assert {tuple(row.values()) for row in by_arrow} == EXPECTED
    assert len(by_arrow) == len(EXPECTED)
    by_spark = spark.read.parquet(current)
    assert {(row.topic, bytes(row.key), bytes(row.value)) for row in by_spark.collect()} == EXPECTED
    assert by_spark.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )
    # Whoever points at OUT itself, or at all below it, finds the current rows once, or nothing.
    assert ds.dataset(out, format="parquet").count_rows() == len(EXPECTED)
    below = spark.read.option("recursiveFileLookup", "true").parquet(str(out))
    assert below.count() == len(EXPECTED)
    duckdb = pytest.importorskip("duckdb")
    for pattern in ("current/*.parquet", "*/*.parquet"):
        found = duckdb.sql(f"select topic, key, value from '{out}/{pattern}'").fetchall()
        assert sorted(found) == sorted(EXPECTED), pattern
    with pytest.raises(duckdb.Error):
        duckdb.sql(f"select * from '{out}/*.parquet'")


def test_a_delta_table(spark: SparkSession, logs: Path, tmp_path: Path) -> None:
    lake = pytest.importorskip("deltalake")
    out = tmp_path / "out"
    snapshot(spark, logs, out, to="delta", as_of=30)
    report = snapshot(spark, logs, out, to="delta", incremental=True)
    assert (report.path, report.rows) == (str(out), len(EXPECTED))
    assert {item.kind for item in report.partitions} == {"incremental"}

    def rows(version: int | None = None) -> set[tuple[str, bytes, bytes]]:
        table = lake.DeltaTable(str(out), version=version).to_pyarrow_table()
        assert len(set(table.column("key").to_pylist())) * 2 == table.num_rows
        named = table.select(["topic", "key", "value"]).to_pylist()
        return {tuple(row.values()) for row in named}

    assert rows() == EXPECTED
    assert {value for _, _, value in rows(0)} == {b"v%d" % n for n in range(15, 30)}
    assert lake.DeltaTable(str(out)).vacuum(retention_hours=0, enforce_retention_duration=False)
    assert rows() == EXPECTED, "vacuum took files that are needed"


def test_a_frame_as_of_a_time(spark: SparkSession, logs: Path) -> None:
    frame = snapshot_frame(spark, logs, as_of=f"@{NOW_MS + 12}", subscribe="orders")
    found = {(row.offset, bytes(row.key)) for row in frame.select("offset", "key").collect()}
    assert found == {(n, b"k%d" % n) for n in range(12)}
