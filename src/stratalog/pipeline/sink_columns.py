"""The columns that the sink takes: which they are, of what types, and their bytes for kernels.

Those of Spark's Kafka sink, and `timestamp`: `value` is needed, the others are not, and columns
of other names are passed over, so that what was read can be written again.

    topic string   partition int   key, value binary or string   timestamp timestamp
    headers array<struct<key: string, value: binary>>

Invariants
- I1  What a schema allows is refused here only for what is in it: a row without a topic, a header
      without a key.
- I2  Bytes of Arrow's are not copied, and not changed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stratalog.base.errors import InvalidRecordError, UsageError
from stratalog.record.kernel import arrow_records as kernel

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

COLUMNS = ("topic", "partition", "key", "value", "headers", "timestamp")
ANY_PARTITION = -(1 << 62)

Int64s = npt.NDArray[np.int64]
Column = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32], npt.NDArray[np.bool_]]
"""Bytes, ends (n + 1), and whether there is a value."""


def check_columns(schema: StructType, topic: str | None) -> None:
    """Refuse rows that cannot be records, by their types. Raises `UsageError`, in one line."""
    from pyspark.sql import types

    text, binary = types.StringType(), types.BinaryType()
    header = types.StructType([types.StructField("key", text), types.StructField("value", binary)])
    allowed: dict[str, Sequence[types.DataType]] = {
        "topic": (text,),
        "partition": (types.IntegerType(),),
        "key": (binary, text),
        "value": (binary, text),
        "headers": (types.ArrayType(header),),
        "timestamp": (types.TimestampType(),),
    }
    names = [field.name for field in schema.fields]
    for name in COLUMNS:
        found = [field for field in schema.fields if field.name == name]
        if len(found) > 1:
            raise UsageError(f"there are {len(found)} columns {name!r}")
        kinds = [_without_nullability(kind) for kind in allowed[name]]
        if found and _without_nullability(found[0].dataType) not in kinds:
            wanted = " or ".join(kind.simpleString() for kind in allowed[name])
            raise UsageError(
                f"column {name!r} is {found[0].dataType.simpleString()}; it must be {wanted}"
            )
    for name in [*(["topic"] if topic is None else []), "value"]:
        if name not in names:
            near = next((other for other in names if other.lower() == name), None)
            hint = f": is it {near!r}?" if near else ""
            option = "; or give option topic" if name == "topic" else ""
            raise UsageError(f"there is no column {name!r}{hint}{option}")


def _without_nullability(kind: Any) -> str:
    """A type's text, in which it does not count whether parts of it may be null."""
    text: str = kind.simpleString()
    return text


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """An Arrow batch. `partitions`: ANY_PARTITION for null; times are ms; `names` of headers."""

    topics: tuple[str, ...]
    topic_numbers: Int64s | None
    partitions: Int64s | None
    timestamps: Int64s
    key: Column
    value: Column
    header_ends: npt.NDArray[np.int32]
    names: tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]
    contents: Column

    def by_topic(self) -> Iterator[tuple[str, Int64s]]:
        """The places of each topic's rows, in their order."""
        count = len(self.timestamps)
        if self.topic_numbers is None:
            if count:
                yield self.topics[0], np.arange(count)
            return
        for number, topic in enumerate(self.topics):
            yield topic, np.flatnonzero(self.topic_numbers == number)

    def places_of_keys(self, partitions: int) -> Int64s:
        """Where Kafka's default partitioner places each row; -1 without a key."""
        placed = np.empty(len(self.timestamps), np.int64)
        kernel.place_keys(*self.key, partitions, placed)
        return placed


def rows_of(batch: pa.RecordBatch, topic: str | None, now_ms: int) -> Rows:
    """The columns of an Arrow batch whose schema `check_columns` allows.

    Raises `InvalidRecordError` for a row without a topic, or a header without a key.
    """
    count = batch.num_rows
    topics, numbers = ((topic,), None) if topic is not None else _topics(batch.column("topic"))
    columns = {name: batch.column(name) for name in COLUMNS if name in batch.schema.names}
    header_ends, names, contents = _headers(columns.get("headers"), count)
    return Rows(
        topics,
        numbers,
        _partitions(columns.get("partition")),
        _timestamps(columns.get("timestamp"), count, now_ms),
        column_bytes(columns.get("key"), count),
        column_bytes(columns["value"], count),
        header_ends,
        names,
        contents,
    )


def _topics(column: pa.Array) -> tuple[tuple[str, ...], Int64s]:
    import pyarrow as pa

    if column.null_count:
        raise InvalidRecordError("a row has no topic: fill the column, or give option topic")
    encoded = column.cast(pa.string()).dictionary_encode()
    numbers = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return tuple(encoded.dictionary.to_pylist()), numbers


def _partitions(column: pa.Array | None) -> Int64s | None:
    if column is None:
        return None
    given = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return np.where(_has_value(column), given, ANY_PARTITION)


def _timestamps(column: pa.Array | None, count: int, now_ms: int) -> Int64s:
    import pyarrow as pa

    if column is None:
        return np.full(count, now_ms, np.int64)
    micros = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64()).fill_null(0)
    times = micros.to_numpy(zero_copy_only=False) // 1000
    return np.where(_has_value(column), times, np.int64(now_ms))


def column_bytes(column: pa.Array | None, count: int) -> Column:
    """A binary or text column: its contents end to end, where each ends (and the first begins),
    and whether it has a value."""
    import pyarrow as pa

    if column is None:
        ends = np.zeros(count + 1, np.int32)
        return np.empty(0, np.uint8), ends, np.zeros(count, np.bool_)
    plain = column.cast(pa.binary())
    _, ends, content = plain.buffers()
    first = plain.offset
    return (
        _seen(content, np.uint8),
        _seen(ends, np.int32)[first : first + count + 1] if count else np.zeros(1, np.int32),
        _has_value(plain),
    )


def _seen(buffer: pa.Buffer | None, kind: type) -> Any:
    """The memory of a buffer, as kernels take it: read-only arrays are of another type to them, and
    Arrow gives out no others."""
    if buffer is None or buffer.size == 0:
        return np.empty(0, kind)
    memory = (ctypes.c_uint8 * buffer.size).from_address(buffer.address)
    memory.owner = buffer  # which lives as long as the array
    whole = buffer.size - buffer.size % np.dtype(kind).itemsize
    return np.frombuffer(memory, np.uint8)[:whole].view(kind)


def _has_value(column: pa.Array) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return np.array(found, np.bool_)


def _headers(
    column: pa.Array | None, count: int
) -> tuple[npt.NDArray[np.int32], tuple[Any, Any], Column]:
    """Ends of the lists, names, contents."""
    import pyarrow as pa

    if column is None or column.null_count == len(column):
        none = column_bytes(None, 0)
        return np.zeros(count + 1, np.int32), none[:2], none
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    lists = column.cast(kind)
    ends = np.array(lists.offsets.to_numpy(zero_copy_only=False), np.int32)
    if (np.diff(ends)[~_has_value(lists)] != 0).any():  # Arrow allows it
        return _headers(pa.array(lists.to_pylist(), kind), count)
    entries = lists.values
    used = entries.slice(int(ends[0]), int(ends[-1] - ends[0]))
    if used.null_count:
        raise InvalidRecordError("a row has a header that is null")
    names, contents = used.flatten()
    if names.null_count:
        raise InvalidRecordError("a row has a header without a key")
    return ends - ends[0], column_bytes(names, len(used))[:2], column_bytes(contents, len(used))
