"""The sinks on a real session: what is written comes back, once, whatever fails in between."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter
from pyspark.sql.types import StructType

from stratalog.admin.partitioner import partition_of_key
from stratalog.base.errors import StorageFullError
from stratalog.log.partition_log import PartitionLog
from stratalog.pipeline import register, sink
from stratalog.record.kernel.compile import JIT
from tests.cli.helpers import Shell
from tests.pipeline.source_rows import naive_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.requirement("SPK-6"),
    pytest.mark.skipif(not JIT, reason="Spark's workers would run plain Python kernels"),
]

SCHEMA = (
    "topic string, partition int, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>, timestamp timestamp, other int"
)


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def written(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """By the naive twin: key, value, headers and time of each record of each partition."""
    return {
        partition.name: [
            (row["key"], row["value"], row["headers"], row["timestamp"] // 1000)
            for row in naive_rows(partition, start=0)
        ]
        for partition in sorted(path.iterdir())
        if partition.is_dir()
    }


def staged(path: Path) -> list[str]:
    return [one.name for one in path.iterdir() if one.suffix == ".staged"]


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    register(spark)
    spark.dataSource.register(Breaking)
    return spark


def test_rows_come_back(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the naive twin, the source and the command line."""
    now = 1_700_000_000_000
    rows = [
        (
            *("orders" if i % 3 else "users", i % 2 if i % 5 == 0 else None),
            *(None if i % 7 == 0 else b"k%d" % (i % 11), None if i % 13 == 0 else b"v%d" % i),
            [("h", b"\x00\xff"), ("", None)] if i % 4 == 0 else None,
            *(at(now + i), i),
        )
        for i in range(400)
    ]
    frame = session.createDataFrame(rows, SCHEMA).repartition(3).sortWithinPartitions("other")
    frame = frame.cache()
    writer = frame.write.format("stratalog").mode("append").option("num.partitions", "2")
    writer.option("compression.type", "zstd").save(str(tmp_path))

    found = written(tmp_path)
    assert sorted(found) == ["orders-0", "orders-1", "users-0", "users-1"]
    assert not staged(tmp_path)
    by_time = {row[5]: row for row in rows}
    total = 0
    for name, records in found.items():
        topic, partition = name.rsplit("-", 1)
        for key, value, headers, time in records:
            row = by_time.pop(at(time))
            total += 1
            assert (topic, key, value) == (row[0], row[2], row[3])
            given = [{"key": k, "value": v} for k, v in row[4] or []]
            assert (headers or []) == given
            if row[1] is not None:
                assert int(partition) == row[1]
            elif key is not None:
                assert int(partition) == partition_of_key(key, 2)
    assert total == len(rows)

    read = session.read.format("stratalog").option("includeHeaders", "true").load(str(tmp_path))
    columns = ["topic", "key", "value", "timestamp", "headers"]
    assert sorted(map(repr, read.select(columns).collect())) == sorted(
        map(repr, frame.select(columns).collect())
    )
    shell = Shell(capsys)
    dumped = shell("log", "dump", tmp_path / "users-0", "--records", "--format", "json").json
    records = [row for row in dumped["rows"] if row["type"] == "record"]
    assert [(row["key"], row["value"], row["timestamp"]) for row in records] == [
        (key and key.decode(), value and value.decode(), time)
        for key, value, _, time in found["users-0"]
    ]
    assert {row["codec"] for row in dumped["rows"] if row["type"] == "batch"} == {"zstd"}
    assert shell("log", "verify", tmp_path).code == 0


def test_rows_of_a_task_keep_their_order(session: SparkSession, tmp_path: Path) -> None:
    frame = session.range(0, 5000, 1, 2).selectExpr("cast(id as string) value", "0 partition")
    frame.write.format("stratalog").mode("append").option("topic", "t").save(str(tmp_path))
    values = [int(record[1]) for record in written(tmp_path)["t-0"]]
    assert values == list(range(5000))


def test_a_batch_of_an_application_is_written_once(session: SparkSession, tmp_path: Path) -> None:
    def write(app: str | None, version: int, value: str) -> None:
        frame = session.createDataFrame([(value,)], "value string")
        writer = frame.write.format("stratalog").mode("append").option("topic", "t")
        if app is not None:
            writer = writer.option("txnAppId", app).option("txnVersion", version)
        writer.save(str(tmp_path))

    write("a", 4, "a4")
    write("a", 4, "again")
    write("a", 3, "older")
    write("b", 4, "b4")
    write(None, 0, "plain")
    write(None, 0, "plain")
    write("a", 5, "a5")
    values = [record[1] for record in written(tmp_path)["t-0"]]
    assert values == [b"a4", b"b4", b"plain", b"plain", b"a5"]
    assert sorted(one.suffix for one in tmp_path.glob("stratalog-sink-*")) == [".state", ".state"]


