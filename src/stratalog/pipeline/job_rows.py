"""What jobs answer: reports -> rows (`job_columns`), a row a partition (SPK-8).

No session is needed for anything but `frame`: it runs in the worker of a table function, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from stratalog.admin.directories import PartitionPlace
from stratalog.clean.job import Drops
from stratalog.log.retention import SIZE, START_OFFSET, TIME
from stratalog.pipeline.job_columns import COUNTS
from stratalog.segment.names import TopicPartition, parse_partition_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from stratalog.admin.cleaning import HistoryReport, PartitionItem, StatusReport
    from stratalog.admin.report import CompactionReport, PartitionReport
    from stratalog.admin.retention import PartitionRetention
    from stratalog.admin.stats import PartitionStats
    from stratalog.clean.history import Entry

Row = dict[str, Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def frame(spark: SparkSession, schema: StructType, rows: Sequence[Row]) -> DataFrame:
    """The rows as a DataFrame that is there already: no job runs for it, and none runs twice."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    table = pa.Table.from_pylist(list(rows), schema=to_arrow_schema(schema, timezone="UTC"))
    return spark.createDataFrame(table)


def values(schema: StructType, row: Row) -> tuple[Any, ...]:
    """A row as a table function yields it; what it does not say is NULL."""
    return tuple(row.get(name) for name in schema.names)


# ---------------------------------------------------------------- compaction


def compaction_rows(report: CompactionReport, *, is_dry: bool) -> list[Row]:
    """What was done, or would be, with each partition."""
    done = "would_compact" if is_dry else "compacted"
    return [_compaction_row(item, done) for item in report.partitions]


def failed_compaction_rows(places: Iterable[PartitionPlace], error: Exception) -> list[Row]:
    """Of a run that was given up as a whole: whose failure it was, as far as its file tells, and
    the others, which are as they were."""
    file = getattr(error, "file", None) or ""
    found = list(places)
    blamed = [place for place in found if os.path.dirname(file) == place.path] or found
    text = " ".join(str(error).split())
    return [
        {**_place(place.topic_partition, place.path), **_outcome("failed", error=text)}
        if place in blamed
        else {
            **_place(place.topic_partition, place.path),
            **_outcome("skipped", f"nothing was put in place, as {blamed[0].name} failed"),
        }
        for place in found
    ]


def _compaction_row(item: PartitionReport, done: str) -> Row:
    counts, rewritten = item.counts, item.rewritten
    result = "failed" if item.error else "skipped" if item.skipped else done
    return {
        **_place_of(item.partition, item.directory),
        **_outcome(result, item.skipped, item.error),
        "rewritten_segments_count": rewritten.segments_before,
        "added_segments_count": rewritten.segments_after,
        "rewritten_bytes_count": rewritten.bytes_before,
        "added_bytes_count": rewritten.bytes_after,
        "records_before": counts.records_before,
        "records_after": counts.records_after,
        "records_removed": _drops(counts.dropped),
        "bytes_removed": _drops(counts.dropped_bytes),
        "keys": counts.keys,
        "first_dirty_offset": item.first_dirty,
        "end_offset": item.end_offset,
        "dirty_ratio": item.dirty_ratio,
        "log_segments_before": item.log_segments_before,
        "log_segments_after": item.log_segments_after,
        "log_bytes_before": item.log_bytes_before,
        "log_bytes_after": item.log_bytes_after,
        "next_expiry": _moment(item.next_expiry_ms),
        "segments": [
            {
                "base_offset": segment.base_offset,
                "records_before": segment.records_before,
                "records_after": segment.records_after,
                "bytes_before": segment.bytes_before,
                "bytes_after": segment.bytes_after,
                "records_removed": _drops(segment.dropped),
            }
            for segment in item.segments
        ],
        "top_keys": [asdict(key) for key in item.top_keys],
    }


# ---------------------------------------------------------------- retention


def vacuum_row(item: PartitionRetention, *, is_dry: bool) -> Row:
    """What was, or would be, deleted of a partition."""
    decision = item.decision
    deletions = () if decision is None or item.error is not None else decision.deletions
    problems = "; ".join(decision.problems) if decision is not None else ""
    error = item.error or problems or None
    by_reason = dict.fromkeys((START_OFFSET, SIZE, TIME), 0)
    for gone in deletions:
        by_reason[gone.reason] = by_reason.get(gone.reason, 0) + gone.size_bytes
    result, reason = "nothing", "nothing is past its time or too much"
    if deletions:
        result, reason = "would_delete" if is_dry else "deleted", ""
    elif error:
        result, reason = "failed", ""
    elif "delete" not in item.cleanup_policy:
        reason = "its cleanup.policy does not contain delete"
    start = item.log_start_offset
    return {
        **_place_of(item.partition, item.directory),
        **_outcome(result, reason or None, error),
        "cleanup_policy": list(item.cleanup_policy),
        "deleted_segments_count": len(deletions),
        "deleted_bytes_count": sum(gone.size_bytes for gone in deletions),
        "deleted_bytes_by_reason": by_reason,
        "log_start_offset": start,
        "new_log_start_offset": decision.new_log_start_offset if decision and deletions else start,
        "segments_count": item.segments,
        "log_bytes": item.log_bytes,
        "deletions": [
            {
                "base_offset": gone.base_offset,
                "end_offset": gone.end_offset,
                "size_bytes": gone.size_bytes,
                "reason": gone.reason,
                "detail": gone.detail,
            }
            for gone in deletions
        ],
    }


