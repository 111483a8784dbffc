"""Records as Arrow's record batches, of exactly the schema that Spark was told.

Kernels fill offsets, bits and bytes (`record/kernel/arrow_columns.py`), which become Arrow arrays
without a copy; no Python code runs for a record, but for messages of magic 0 and 1. Batches hold
about `locating.BATCH_BYTES`: Spark's Java side takes them whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stratalog.clean.chunk import Bytes, Int64s
from stratalog.pipeline.locating import BATCH_ROWS, Located, Source
from stratalog.record import layout
from stratalog.record.kernel import arrow_columns as kernel
from stratalog.record.values import BatchHeader, Record

RecordBatch = pa.RecordBatch
"""For those who may name the type and must not import pyarrow."""

_SMALL_BYTES = 1 << 20
"""Batches below this are put together: each one costs a message and a round of JNI calls."""

_TIMESTAMP_TYPE = layout.TIMESTAMP_TYPE_MASK
_LARGEST_MS = ((1 << 63) - 1) // 1000
_EPOCH_AT = layout.LEADER_EPOCH


@dataclass(frozen=True, slots=True, eq=False)
class ArrowForm:
    """Records as record batches of `schema`."""

    schema: pa.Schema

    @property
    def most_rows(self) -> int:
        """See `Form`."""
        return BATCH_ROWS

    def of_located(self, located: Located) -> pa.RecordBatch:
        """See `Form`."""
        columns = [_COLUMNS[field.name](located, field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def of_legacy(
        self, source: Source, header: BatchHeader, records: Sequence[Record]
    ) -> pa.RecordBatch:
        """See `Form`."""
        return legacy_record_batch(self.schema, source, header, records)


def legacy_record_batch(
    schema: pa.Schema, source: Source, header: BatchHeader, records: Sequence[Record]
) -> pa.RecordBatch:
    """The records of one message of magic 0 or 1, which have neither headers nor producers."""
    count = len(records)
    kind = -1 if header.magic == 0 else int(header.is_log_append_time)
    columns: dict[str, Any] = {
        "key": [record.key for record in records],
        "value": [record.value for record in records],
        "topic": [source.topic] * count,
        "partition": [source.partition] * count,
        "offset": [record.offset for record in records],
        "timestamp": _micros(np.array([record.timestamp for record in records], np.int64)),
        "timestampType": [kind] * count,
        "headers": [None] * count,
        "segment": [source.base_offset] * count,
        "leaderEpoch": [layout.NO_LEADER_EPOCH] * count,
        "producerId": [layout.NO_PRODUCER_ID] * count,
        "isControl": [False] * count,
    }
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, with little batches put together."""
    waiting: list[pa.RecordBatch] = []
    size_bytes = rows = 0
    for batch in batches:
        if not waiting and batch.nbytes >= _SMALL_BYTES:
            yield batch
            continue
        waiting.append(batch)
        size_bytes, rows = size_bytes + batch.nbytes, rows + batch.num_rows
        if size_bytes >= _SMALL_BYTES or rows >= BATCH_ROWS:
            yield from _as_one(waiting)
            waiting, size_bytes, rows = [], 0, 0
    yield from _as_one(waiting)


