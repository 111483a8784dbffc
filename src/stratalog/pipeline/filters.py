"""Filters of a query that spare the source work: on topic, partition, offset and timestamp.

Spark hands them over only with `spark.sql.python.filterPushdown.enabled=true`, in a worker process
of its own kind; in any other one it refuses a reader that takes filters at all. So the source
returns such a reader only where that worker's module is loaded (`is_asked`).

What is kept back is answered for: Spark does not look at those filters again. A bound by timestamp
only leaves out segments that end before it, and Spark goes on filtering.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from stratalog.segment.names import MAX_OFFSET, TopicPartition

_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
_NEVER_NULL = ("topic", "partition", "offset", "timestamp")


@dataclass(frozen=True, slots=True)
class Pushed:
    """What the filters leave: partitions for which all of `of_partition` hold, offsets in [low,
    high), segments with a timestamp of `least_ms` or later."""

    of_partition: tuple[Filter, ...] = ()
    low: int = 0
    high: int = MAX_OFFSET
    least_ms: int | None = None

    def takes(self, topic_partition: TopicPartition) -> bool:
        """Whether a partition can hold rows that are wanted."""
        topic, partition = topic_partition
        return all(
            _holds(item, topic if _column(item) == "topic" else partition)
            for item in self.of_partition
        )


def is_asked() -> bool:
    """Whether this process is the worker that pushes filters down."""
    return _WORKER in sys.modules


def push(filters: Sequence[Filter], *, by_offset: bool) -> tuple[Pushed, list[Filter]]:
    """What of `filters`, all of which must hold, is taken over, and those that Spark must apply.

    `by_offset` false: only whole partitions may be left out, because what is left out decides what
    is the latest.
    """
    of_partition: list[Filter] = []
    low, high, least_ms = 0, MAX_OFFSET, None
    rest: list[Filter] = []
    for item in filters:
        column = _column(item)
        if isinstance(item, IsNotNull) and column in _NEVER_NULL:
            continue
        if column in ("topic", "partition") and isinstance(item, _COMPARISONS):
            of_partition.append(item)
            continue
        span = _span(item) if column == "offset" and by_offset else None
        if span is not None:
            low, high = max(low, span[0]), min(high, span[1])
            continue
        if column == "timestamp" and by_offset:
            found = _least_ms(item)
            if found is not None:
                least_ms = found if least_ms is None else max(least_ms, found)
        rest.append(item)
    return Pushed(tuple(of_partition), low, high, least_ms), rest


_COMPARISONS = (
    *(EqualTo, EqualNullSafe, In, LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual),
)


def _column(item: Filter) -> str | None:
    attribute: tuple[str, ...] = getattr(item, "attribute", ())
    return attribute[0] if len(attribute) == 1 else None


def _holds(item: Filter, value: Any) -> bool:
    """Whether a comparison holds for a value that is not null."""
    match item:
        case EqualTo(value=other) | EqualNullSafe(value=other):
            return bool(value == other)
        case In(value=others):
            return value in others
        case LessThan(value=other):
            return bool(value < other)
        case LessThanOrEqual(value=other):
            return bool(value <= other)
        case GreaterThan(value=other):
            return bool(value > other)
        case GreaterThanOrEqual(value=other):
            return bool(value >= other)
    raise AssertionError(item)


def _span(item: Filter) -> tuple[int, int] | None:
    """The offsets [low, high) for which a filter holds, if they are one range."""
    other = getattr(item, "value", None)
    if type(other) is not int:
        return None
    match item:
        case EqualTo() | EqualNullSafe():
            return other, other + 1
        case LessThan():
            return 0, other
        case LessThanOrEqual():
            return 0, other + 1
        case GreaterThan():
            return other + 1, MAX_OFFSET
        case GreaterThanOrEqual():
            return other, MAX_OFFSET
    return None


def _least_ms(item: Filter) -> int | None:
    """No record below this timestamp (ms) passes a filter; None: it says nothing of the kind."""
    other = getattr(item, "value", None)
    if not isinstance(other, datetime) or other.tzinfo is None:
        return None
    if isinstance(item, EqualTo | GreaterThan | GreaterThanOrEqual):
        # Rounded down twice: to whole seconds, and by one more for what floats cannot say.
        return (int(other.timestamp()) - 1) * 1000
    return None