def skipped_vacuum_row(place: PartitionPlace, reason: str) -> Row:
    """Of a partition that is left alone."""
    return {
        **_place(place.topic_partition, place.path),
        **_outcome("skipped", reason),
        "deleted_segments_count": 0,
        "deleted_bytes_count": 0,
        "deletions": [],
    }


# ---------------------------------------------------------------- history and detail


def history_rows(report: HistoryReport) -> list[Row]:
    """The rounds of all partitions, the newest first; a history that cannot be read is one row."""
    rows = [_history_row(item, entry) for item in report.partitions for entry in item.found or ()]
    rows.sort(key=lambda row: row["timestamp"] or _EPOCH, reverse=True)
    return rows + [
        {**_place_of(item.partition, item.directory), "error": item.error}
        for item in report.partitions
        if item.error is not None
    ]


def _history_row(item: PartitionItem[tuple[Entry, ...]], entry: Entry) -> Row:
    return {
        **_place_of(item.partition, item.directory),
        "timestamp": _moment(entry.started_ms),
        "operation": "forget" if entry.trigger == "forget" else "compact",
        "trigger": entry.trigger,
        "result": entry.result,
        "engine": entry.engine,
        "cause": entry.cause or None,
        "duration_ms": entry.duration_ms,
        "first_dirty_offset": entry.first_dirty,
        "end_offset": entry.end_offset,
        "dirty_ratio": float(entry.dirty_ratio),
        "segments_before": entry.segments_before,
        "segments_after": entry.segments_after,
        "bytes_before": entry.bytes_before,
        "bytes_after": entry.bytes_after,
        "records_before": entry.records_before,
        "records_after": entry.records_after,
        "records_removed": _drops(entry.drops),
        "keys": entry.keys,
        "error": None,
    }


def detail_rows(
    report: StatusReport,
    policies: Mapping[str, Sequence[str]],
    segments: Mapping[str, int],
    counts: Mapping[str, PartitionStats | str],
) -> list[Row]:
    """What each partition is like. `policies`, `segments` and `counts` (or why there are none) are
    by directory."""
    explained = {item.directory: item.found for item in report.explanations()}
    rows = []
    for item in report.partitions:
        row: Row = {"format": "stratalog", **_place_of(item.partition, item.directory)}
        found, explanation = item.found, explained[item.directory]
        row |= {
            "segments_count": segments.get(item.directory),
            "cleanup_policy": list(policies[item.directory]),
            "error": item.error,
        }
        if found is not None:
            last, failure = found.last, found.note.failure
            row |= {
                "log_start_offset": found.log_start_offset,
                "log_end_offset": found.log_end_offset,
                "size_bytes": found.sections.total,
                "clean_bytes": found.sections.clean,
                "cleanable_bytes": found.sections.cleanable,
                "uncleanable_bytes": found.sections.uncleanable,
                "active_bytes": found.sections.active,
                "dirty_ratio": found.facts.dirty_ratio,
                "cleaner_checkpoint": found.checkpoint,
                "first_dirty_offset": found.facts.first_dirty,
                "first_uncleanable_offset": found.facts.first_uncleanable,
                "paused": found.note.paused,
                "failure": None if failure is None else failure.cause,
                "quarantine": found.quarantine,
                "last_compacted": None if last is None else _moment(last.started_ms),
                "last_result": None if last is None else last.result,
                "explanation": None if explanation is None else explanation.sentence,
            }
        counted = counts.get(item.directory)
        if isinstance(counted, str):
            row["error"] = row["error"] or counted
        elif counted is not None:
            row["counts"] = _counts_row(counted)
        rows.append(row)
    return rows


def _counts_row(counted: PartitionStats) -> Row:
    known = {name: getattr(counted, name, None) for name in COUNTS.names}
    times = {
        "oldest": _moment(counted.oldest_timestamp),
        "newest": _moment(counted.newest_timestamp),
    }
    return {**known, **times}


# ---------------------------------------------------------------- parts of rows


def _outcome(result: str, reason: str | None = None, error: str | None = None) -> Row:
    failed = int(result == "failed")
    return {"result": result, "reason": reason, "error": error, "failed_count": failed}


def _place_of(name: str, directory: str) -> Row:
    topic_partition = parse_partition_directory(name)
    assert topic_partition is not None, name
    return _place(topic_partition, directory)


def _place(key: TopicPartition, directory: str) -> Row:
    return {"topic": key.topic, "partition": key.partition, "directory": directory}


def _drops(drops: Drops) -> Row:
    return {**asdict(drops), "total": drops.total}


def _moment(timestamp_ms: int | None) -> datetime | None:
    """A time; None for none, and for one that no calendar knows."""
    if timestamp_ms is None or timestamp_ms < 0:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return None
