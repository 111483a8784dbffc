"""Jobs as SQL table functions: their arguments and rows without Spark, then by SQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    IntegerType,
    MapType,
    NullType,
    StringType,
    StructType,
)
from pyspark.sql.udtf import AnalyzeArgument

from stratalog.admin.report import Mode
from stratalog.admin.retention import run_retention
from stratalog.base.clock import FixedClock
from stratalog.base.errors import LogLockedError, UsageError
from stratalog.config.settings import resolve
from stratalog.log.locking import locked
from stratalog.pipeline import job_columns, register
from stratalog.pipeline.functions import FUNCTIONS, Compact, Detail, History, Vacuum
from stratalog.record.kernel.compile import JIT
from tests.admin.helpers import DISK, HOUR_MS, NOW_MS, copy_of, records, run, write_log
from tests.pipeline.test_table_batches import bytes_of, damage, logs, within

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.requirement("SPK-8"),
    pytest.mark.usefixtures("hasty_disk"),
]


def rows(schema: StructType, given: Iterator[tuple[Any, ...]]) -> dict[str, dict[str, Any]]:
    found = {}
    for row in given:
        named = dict(zip(schema.names, row, strict=True))
        found[f"{named['topic']}-{named['partition']}"] = named
    return found


def compacted(root: Path, **arguments: Any) -> dict[str, dict[str, Any]]:
    given = Compact().eval(str(root), now_ms=NOW_MS, **arguments)
    return rows(job_columns.COMPACTION, given)


# ---------------------------------------------------------------- what they do


def test_compact_says_by_default_and_does_the_commands_work_when_told(tmp_path: Path) -> None:
    root = logs(tmp_path / "logs", [2, 5, 3])
    local = copy_of(root, tmp_path / "local")
    before = bytes_of(root)
    dry = compacted(root)
    assert bytes_of(root) == before
    assert {row["result"] for row in dry.values()} == {"would_compact"}
    named = compacted(root, top=1)["orders-1"]
    assert named == {**dry["orders-1"], "top_keys": named["top_keys"]}
    # Of 5 x abc and ab, the newest of a and b are in the last segment, that of c is not.
    [key] = named["top_keys"]
    assert key["key"] in "ab"
    assert key["records"] == 5
    assert [part["records_removed"]["superseded"] for part in named["segments"]] == [14, 0]
    done = compacted(root, dry_run=False, threads=2)
    run([local], Mode.IN_PLACE)
    assert bytes_of(root) == bytes_of(local)
    for name, row in done.items():
        assert row == {**dry[name], "result": "compacted"}


def test_a_second_evaluation_does_no_harm(tmp_path: Path) -> None:
    root = logs(tmp_path, [2, 5])
    compacted(root, dry_run=False)
    before = bytes_of(root)
    again = compacted(root, dry_run=False)
    assert bytes_of(root) == before
    assert {row["result"] for row in again.values()} == {"skipped"}
    assert all("was cleaned before" in row["reason"] for row in again.values())


def test_all_work_is_done_before_the_first_row(tmp_path: Path) -> None:
    """A LIMIT takes one row and asks for no more."""
    root, whole = logs(tmp_path / "logs", [2, 5]), logs(tmp_path / "whole", [2, 5])
    next(Compact().eval(str(root), dry_run=False, now_ms=NOW_MS))
    run([whole], Mode.IN_PLACE)
    assert bytes_of(root) == bytes_of(whole)


@pytest.mark.parametrize("partial", [False, True])
def test_damage_is_answered_in_rows(partial: bool, tmp_path: Path) -> None:
    """Raised, it would have Spark look for it three times more."""
    root, whole = logs(tmp_path / "logs", [2, 5, 3]), logs(tmp_path / "whole", [2, 5, 3])
    damage(root / "orders-1")
    before = bytes_of(root)
    found = compacted(root, dry_run=False, partial_progress=partial)
    run([whole], Mode.IN_PLACE)
    assert {name: row["result"] for name, row in found.items()} == {
        **dict.fromkeys(("orders-0", "orders-2"), "compacted" if partial else "skipped"),
        "orders-1": "failed",
    }
    assert str(root / "orders-1") in found["orders-1"]["error"]
    if not partial:
        assert found["orders-0"]["reason"] == "nothing was put in place, as orders-1 failed"
    done = bytes_of(whole) if partial else before
    for name, expected in {"orders-0": done, "orders-1": before, "orders-2": done}.items():
        assert within(bytes_of(root), name) == within(expected, name)


def test_vacuum_history_and_detail(tmp_path: Path) -> None:
    root = logs(tmp_path, [2])
    old = records("abc", at_ms=NOW_MS - 100 * HOUR_MS)
    write_log(root / "events-0", [[old], [records("de")]], policy=("delete",))
    path = str(root)

    def vacuumed(**arguments: Any) -> dict[str, dict[str, Any]]:
        return rows(job_columns.VACUUM, Vacuum().eval(path, now_ms=NOW_MS, **arguments))

    assert {row["result"] for row in vacuumed().values()} == {"nothing"}
    assert vacuumed(retention_hours=99)["events-0"]["result"] == "would_delete"
    done = vacuumed(retention_hours=99, dry_run=False, topics=["events"])
    assert list(done) == ["events-0"]
    assert done["events-0"]["result"] == "deleted"
    compacted(root, dry_run=False, topics=["orders"])
    found = rows(job_columns.HISTORY, History().eval(path))
    assert {name: row["engine"] for name, row in found.items()} == {"orders-0": "local"}
    found = rows(job_columns.DETAIL, Detail().eval(path, counts=True, now_ms=NOW_MS))
    assert found["events-0"]["log_start_offset"] == 3
    assert found["orders-0"]["counts"]["records"] == 3
    found = rows(
        job_columns.DETAIL, Detail().eval(path, config={"cleanup.policy": "delete"}, now_ms=NOW_MS)
    )
    assert found["orders-0"]["cleanup_policy"] == ["delete"]


def test_each_topic_goes_by_its_own_settings_and_a_broken_log_is_told(tmp_path: Path) -> None:
    root, settings = tmp_path / "logs", tmp_path / "topics"
    days = [[records("ab", at_ms=NOW_MS - age * 24 * HOUR_MS)] for age in (3, 2, 1, 0)]
    for name in ("day-0", "ever-0", "keys-0", "two-0", "two-1"):
        write_log(root / name, days, policy=("delete",))
    settings.write_text(
        "[topic day]\ncleanup.policy=delete\nretention.ms=90000000\n"
        "[topic two]\nretention.ms=180000000\n[topic ever]\nretention.ms=-1\n"
        "[topic keys]\ncleanup.policy=compact\n"
    )
    # A torn end is no damage, but a marker says that the log was closed in order.
    run_retention([str(root)], resolve({"retention.ms": "-1"}), DISK, FixedClock(NOW_MS), print)
    broken = sorted((root / "two-1").glob("*.log"))[-1]
    broken.write_bytes(broken.read_bytes()[:-1])
    given = Vacuum().eval(
        str(root), dry_run=False, topic_config=str(settings), now_ms=NOW_MS + HOUR_MS // 2
    )
    found = rows(job_columns.VACUUM, given)
    assert {name: row["result"] for name, row in found.items()} == {
        "day-0": "deleted",
        "ever-0": "nothing",
        "keys-0": "nothing",
        "two-0": "deleted",
        "two-1": "failed",
    }
    assert [found[name]["new_log_start_offset"] for name in ("day-0", "two-0")] == [4, 2]
    assert found["keys-0"]["reason"] == "its cleanup.policy does not contain delete"
    assert (found["two-1"]["failed_count"], found["two-1"]["deleted_bytes_count"]) == (1, 0)
    assert "quarantined" in found["two-1"]["error"]
    left = {
        name: [int(path.stem) for path in sorted((root / name).glob("*.log"))] for name in found
    }
    assert left == {
        **{key: [0, 2, 4, 6] for key in ("ever-0", "keys-0", "two-1")},
        "day-0": [4, 6],
        "two-0": [2, 4, 6],
    }


def test_refusals_of_what_cannot_be_known_while_planning(tmp_path: Path) -> None:
    root = logs(tmp_path, [2])
    with pytest.raises(UsageError, match="no such directory"):
        compacted(root / "nix")
    with pytest.raises(UsageError, match="topics chooses no partition; there are orders-0"):
        compacted(root, topics=["order"])
    with pytest.raises(UsageError, match="threads"):
        compacted(root, threads=0)
    with pytest.raises(UsageError, match="top is -1"):
        compacted(root, top=-1)
    with locked([str(root)], DISK, exclusive=True), pytest.raises(LogLockedError):
        compacted(root)


# ---------------------------------------------------------------- arguments


def told(kind: DataType, value: Any = None, *, constant: bool = True) -> AnalyzeArgument:
    return AnalyzeArgument(kind, value, False, constant)


PATH = told(StringType(), "/logs/nix")


@pytest.mark.parametrize(
    ("function", "given", "match"),
    [
        (Compact, {"dry_run": told(StringType(), "no")}, "dry_run must be a BOOLEAN, not string"),
        (Compact, {"path": told(IntegerType(), 1)}, "path must be a STRING"),
        (Compact, {"path": told(NullType())}, "path must be a STRING, not void"),
        (Compact, {"topics": told(StringType(), "a")}, "topics must be an ARRAY of STRING"),
        (
            Compact,
            {"topics": told(ArrayType(IntegerType()), [1])},
            "topics must be an ARRAY of STRING, not array<int>",
        ),
        (Vacuum, {"now_ms": told(IntegerType(), -1)}, "now_ms is -1; it must be ms since 1970"),
        (Vacuum, {"retention_hours": told(IntegerType(), -1)}, "at least 0"),
        (Vacuum, {"retention_hours": told(StringType(), "1")}, "retention_hours must be a number"),
        (
            Vacuum,
            {"config": told(MapType(StringType(), StringType()), {"retention.mss": "1"})},
            "retention.ms",
        ),
        (History, {"limit": told(StringType(), "1")}, "limit must be a whole number"),
        (Detail, {"counts": told(IntegerType(), 1)}, "counts must be a BOOLEAN"),
    ],
)
def test_arguments_are_refused_while_planning(
    function: Any, given: dict[str, AnalyzeArgument], match: str
) -> None:
    with pytest.raises(UsageError, match=match) as refusal:
        function.analyze(**{"path": PATH, **given})
    assert "\n" not in str(refusal.value)


def test_planning_looks_at_no_directory_and_takes_what_is_not_known_yet() -> None:
    for function in FUNCTIONS.values():
        assert function.analyze(path=PATH).schema.names[-1] == "error"
    flag, texts = told(BooleanType(), False), told(ArrayType(StringType()), ["orders"])
    column = told(StringType(), constant=False)
    found = Compact.analyze(path=column, dry_run=flag, topics=texts, config=told(NullType()))
    assert found.schema == job_columns.COMPACTION


# ---------------------------------------------------------------- by SQL


@pytest.mark.skipif(not JIT, reason="Spark's workers would run plain Python kernels")
def test_the_functions_by_sql(spark: SparkSession, tmp_path: Path) -> None:
    root, whole = logs(tmp_path / "logs", [2, 5]), logs(tmp_path / "whole", [2, 5])
    write_log(root / "events-0", [[records("abc", at_ms=NOW_MS - 99 * HOUR_MS)], [records("d")]])
    before = bytes_of(root)
    register(spark)
    register(spark)

    def sql(text: str) -> list[dict[str, Any]]:
        found = spark.sql(text.format(root=root, now=f"now_ms => {NOW_MS}L"))
        return [row.asDict(recursive=True) for row in found.collect()]

    dry = sql("SELECT * FROM stratalog_compact(path => '{root}', dry_run => true, {now})")
    assert len(dry) == 3
    assert sql("SELECT * FROM stratalog_compact('{root}')") != []
    assert bytes_of(root) == before
    done = sql(
        "SELECT topic, sum(records_removed.superseded) gone, sum(failed_count) failed "
        "FROM stratalog_compact(path => '{root}', dry_run => false, topics => array('orders'), "
        "config => map('cleanup.policy', 'compact'), {now}) GROUP BY topic"
    )
    run([whole], Mode.IN_PLACE)
    expected = sum(row["records_removed"]["superseded"] for row in dry if row["topic"] == "orders")
    assert done == [{"topic": "orders", "gone": expected, "failed": 0}]
    for name in ("orders-0", "orders-1"):
        assert within(bytes_of(root), name) == within(bytes_of(whole), name)
    history = sql(
        "SELECT partition, timestamp FROM stratalog_history(path => '{root}', limit => 1)"
    )
    assert sorted(row["partition"] for row in history) == [0, 1]
    [old] = sql(
        "SELECT * FROM stratalog_vacuum(path => '{root}', retention_hours => 98.5, {now}) "
        "WHERE result != 'skipped'"
    )
    assert (old["topic"], old["result"], old["deletions"][0]["reason"]) == (
        *("events", "would_delete"),
        "time",
    )
    assert sql(
        "SELECT d.counts.records FROM VALUES ('{root}') AS t(dir), "
        "LATERAL stratalog_detail(path => t.dir, counts => true) d WHERE d.partition = 1"
    ) == [{"records": 3}]


@pytest.mark.skipif(not JIT, reason="Spark's workers would run plain Python kernels")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("stratalog_compact(paht => '/x')", "paht|path"),
        ("stratalog_vacuum(path => '/x', retention_hours => -1)", "at least 0"),
    ],
)
def test_what_sql_gets_wrong_is_refused_before_a_task_runs(
    text: str, reason: str, spark: SparkSession
) -> None:
    register(spark)
    with pytest.raises(AnalysisException, match=reason):
        spark.sql(f"SELECT * FROM {text}")


@pytest.mark.slow  # Spark tries it four times, each in a new worker
@pytest.mark.skipif(not JIT, reason="Spark's workers would run plain Python kernels")
def test_a_missing_directory_is_named(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    frame = spark.sql(f"SELECT * FROM stratalog_detail(path => '{tmp_path}/nix')")
    with pytest.raises(PySparkException, match="nix: no such directory"):
        frame.collect()