def _as_one(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(batches) > 1:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()
    else:
        yield from batches


# ---------------------------------------------------------------- columns


def _bits(count: int) -> Bytes:
    return np.zeros((count + 7) // 8, np.uint8)


def _buffer(values: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(values)


def _of_numbers(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """`values` is nobody else's: the array is a view of it."""
    return pa.Array.from_buffers(kind, len(values), [None, _buffer(values)], 0)


def _of_fields(place: int, total: int) -> Callable[[Located, pa.DataType], pa.Array]:
    """A binary column: the fields at `place` of the places, `total` tells their bytes."""

    def column(located: Located, kind: pa.DataType) -> pa.Array:
        count = len(located.places)
        ends, bits = np.empty(count + 1, np.int32), _bits(count)
        out = np.empty(int(located.totals[total]), np.uint8)
        nulls = kernel.copy_fields(
            *(located.raw, located.plain, located.table, located.places, place, ends, bits, out)
        )
        validity = _buffer(bits) if nulls else None
        return pa.Array.from_buffers(
            kind, count, [validity, _buffer(ends), _buffer(out)], int(nulls)
        )

    return column


def _headers(located: Located, kind: pa.DataType) -> pa.Array:
    count, headers = len(located.places), int(located.totals[kernel.HEADER_COUNT])
    ends, bits = np.empty(count + 1, np.int32), _bits(count)
    name_ends, value_ends = np.empty((2, headers + 1), np.int32)
    names = np.empty(int(located.totals[kernel.NAME_BYTES]), np.uint8)
    values = np.empty(int(located.totals[kernel.HEADER_VALUE_BYTES]), np.uint8)
    value_bits = _bits(headers)
    null_lists, null_values = kernel.copy_headers(
        *(located.raw, located.plain, located.table, located.places, ends, bits),
        *(name_ends, names, value_ends, value_bits, values),
    )
    name_array = _text(
        pa.Array.from_buffers(pa.binary(), headers, [None, _buffer(name_ends), _buffer(names)], 0)
    )
    value_array = pa.Array.from_buffers(
        pa.binary(),
        headers,
        [_buffer(value_bits) if null_values else None, _buffer(value_ends), _buffer(values)],
        int(null_values),
    )
    pairs = pa.StructArray.from_arrays([name_array, value_array], fields=list(kind.value_type))
    validity = _buffer(bits) if null_lists else None
    return pa.Array.from_buffers(
        kind, count, [validity, _buffer(ends)], int(null_lists), children=[pairs]
    )


def _text(names: pa.Array) -> pa.Array:
    """Names of headers as strings; what is not UTF-8 is replaced, as Kafka's client does."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [name.decode("utf-8", "replace") for name in names.to_pylist()]
        return pa.array(texts, pa.string())


def _topic(located: Located, kind: pa.DataType) -> pa.Array:
    name = np.frombuffer(located.source.topic.encode(), np.uint8)
    count = len(located.places)
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(name))
    return pa.Array.from_buffers(
        kind, count, [None, _buffer(ends), _buffer(np.tile(name, count))], 0
    )


def _micros(milliseconds: Int64s) -> Int64s:
    """What no timestamp of Spark's can say is the nearest that it can."""
    return np.clip(milliseconds, -_LARGEST_MS, _LARGEST_MS) * 1000


def _timestamp_types(located: Located, kind: pa.DataType) -> pa.Array:
    is_append = located.of_rows("attributes") & _TIMESTAMP_TYPE != 0
    return _of_numbers(is_append.astype(np.int32), kind)


def _leader_epochs(located: Located, kind: pa.DataType) -> pa.Array:
    starts = located.of_rows("position") + _EPOCH_AT
    four = located.raw[starts[:, None] + np.arange(4)]
    return _of_numbers(np.ascontiguousarray(four).view(">i4")[:, 0].astype(np.int32), kind)


def _is_control(located: Located, _kind: pa.DataType) -> pa.Array:
    return pa.array(located.of_rows("attributes") & layout.CONTROL_MASK != 0)


def _repeated(located: Located, value: int, kind: pa.DataType) -> pa.Array:
    return _of_numbers(np.full(len(located.places), value, kind.to_pandas_dtype()), kind)


_COLUMNS: dict[str, Callable[[Located, pa.DataType], pa.Array]] = {
    "key": _of_fields(kernel.KEY_AT, kernel.KEY_BYTES),
    "value": _of_fields(kernel.VALUE_AT, kernel.VALUE_BYTES),
    "topic": _topic,
    "partition": lambda located, kind: _repeated(located, located.source.partition, kind),
    "offset": lambda located, kind: _of_numbers(located.places[:, kernel.OFFSET].copy(), kind),
    "timestamp": lambda located, kind: _of_numbers(
        _micros(located.places[:, kernel.TIMESTAMP]), kind
    ),
    "timestampType": _timestamp_types,
    "headers": _headers,
    "segment": lambda located, kind: _repeated(located, located.source.base_offset, kind),
    "leaderEpoch": _leader_epochs,
    "producerId": lambda located, kind: _of_numbers(located.of_rows("producer_id"), kind),
    "isControl": _is_control,
}
