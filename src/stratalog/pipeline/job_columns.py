"""The columns of what jobs answer, in the words of Iceberg's and Delta's procedures (SPK-8).

Every job has `topic`, `partition`, `directory`, and at the end `error`: why nothing could be told
of the partition, or done with it. Sizes are bytes of `.log` files. No session is needed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from stratalog.clean.job import Drops
from stratalog.log.retention import SIZE, START_OFFSET, TIME

_TEXT, _INT, _LONG, _SHARE = StringType(), IntegerType(), LongType(), DoubleType()
_FLAG, _TIME = BooleanType(), TimestampType()


def _struct(columns: Mapping[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def _all(kind: DataType, *names: str) -> dict[str, DataType]:
    return dict.fromkeys(names, kind)


_PLACE: dict[str, DataType] = {"topic": _TEXT, "partition": _INT, "directory": _TEXT}
_DROPS = _struct(_all(_LONG, *(field.name for field in fields(Drops)), "total"))

COMPACTION = _struct(
    {
        **_PLACE,
        **_all(_TEXT, "result", "reason"),
        **_all(_INT, "rewritten_segments_count", "added_segments_count"),
        **_all(_LONG, "rewritten_bytes_count", "added_bytes_count"),
        "failed_count": _INT,
        **_all(_LONG, "records_before", "records_after"),
        **_all(_DROPS, "records_removed", "bytes_removed"),
        **_all(_LONG, "keys", "first_dirty_offset", "end_offset"),
        "dirty_ratio": _SHARE,
        **_all(_INT, "log_segments_before", "log_segments_after"),
        **_all(_LONG, "log_bytes_before", "log_bytes_after"),
        "next_expiry": _TIME,
        "segments": ArrayType(
            _struct(
                {
                    **_all(_LONG, "base_offset", "records_before", "records_after"),
                    **_all(_LONG, "bytes_before", "bytes_after"),
                    "records_removed": _DROPS,
                }
            )
        ),
        "top_keys": ArrayType(_struct({"key": _TEXT, **_all(_LONG, "records", "bytes")})),
        "error": _TEXT,
    }
)
"""`result`: `compacted`, `would_compact` (a dry run), `skipped`, for `reason`, or `failed`.

`rewritten` are the segments that went into the `added` ones; where nothing changes in a segment it
stays and is neither. `records_*` and `bytes_removed` are of the part that the round took in.
`failed_count` is 1 for a partition that failed, so that a sum over it counts them. `segments`: what
becomes of each segment's records (CLN-10). `top_keys`: of a dry run that was asked for them.
"""

VACUUM = _struct(
    {
        **_PLACE,
        "cleanup_policy": ArrayType(_TEXT),
        **_all(_TEXT, "result", "reason"),
        "deleted_segments_count": _INT,
        "deleted_bytes_count": _LONG,
        "failed_count": _INT,
        "deleted_bytes_by_reason": _struct(_all(_LONG, START_OFFSET, SIZE, TIME)),
        **_all(_LONG, "log_start_offset", "new_log_start_offset"),
        "segments_count": _INT,
        "log_bytes": _LONG,
        "deletions": ArrayType(
            _struct(
                {
                    **_all(_LONG, "base_offset", "end_offset", "size_bytes"),
                    **_all(_TEXT, "reason", "detail"),
                }
            )
        ),
        "error": _TEXT,
    }
)
"""`result`: `deleted`, `would_delete` (a dry run), `nothing`, `skipped`, for `reason`, `failed`."""

HISTORY = _struct(
    {
        **_PLACE,
        "timestamp": _TIME,
        **_all(_TEXT, "operation", "trigger", "result", "engine", "cause"),
        **_all(_LONG, "duration_ms", "first_dirty_offset", "end_offset"),
        "dirty_ratio": _SHARE,
        **_all(_INT, "segments_before", "segments_after"),
        **_all(_LONG, "bytes_before", "bytes_after", "records_before", "records_after"),
        "records_removed": _DROPS,
        "keys": _LONG,
        "error": _TEXT,
    }
)
"""A row a round, the newest first."""

COUNTS = _struct(
    {
        **_all(_LONG, "batches", "records", "markers", "keyless", "tombstones", "keys"),
        "live_ratio": _SHARE,
        **_all(_LONG, "key_bytes", "value_bytes", "aborted_records"),
        **_all(_TIME, "oldest", "newest"),
    }
)
DETAIL = _struct(
    {
        "format": _TEXT,
        **_PLACE,
        **_all(_LONG, "log_start_offset", "log_end_offset"),
        "segments_count": _INT,
        **_all(_LONG, "size_bytes", "clean_bytes", "cleanable_bytes", "uncleanable_bytes"),
        "active_bytes": _LONG,
        "dirty_ratio": _SHARE,
        **_all(_LONG, "cleaner_checkpoint", "first_dirty_offset", "first_uncleanable_offset"),
        "cleanup_policy": ArrayType(_TEXT),
        "paused": _FLAG,
        **_all(_TEXT, "failure", "quarantine"),
        "last_compacted": _TIME,
        **_all(_TEXT, "last_result", "explanation"),
        "counts": COUNTS,
        "error": _TEXT,
    }
)
"""`explanation`: why a service's cleaner would or would not clean it now. `counts` only if they are
asked for: every record is looked at for them."""