def test_nothing_is_appended_of_a_batch_with_a_bad_row(
    session: SparkSession, tmp_path: Path
) -> None:
    frame = session.range(0, 1000, 1, 2).selectExpr(
        "cast(id as string) value", "if(id = 777, 5, 0) partition"
    )
    with pytest.raises(PySparkException, match="topic t has no partition 5: they are 0 to 0"):
        frame.write.format("stratalog").mode("append").option("topic", "t").save(str(tmp_path))
    assert written(tmp_path) == {}
    assert not staged(tmp_path)


def test_what_is_refused_before_any_task(session: SparkSession, tmp_path: Path) -> None:
    frame = session.createDataFrame([("v",)], "value string")
    with pytest.raises(PySparkException, match="a log is only appended to"):
        frame.write.format("stratalog").mode("overwrite").option("topic", "t").save(str(tmp_path))
    with pytest.raises(PySparkException, match="there is no column 'topic'; or give option topic"):
        frame.write.format("stratalog").mode("append").save(str(tmp_path))


# -- streams --------------------------------------------------------------------------------------


class BreakingSink(sink.StreamSink):
    """A sink whose process fails once, after it has appended something of batch 1."""

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        mark = Path(self._options.log_dir, "broken.once")
        if batchId != 1 or mark.exists():
            super().commit(messages, batchId)
            return
        mark.touch()
        append, calls = PartitionLog.append, []

        def failing(log: PartitionLog, data: Any, leader_epoch: int = 0) -> Any:
            calls.append(data)
            if len(calls) == 3:
                raise StorageFullError("the disk is full")
            return append(log, data, leader_epoch)

        PartitionLog.append = failing  # type: ignore[method-assign]
        try:
            super().commit(messages, batchId)
        finally:
            PartitionLog.append = append  # type: ignore[method-assign]


class Breaking(DataSource):
    @classmethod
    def name(cls) -> str:
        return "breaking"

    def schema(self) -> StructType:
        return StructType()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        writer = sink.stream_writer(self.options, schema, overwrite)
        return BreakingSink(writer._options, writer._plan)


@pytest.fixture
def numbers(session: SparkSession, tmp_path: Path) -> DataFrame:
    """A stream of files of numbers, one file a batch."""
    source = tmp_path / "source"
    for number in range(3):
        frame = session.range(number * 100, number * 100 + 100, 1, 1).selectExpr(
            "cast(id as string) value"
        )
        frame.coalesce(1).write.mode("append").text(str(source))
    return (
        session.readStream.format("text")
        .option("maxFilesPerTrigger", "1")
        .load(str(source))
        .repartition(2)
        .selectExpr("value", "cast(value as int) % 3 partition")
    )


def run(frame: DataFrame, kind: str, log_dir: Path, checkpoint: Path) -> None:
    query = (
        frame.writeStream.format(kind)
        .option("checkpointLocation", str(checkpoint))
        .option("topic", "numbers")
        .option("num.partitions", "3")
        .trigger(availableNow=True)
        .start(str(log_dir))
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()


def test_a_stream_that_breaks_inside_a_commit(numbers: DataFrame, tmp_path: Path) -> None:
    """It says what is decided, aborts without losing that, and goes on where it was."""
    log_dir, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    with pytest.raises(PySparkException, match=r"batch 1 of query [-0-9a-f]+ is decided"):
        run(numbers, "breaking", log_dir, checkpoint)
    half = sum(len(records) for records in written(log_dir).values())
    assert 100 < half < 200
    assert len(staged(log_dir)) == 2
    run(numbers, "breaking", log_dir, checkpoint)
    found = written(log_dir)
    values = sorted(int(record[1]) for records in found.values() for record in records)
    assert values == list(range(300))
    assert not staged(log_dir)

    # A new checkpoint is a new query: its first batch is no repetition.
    run(numbers, "stratalog", log_dir, tmp_path / "other")
    assert sum(len(records) for records in written(log_dir).values()) == 600
