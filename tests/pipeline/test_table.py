"""`LogTable` on a real session: equal to the command line's work, and what its rows say."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from stratalog.admin.report import CompactionReport, Mode
from stratalog.base.errors import CorruptionError, LogLockedError, UsageError
from stratalog.clean.engine import Progress
from stratalog.log.locking import locked
from stratalog.pipeline import LogTable, job_columns, remote
from stratalog.pipeline.job_progress import StageBars
from stratalog.record.kernel.compile import JIT
from stratalog.spark.describing import described, description
from tests.admin.helpers import DISK, HOUR_MS, NOW_MS, copy_of, records, run, tree, write_log
from tests.oracle import golden_rounds
from tests.pipeline.test_table_batches import bytes_of, damage, within

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.requirement("SPK-8"),
    pytest.mark.usefixtures("hasty_disk"),
    pytest.mark.skipif(not JIT, reason="Spark's workers would run plain Python kernels"),
]
DAY_MS = 24 * HOUR_MS
COMPACTED = {"cleanup.policy": "compact"}


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Three partitions of a compacted topic and one of an old topic that is deleted from."""
    root = tmp_path / "logs"
    for number in range(3):
        segments = [[records("abc" * (9 * number + 1))], [records("ab")]]
        write_log(root / f"orders-{number}", segments)
    old, young = records("abc", at_ms=NOW_MS - 30 * DAY_MS), records("de")
    write_log(root / "events-0", [[old], [young]], policy=("delete",))
    (tmp_path / "topics").write_text(
        "[topic orders]\ncleanup.policy=compact\n[topic events]\ncleanup.policy=delete\n"
    )
    return root


def rows(frame: DataFrame) -> dict[str, dict[str, Any]]:
    found = {}
    for row in frame.collect():
        found[f"{row['topic']}-{row['partition']}"] = row.asDict(recursive=True)
    return found


def logs_in(partition: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in partition.glob("*.log")}


def table(spark: SparkSession, root: Path, **options: Any) -> LogTable:
    return LogTable.forPath(spark, str(root), now_ms=NOW_MS, **options)


# ---------------------------------------------------------------- compaction


