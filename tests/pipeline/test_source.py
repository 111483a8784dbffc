"""The batch source on a real session: all of Kafka's directories in a few jobs, and what users see.

Rules that need no session are tried in `test_source_rules.py`, on the same classes without Spark.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from stratalog.pipeline import register
from stratalog.pipeline.given_options import OPTIONS
from stratalog.record.kernel.compile import JIT
from tests.oracle import Round, fold, rounds
from tests.pipeline.source_rows import Row, naive_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.requirement("SPK-4"),
    pytest.mark.skipif(not JIT, reason="Spark's workers would run plain Python kernels"),
]
Count = Callable[[str, int], None]


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    """A log directory with the partitions of every round, before and after, under new names."""
    root = tmp_path_factory.mktemp("linked")
    partitions: dict[str, Path] = {}
    starts = []
    for number, kafka in enumerate(rounds()):
        for topic, original in (
            (f"r{number}before", kafka.before),
            (f"r{number}after", kafka.after),
        ):
            name = f"{topic}-0"
            os.symlink(original, root / name)
            partitions[name] = original
            moved = original.parent / "log-start-offset-checkpoint"
            starts += [
                f"{topic} 0 {line.split()[2]}\n"
                for line in (moved.read_text().splitlines()[2:] if moved.exists() else [])
                if line.rsplit(" ", 1)[0].strip() == original.name.replace("-", " ")
            ]
    checkpoint = root / "log-start-offset-checkpoint"
    checkpoint.write_text(f"0\n{len(starts)}\n{''.join(starts)}")
    return root, partitions


def collected(frame: DataFrame) -> dict[str, list[Row]]:
    """The rows by partition, in the order of their offsets; timestamps in microseconds."""
    if "timestamp" in frame.columns:
        frame = frame.selectExpr(
            *(
                f"unix_micros({name}) {name}" if name == "timestamp" else name
                for name in frame.columns
            )
        )
    found: dict[str, list[Row]] = {}
    for row in frame.toArrow().to_pylist():
        found.setdefault(f"{row['topic']}-{row['partition']}", []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: row["offset"])
    return found


def round_of(name: str) -> Round:
    return rounds()[
        int(name[1 : name.index("before") if "before" in name else name.index("after")])
    ]


def test_rows_of_every_kafka_directory_are_the_naive_ones(
    spark: SparkSession, linked: tuple[Path, dict[str, Path]], count_cases: Count
) -> None:
    root, partitions = linked
    source = spark.read.format("stratalog").options(includeHeaders=True, includeMetadata=True)
    found = collected(source.option("includeControl", "true").load(str(root)))
    codecs = 0
    for name, original in partitions.items():
        expected = naive_rows(original, control=True, name=name)
        assert found.pop(name, []) == expected, name
        codecs |= sum(1 << row["timestampType"] + 1 for row in expected[:1])
    assert found == {}
    count_cases("directories of Kafka's read by Spark", len(partitions))


@pytest.mark.requirement("CMP-18")
def test_latest_values_are_the_fold_and_no_cleaning_changes_them(
    spark: SparkSession, linked: tuple[Path, dict[str, Path]], count_cases: Count
) -> None:
    root, partitions = linked
    frame = spark.read.format("stratalog").option("view", "latest").load(str(root))
    states: dict[str, dict[bytes, bytes]] = {}
    found = collected(frame)
    for name, original in partitions.items():
        rows = found.pop(name, [])
        states[name] = {row["key"]: row["value"] for row in rows}
        assert len(states[name]) == len(rows), name
        assert states[name] == fold(original), name
    assert found == {}
    for name in partitions:
        if "before" in name and round_of(name).cleaned:
            assert states[name] == states[name.replace("before", "after")], name
    count_cases("latest views of Kafka's directories by Spark", len(partitions))


def test_committed_rows_are_those_a_consumer_sees(
    spark: SparkSession, linked: tuple[Path, dict[str, Path]]
) -> None:
    root, partitions = linked
    source = spark.read.format("stratalog").option("kafka.isolation.level", "read_committed")
    found = collected(
        source.options(includeHeaders=True, subscribePattern="r\\d+before").load(str(root))
    )
    hidden = 0
    for name, original in partitions.items():
        if "after" in name:
            continue
        stable = round_of(name).last_stable_offset
        expected = naive_rows(original, committed_to=stable, name=name)
        shown = [{column: row[column] for column in list(row)[:8]} for row in expected]
        assert found.pop(name, []) == shown, name
        hidden += len(expected) < len(naive_rows(original, name=name))
    assert found == {}
    assert hidden > 10


def test_schema_is_that_of_sparks_kafka_source(spark: SparkSession, golden: Path) -> None:
    source = spark.read.format("stratalog").option("includeHeaders", "true")
    assert source.load(str(golden)).schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert all(field.nullable for field in source.load(str(golden)).schema)
    narrow = spark.read.format("stratalog").option("columns", "offset, KEY").load(str(golden))
    assert narrow.columns == ["offset", "key"]
    expected = [(row["offset"], row["key"]) for row in naive_rows(golden)]
    assert [(row.offset, bytes(row.key)) for row in narrow.collect()] == expected
    given = spark.read.format("stratalog").schema("value binary, offset bigint").load(str(golden))
    assert [row.offset for row in given.collect()] == [offset for offset, _ in expected]


@pytest.fixture(scope="module")
def golden() -> Path:
    """A partition without anything special but compression."""
    return next(kafka.before for kafka in rounds() if kafka.cleaned)


def test_queries_of_users(spark: SparkSession, golden: Path) -> None:
    """SQL with a path, an aggregate, a filter, several paths, registering again."""
    register(spark)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING stratalog OPTIONS (path '{golden}')")
    expected = naive_rows(golden)
    assert spark.sql("SELECT count(*) FROM orders").first()[0] == len(expected)
    (first,) = spark.sql("SELECT min(offset) FROM orders WHERE offset > 3").collect()
    assert first[0] == next(row["offset"] for row in expected if row["offset"] > 3)
    frame = spark.read.format("stratalog").load([str(golden), str(golden)])
    assert frame.count() == len(expected), "a directory named twice is read once"
    assert frame.agg({"timestamp": "max"}).first()[0].timestamp() * 1e6 == pytest.approx(
        max(row["timestamp"] for row in expected)
    )


def test_filters_are_pushed_down_where_spark_does_that(spark: SparkSession, golden: Path) -> None:
    """The same rows; and the plan no longer filters what the source has answered for."""
    frame = spark.read.format("stratalog").load(str(golden))
    wanted = frame.where("topic = 'golden' AND offset >= 5 AND offset < 12 AND key IS NOT NULL")
    expected = [
        row["offset"]
        for row in naive_rows(golden)
        if 5 <= row["offset"] < 12 and row["key"] is not None
    ]
    assert expected
    assert [row.offset for row in wanted.collect()] == expected
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("stratalog").load(str(golden))
        wanted = frame.where("topic = 'golden' AND offset >= 5 AND offset < 12 AND key IS NOT NULL")
        assert [row.offset for row in wanted.collect()] == expected
        plan = wanted._jdf.queryExecution().executedPlan().toString()
        (filtering,) = [line for line in plan.splitlines() if "Filter isnotnull" in line]
        assert "key" in filtering, plan
        assert "topic" not in filtering, plan
        assert "offset" not in filtering, plan
        assert frame.where("topic = 'other'").count() == 0
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def refusal(read: Callable[[], Any]) -> str:
    """The last line of what Spark says, which is ours."""
    with pytest.raises(PySparkException) as caught:
        read()
    lines = [line for line in str(caught.value).splitlines() if line.startswith("stratalog.")]
    assert len(lines) == 1, str(caught.value)
    return lines[0].partition(": ")[2]


def test_what_is_refused_says_so_in_one_line(spark: SparkSession, golden: Path) -> None:
    source = spark.read.format("stratalog")
    assert refusal(lambda: source.option("startingOfsets", "earliest").load(str(golden))) == (
        "unknown option 'startingofsets': did you mean 'startingOffsets'?"
    )
    missing = spark.read.format("stratalog").load(str(golden / "nothing"))
    assert refusal(missing.count) == f"{golden / 'nothing'}: no such directory"
    wrong = spark.read.format("stratalog").schema("key string").load(str(golden))
    assert refusal(wrong.count) == "column 'key' is binary, the schema asks for string"
    assert len(OPTIONS) == len(set(OPTIONS))


@pytest.mark.requirement("CMP-16")
def test_damage_names_file_and_position(spark: SparkSession, golden: Path, tmp_path: Path) -> None:
    partition = tmp_path / golden.name
    shutil.copytree(golden, partition)
    log = min(partition.glob("*.log"))
    content = bytearray(log.read_bytes())
    content[70] ^= 1
    log.write_bytes(content)
    frame = spark.read.format("stratalog").load(str(tmp_path))
    assert refusal(frame.count) == f"{log}: position 0: CRC-32C does not match"
    pardoned = spark.read.format("stratalog").option("failOnDataLoss", "false").load(str(tmp_path))
    left = pardoned.count()
    assert 0 < left < len(naive_rows(golden))
