"""The streaming source on a real session: few flows, as each query costs seconds.

What needs no session is tried in `test_stream_rules.py` and `test_stream_random.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from stratalog.record.kernel.compile import JIT
from tests.log.helpers import open_log, records
from tests.pipeline.source_rows import naive_rows
from tests.pipeline.stream_play import fill, patiently

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [
    pytest.mark.requirement("SPK-5"),
    pytest.mark.skipif(not JIT, reason="Spark's workers would run plain Python kernels"),
]
Batches = dict[int, list[tuple[int, int]]]


def run(spark: SparkSession, root: Path, found: Batches, **options: Any) -> Any:
    """What has been read since the last run, up to now, into `found`; the last progress."""

    def keep(frame: DataFrame, number: int) -> None:
        rows = frame.select("partition", "offset").collect()
        found[number] = sorted((row.partition, row.offset) for row in rows)

    def once() -> Any:
        query = (
            spark.readStream.format("stratalog")
            .options(**options)
            .load(str(root / "logs"))
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(root / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return query.lastProgress

    return patiently(once)


def test_available_now_in_several_batches_and_on_from_the_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    fill(logs / "a-0", *[5] * 13)
    found: Batches = {}
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    run(spark, tmp_path, found, **options)
    assert found == {
        number: [(0, offset) for offset in range(20 * number, min(20 * number + 20, 65))]
        for number in range(4)
    }
    # Meanwhile: more records, a partition that was not there, and the driver died in batch 3.
    fill(logs / "a-0", 3)
    fill(logs / "a-1", 4)
    (tmp_path / "checkpoint" / "commits" / "3").unlink()
    (tmp_path / "checkpoint" / "commits" / ".3.crc").unlink(missing_ok=True)
    again: Batches = {}
    progress = run(spark, tmp_path, again, **options)
    assert again == {
        3: found[3],
        4: [*((0, offset) for offset in range(65, 68)), *((1, offset) for offset in range(4))],
    }
    (source,) = json.loads(progress.json)["sources"]
    assert source["startOffset"] == {"a": {"0": 65}}
    assert source["endOffset"] == source["latestOffset"] == {"a": {"0": 68, "1": 4}}
    assert source["numInputRows"] == 7


def test_a_stream_beside_a_live_owner(spark: SparkSession, tmp_path: Path) -> None:
    """Every column of every record, as they come, in a table in memory."""
    root = tmp_path / "logs"
    with open_log(root / "live-0", segment_bytes=3000) as log:
        log.append_records(records(10))

        def started() -> StreamingQuery:
            query = (
                spark.readStream.format("stratalog")
                .option("includeHeaders", "true")
                .load(str(root))
                .writeStream.format("memory")
                .queryName("live")
                .start()
            )
            query.processAllAvailable()
            return query

        query = patiently(started)
        try:
            for _ in range(3):
                log.append_records(records(40, size=50))
                query.processAllAvailable()
        finally:
            query.stop()
        rows = spark.table("live").selectExpr("*", "unix_micros(timestamp) micros").toArrow()
    expected = naive_rows(root / "live-0", start=10)
    assert len(expected) == 120
    assert [
        {**row, "timestamp": row["micros"]} for row in sorted(rows.to_pylist(), key=place_of)
    ] == [{**row, "micros": row["timestamp"]} for row in (shown(one) for one in expected)]


def place_of(row: dict[str, Any]) -> int:
    return int(row["offset"])


def shown(row: dict[str, Any]) -> dict[str, Any]:
    hidden = ("segment", "leaderEpoch", "producerId", "isControl")
    return {name: value for name, value in row.items() if name not in hidden}


def refusal(call: Callable[[], Any]) -> str:
    """The last line of what Spark says, which is ours."""
    with pytest.raises(StreamingQueryException) as caught:
        call()
    lines = [line for line in str(caught.value).splitlines() if line.startswith("stratalog.")]
    assert len(set(lines)) == 1, str(caught.value)
    return lines[0].partition(": ")[2]


def test_what_is_refused_says_so_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "logs" / "a-0", 5)
    told = refusal(lambda: run(spark, tmp_path, {}, view="latest"))
    assert told.startswith("view=latest is not for a stream: ")