@pytest.mark.requirement("SPK-1", "SPK-2")
def test_a_table_is_compacted_to_the_bytes_that_the_command_makes(
    spark: SparkSession, tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    """Kafka's directories, all partitions in one job; dry run, in place and out say the same."""
    root = tmp_path / "logs"
    for place, kafka in enumerate(golden_rounds()[::8]):
        partition = copy_of(kafka.before, tmp_path / f"{place}" / f"golden{place}-0")
        root.mkdir(exist_ok=True)
        shutil.move(partition, root / partition.name)
    local = copy_of(root, tmp_path / "local")
    given = {"delete.retention.ms": "1000"}
    expected = run([local], Mode.IN_PLACE, given=given)
    before = tree(root)
    logs = table(spark, root, config=given)
    dry = logs.dry_run()
    assert tree(root) == before
    logs.optimize().executeCompaction(out=str(tmp_path / "out"))
    assert tree(root) == before
    done = logs.optimize().executeCompaction()
    assert bytes_of(root) == bytes_of(local) == bytes_of(tmp_path / "out")
    assert len(rows(done)) == len(expected.partitions) > 2
    for item in expected.partitions:
        row, foretold = rows(done)[item.partition], rows(dry)[item.partition]
        assert row["result"] == ("skipped" if item.skipped else "compacted")
        assert row["reason"] == item.skipped
        assert row["records_removed"]["total"] == item.counts.dropped.total
        assert row["bytes_removed"]["superseded"] == item.counts.dropped_bytes.superseded
        assert row["rewritten_segments_count"] == item.rewritten.segments_before
        assert row["added_bytes_count"] == item.rewritten.bytes_after
        assert row["log_bytes_after"] == item.log_bytes_after
        assert [part["bytes_after"] for part in row["segments"]] == [
            part.bytes_after for part in item.segments
        ]
        assert foretold == {**row, "result": foretold["result"]}
    count_cases("partitions compacted by LogTable to the command's bytes", len(rows(done)))


def test_only_what_where_chooses_is_compacted_and_other_policies_are_left_alone(
    spark: SparkSession, log_dir: Path
) -> None:
    before = bytes_of(log_dir)
    logs = table(spark, log_dir, topic_config=str(log_dir.parent / "topics"))
    some = logs.optimize().where("topic LIKE 'ord%'").where("partition IN (0, 1)")
    found = rows(some.executeCompaction())
    assert {name: row["result"] for name, row in found.items()} == {
        "orders-0": "compacted",
        "orders-1": "compacted",
    }
    assert within(bytes_of(log_dir), "orders-2") == within(before, "orders-2")
    found = rows(logs.optimize().execute_compaction(max_concurrent=1))
    assert {name: row["result"] for name, row in found.items()} == {
        **dict.fromkeys(("orders-0", "orders-1", "events-0"), "skipped"),
        "orders-2": "compacted",
    }
    assert found["events-0"]["reason"] == "its cleanup.policy does not contain compact"
    assert "was cleaned before" in found["orders-0"]["reason"]
    assert within(bytes_of(log_dir), "events-0") == within(before, "events-0")


def test_partial_progress_tells_what_failed_and_all_or_nothing_does_nothing(
    spark: SparkSession, log_dir: Path
) -> None:
    damage(log_dir / "orders-1")
    before = bytes_of(log_dir)
    logs = table(spark, log_dir)
    with pytest.raises(CorruptionError, match="orders-1"):
        logs.optimize().executeCompaction()
    assert bytes_of(log_dir) == before
    found = rows(logs.optimize().executeCompaction(partial_progress=True, max_concurrent=2))
    assert {name: (row["result"], row["failed_count"]) for name, row in found.items()} == {
        **dict.fromkeys(("orders-0", "orders-2", "events-0"), ("compacted", 0)),
        "orders-1": ("failed", 1),
    }
    assert str(log_dir / "orders-1") in found["orders-1"]["error"]
    assert within(bytes_of(log_dir), "orders-1") == within(before, "orders-1")
    assert not list(log_dir.rglob("*.part"))


# ---------------------------------------------------------------- retention


def test_vacuum_says_by_default_and_deletes_when_told(spark: SparkSession, log_dir: Path) -> None:
    before = tree(log_dir)
    logs = table(spark, log_dir)
    dry = rows(logs.vacuum())
    assert tree(log_dir) == before
    done = rows(logs.vacuum(dry_run=False))
    assert {name: row["result"] for name, row in dry.items() if name != "events-0"} == {
        f"orders-{number}": "nothing" for number in range(3)
    }
    row = done["events-0"]
    assert row == {**dry["events-0"], "result": "deleted"}
    assert dry["events-0"]["result"] == "would_delete"
    assert (row["log_start_offset"], row["new_log_start_offset"]) == (0, 3)
    assert row["deleted_bytes_by_reason"]["time"] == row["deleted_bytes_count"] > 0
    assert [gone["base_offset"] for gone in row["deletions"]] == [0]
    assert [path.stem for path in (log_dir / "events-0").glob("*.log")] == [f"{3:020d}"]
    assert rows(logs.vacuum(dry_run=False))["events-0"]["result"] == "nothing"


def test_vacuum_leaves_what_was_compacted_alone_until_somebody_gives_its_policy(
    spark: SparkSession, log_dir: Path
) -> None:
    run([log_dir / "orders-0"], Mode.IN_PLACE)
    before = logs_in(log_dir / "orders-0")
    later = {"now_ms": NOW_MS + 365 * DAY_MS}
    logs = LogTable.forPath(spark, log_dir, **later)
    found = rows(logs.vacuum(retention_hours=1, dry_run=False))
    assert found["orders-0"]["result"] == "skipped"
    assert "cleanup.policy=compact,delete" in found["orders-0"]["reason"]
    assert found["orders-1"]["result"] == "deleted"
    assert logs_in(log_dir / "orders-0") == before
    both = {"cleanup.policy": ["compact", "delete"]}
    logs = LogTable.forPath(spark, log_dir, config=both, **later).where("topic = 'orders'")
    assert rows(logs.vacuum(0.5))["orders-0"]["result"] == "would_delete"
    row = rows(LogTable.for_path(spark, log_dir, config=COMPACTED).vacuum(0))["orders-0"]
    assert (row["result"], row["reason"]) == (
        "nothing",
        "its cleanup.policy does not contain delete",
    )


# ---------------------------------------------------------------- history and detail


def test_history_and_detail(spark: SparkSession, log_dir: Path) -> None:
    logs = table(spark, log_dir)
    assert logs.history().count() == 0
    logs.optimize().where("partition = 1").executeCompaction()
    later = LogTable.forPath(spark, log_dir, now_ms=NOW_MS + 5, progress=False)
    later.where("partition = 2").optimize().executeCompaction()
    newest, oldest = logs.history(limit=1).collect()
    assert (newest["partition"], oldest["partition"]) == (2, 1)
    assert newest["engine"] == "spark"
    assert newest["records_removed"]["superseded"] == newest["records_before"] - 3
    found = rows(logs.detail())
    assert found["orders-1"]["cleaner_checkpoint"] == found["orders-1"]["log_end_offset"]
    assert found["orders-0"]["cleaner_checkpoint"] is None
    assert found["orders-0"]["counts"] is None
    assert found["orders-0"]["segments_count"] == 2
    size_bytes = sum(path.stat().st_size for path in (log_dir / "orders-0").glob("*.log"))
    assert found["orders-0"]["size_bytes"] == size_bytes
    assert "orders-0" in found["orders-0"]["explanation"]
    damage(log_dir / "events-0")
    counted = rows(logs.detail(counts=True))
    assert counted["orders-0"]["counts"]["records"] == 5
    assert counted["orders-0"]["counts"]["keys"] == 3
    assert counted["orders-2"]["counts"]["live_ratio"] == 1.0
    assert counted["events-0"]["counts"] is None
    assert "events-0" in counted["events-0"]["error"]


# ---------------------------------------------------------------- refusals


def test_a_live_owner_is_refused_but_may_be_looked_at(spark: SparkSession, log_dir: Path) -> None:
    logs = table(spark, log_dir)
    with locked([str(log_dir)], DISK, exclusive=True):
        for call in (
            logs.dry_run,
            logs.optimize().executeCompaction,
            lambda: logs.optimize().executeCompaction(partial_progress=True),
            logs.vacuum,
            lambda: logs.vacuum(0, dry_run=False),
        ):
            with pytest.raises(LogLockedError, match="in use by a running process") as refusal:
                call()
            assert "\n" not in str(refusal.value)
        assert logs.detail().count() == 4


@pytest.mark.parametrize(
    ("refused", "match"),
    [
        (lambda logs: logs.where("topix = 'a'"), "topix"),
        (lambda logs: logs.where("topic ="), "Syntax error"),
        (lambda logs: logs.where("topic"), "not a boolean"),
        (lambda logs: logs.where("topic = 'nix'").detail(), "there are events-0, orders-0"),
        (lambda logs: logs.where("partition = 'x'").history(), "x"),
        (lambda logs: logs.where(None), "NoneType"),
        (lambda logs: logs.vacuum(-1), "at least 0"),
        (lambda logs: logs.vacuum("soon"), "number of hours"),
        (lambda logs: logs.history(0), "at least 1"),
        (lambda logs: logs.dry_run(max_concurrent=0), "at least 1"),
        (lambda logs: logs.dry_run(top=-1), "number of keys"),
        (lambda logs: logs.optimize().executeCompaction(out="/x", partial_progress=True), "copy"),
        (lambda logs: LogTable.forPath(logs._spark, "/nix/da"), "no such directory"),
        (lambda logs: LogTable.forPath(logs._spark, "hdfs://name/logs"), "s3://BUCKET/PATH"),
        (
            lambda logs: logs.optimize().executeCompaction(out="s3://logs/c", max_concurrent=1),
            "as a whole",
        ),
        (lambda logs: LogTable.forPath(logs._spark, []), "no directory's path"),
        (
            lambda logs: LogTable.forPath(logs._spark, "/", config={"retention.mss": "1"}),
            "retention.ms",
        ),
        (lambda logs: LogTable.forPath(logs._spark, "/", config={"retention.ms": {}}), "a text"),
        (lambda logs: LogTable.forPath(logs._spark, "/", topic_config="/nix"), "/nix"),
    ],
)
def test_refusals_are_one_line(
    refused: Callable[[LogTable], Any],
    match: str,
    spark: SparkSession,
    log_dir: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    logs = table(spark, log_dir)
    capfd.readouterr()
    with pytest.raises(UsageError, match=match) as refusal:
        refused(logs)
    assert "\n" not in str(refusal.value)
    assert '"logger"' not in capfd.readouterr().err


@pytest.mark.requirement("SPK-9")
def test_into_object_storage_it_is_compacted_by_a_manifest(
    spark: SparkSession, log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`remote` does it, which test_objects tries on a server; here, that it is told all."""
    asked: dict[str, Any] = {}

    def compact_to(_: SparkSession, sources: Any, target: str, **options: Any) -> CompactionReport:
        asked.update(options, sources=sources, target=target)
        return CompactionReport(Mode.OUT, target, NOW_MS, 1.0, ())

    monkeypatch.setattr(remote, "compact_to", compact_to)
    logs = table(spark, log_dir, config={"delete.retention.ms": 7})
    done = logs.optimize().where("partition = 1").executeCompaction(out="s3a://bucket/clean/")
    assert done.columns == job_columns.COMPACTION.names
    assert (asked["sources"], asked["target"]) == ((str(log_dir),), "s3://bucket/clean")
    assert [str(key) for key in asked["choice"].partitions] == ["orders-1"]
    assert asked["book"].of("orders").integer("delete.retention.ms") == 7
    assert asked["book"].of("orders").is_compacted
    assert asked["clock"].now_ms() == NOW_MS


# ---------------------------------------------------------------- what one sees of it


def jobs_of(spark: SparkSession) -> Iterator[tuple[str | None, str | None]]:
    """(description, group) of all jobs, as Spark's page has them."""
    found = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    for place in range(found.size()):
        job = found.apply(place)
        yield tuple(
            text.get() if text.isDefined() else None for text in (job.description(), job.jobGroup())
        )


def test_sparks_page_says_what_each_job_does(spark: SparkSession, log_dir: Path) -> None:
    before = len(list(jobs_of(spark)))
    logs = table(spark, log_dir)
    with described(spark.sparkContext, "the program's own words") as group:
        logs.dry_run()
        logs.vacuum()
        logs.detail(counts=True)
        logs.optimize().where("topic = 'orders'").executeCompaction(max_concurrent=2)
        assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") == group
        text = spark.sparkContext.getLocalProperty("spark.job.description")
        assert text == "the program's own words"
    found = list(jobs_of(spark))[: -before or None]
    texts = [re.sub(r"[0-9.]+ (B|KiB)\)", "SIZE)", text or "") for text, _ in reversed(found)]
    four = "events-0, orders-0, orders-1 ... (4 partitions"
    assert texts == [
        f"stratalog dry run: index {four}, SIZE)",
        f"stratalog dry run: rewrite {four}, SIZE)",
        f"stratalog vacuum: plan {four})",
        f"stratalog detail: count {four}, SIZE)",
        "stratalog compact: index orders-2, orders-1 (2 partitions, SIZE)",
        "stratalog compact: rewrite orders-2, orders-1 (2 partitions, SIZE)",
        "stratalog compact: index orders-0 (1 partition, SIZE)",
        "stratalog compact: rewrite orders-0 (1 partition, SIZE)",
    ]
    assert len({group for _, group in found}) == len(found)


def test_a_description_is_short() -> None:
    names = [f"orders-{number}" for number in range(1200)]
    text = description("compact: index", names, int(3.44 * (1 << 40)))
    assert text == (
        "stratalog compact: index orders-0, orders-1, orders-2 ... (1,200 partitions, 3.4 TiB)"
    )
    assert description("vacuum: plan", ["a-0"]) == "stratalog vacuum: plan a-0 (1 partition)"
    assert description("x", ["a-0"], 999) == "stratalog x a-0 (1 partition, 999 B)"


def test_bars_show_the_stages_on_a_terminal_and_nothing_elsewhere() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with StageBars(shows=True, console=console) as bars:
        for phase in ("index", "rewrite", "swap"):
            bars(Progress(phase, 0, 100))
            bars(Progress(phase, 100, 100))
    for stage in ("indexing keys", "rewriting", "putting in place"):
        assert stage in screen.getvalue()
    bars(Progress("index", 1, 2))  # late news of a poll do no harm
    silent = io.StringIO()
    with StageBars(shows=False, console=Console(file=silent, force_terminal=True)) as bars:
        bars(Progress("index", 0, 100))
    assert silent.getvalue() == ""
