"""What a log checks of a produced record set before it appends it (LOG-3, LOG-9, CMP-10).

    validate(buffer, rules, now_ms) -> ProducedBatch...      nothing is changed

The rules are those of Kafka's LogValidator and UnifiedLog for data from clients, whose format is
magic 2. Where Kafka repairs silently (a max timestamp that is not the records'), the result says
what to repair, and `builder.assign_offsets` does it with the rest of the patching.

Records are walked by a kernel (`kernel/produced.py`), which only says yes or no. What it refuses is
walked again here, record by record, to find the error: rules and words are in one place.

Invariants
- I1  Everything that passes can be read back: checksum right, all records decode, none left over.
- I2  A batch's offsets are 0, 1, 2... without gaps: producers never make gaps, only cleaning does.
- I3  Errors are told apart by fault: bytes that are damaged are `CorruptionError`; a sound batch
      that this log must refuse is `InvalidRecordError` or `RecordTooLargeError`.
- I4  The kernel accepts exactly what `check_each_record` accepts, and finds the same maximum.

Sources: Kafka's LogValidator, UnifiedLog.analyzeAndValidateRecords; KIP-32, KIP-937 (times).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stratalog.base.errors import (
    CorruptionError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
)
from stratalog.base.limits import MAX_DECOMPRESSED_BATCH_BYTES
from stratalog.record import layout
from stratalog.record.batch import Batch, BatchHeader, RecordFields, batches
from stratalog.record.kernel import arrays, produced
from stratalog.record.kernel.compile import runs_plain

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class ProduceRules:
    """What the topic asks of its records. Sizes in bytes, times in ms.

    `requires_key` is for compacted topics (CMP-10). `max_before_ms` and `max_after_ms` bound how
    far a timestamp may lie before and after now (`message.timestamp.before.max.ms`,
    `.after.max.ms`); they do not bind LogAppendTime topics.
    """

    max_message_bytes: int = 1_048_588
    requires_key: bool = False
    is_log_append_time: bool = False
    max_before_ms: int = layout.INT64_MAX
    max_after_ms: int = 3_600_000
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BATCH_BYTES


@dataclass(frozen=True, slots=True)
class ProducedBatch:
    """One sound batch: where it lies in the buffer, and the true maximum of its timestamps.

    `max_timestamp` (ms) and `max_timestamp_offset_delta` are of the first record with the largest
    CreateTime timestamp; of LogAppendTime topics they are now and the last record's.
    """

    position: int
    header: BatchHeader
    max_timestamp: int
    max_timestamp_offset_delta: int


def validate(buffer: Buffer, rules: ProduceRules, now_ms: int) -> list[ProducedBatch]:
    """Check every batch of a produced record set; the whole set is refused for one bad record.

    Raises `CorruptionError` (position from the start of `buffer`), `RecordTooLargeError` or
    `InvalidRecordError`, for a time out of bounds `InvalidTimestampError`. An empty buffer has no
    batches. One that is not read-only is not copied.
    """
    view = memoryview(buffer).cast("B")
    raw = _as_array(view)
    checked: list[ProducedBatch] = []
    end = 0
    for batch in batches(view):
        end = batch.position + batch.header.size_bytes
        _check_size(batch.header, rules)
        if not batch.crc_ok():
            raise CorruptionError("batch fails its checksum", position=batch.position)
        _check_header(batch.header, rules)
        checked.append(_check_records(batch, raw, rules, now_ms))
    if end != len(view):
        raise CorruptionError("record set ends inside a batch", position=end)
    return checked


def _check_size(header: BatchHeader, rules: ProduceRules) -> None:
    if header.size_bytes > rules.max_message_bytes:
        raise RecordTooLargeError(
            f"the batch is {header.size_bytes} bytes, "
            f"max.message.bytes is {rules.max_message_bytes}"
        )


def _check_header(header: BatchHeader, rules: ProduceRules) -> None:
    if header.magic != 2:
        raise InvalidRecordError(f"records of magic {header.magic} are read, not accepted")
    if header.base_offset != 0:
        raise InvalidRecordError(f"a produced batch starts at offset 0, not {header.base_offset}")
    if header.records_count == 0 or header.records_count != header.last_offset_delta + 1:
        raise InvalidRecordError(
            f"{header.records_count} records, last offset delta {header.last_offset_delta}"
        )
    if header.is_control:
        raise InvalidRecordError("clients may not write control batches")
    if header.delete_horizon_ms is not None:
        raise InvalidRecordError("clients may not set a delete horizon")
    if header.producer_id != layout.NO_PRODUCER_ID and header.base_sequence < 0:
        raise InvalidRecordError(
            f"sequence number {header.base_sequence} from producer {header.producer_id}"
        )
    if header.is_transactional and header.producer_id == layout.NO_PRODUCER_ID:
        raise InvalidRecordError("a transactional batch needs a producer id")
    if header.is_log_append_time and not rules.is_log_append_time:
        raise InvalidRecordError("producers may not set LogAppendTime on a CreateTime topic")


def _check_records(
    batch: Batch, raw: npt.NDArray[np.uint8], rules: ProduceRules, now_ms: int
) -> ProducedBatch:
    found = _ask_kernel(batch, raw, rules, now_ms)
    largest, largest_delta = found or check_each_record(batch, rules, now_ms)
    if rules.is_log_append_time:
        largest, largest_delta = now_ms, batch.header.last_offset_delta
    return ProducedBatch(batch.position, batch.header, largest, largest_delta)


def _ask_kernel(
    batch: Batch, raw: npt.NDArray[np.uint8], rules: ProduceRules, now_ms: int
) -> tuple[int, int] | None:
    """The answer of `check_each_record`; None if that is to say what is wrong, or all there is."""
    header = batch.header
    start = batch.position + layout.HEADER_BYTES
    end = batch.position + header.size_bytes
    if header.attributes & layout.CODEC_MASK:
        raw = _as_array(batch.payload(rules.max_decompressed_bytes))
        start, end = 0, len(raw)
    elif end - start > rules.max_decompressed_bytes:
        return None
    # A record takes Python some microseconds, and the headers of one may be all of its bytes.
    if runs_plain(5 * header.records_count + (end - start) // 8):
        return None
    code, largest, largest_delta = produced.check_records(
        raw,
        start,
        end,
        header.records_count,
        header.base_timestamp,
        rules.requires_key,
        *_timestamp_bounds(rules, now_ms),
    )
    return (largest, largest_delta) if code == arrays.OK else None


def _timestamp_bounds(rules: ProduceRules, now_ms: int) -> tuple[int, int]:
    if rules.is_log_append_time:
        return -layout.INT64_MAX, layout.INT64_MAX
    return (
        max(now_ms - rules.max_before_ms, -layout.INT64_MAX),
        min(now_ms + rules.max_after_ms, layout.INT64_MAX),
    )


def _as_array(data: memoryview | bytes) -> npt.NDArray[np.uint8]:
    """Bytes as kernels take them. Read-only ones are another type to numba, so they are copied."""
    view = memoryview(data)
    return np.frombuffer(bytearray(view) if view.readonly else view, np.uint8)


def check_each_record(batch: Batch, rules: ProduceRules, now_ms: int) -> tuple[int, int]:
    """Check the records of a batch in Python: the largest timestamp and its offset delta.

    -1 and -1 if no timestamp is above -1. Raises `CorruptionError` or `InvalidRecordError` for the
    first record that breaks a rule.
    """
    header = batch.header
    largest, largest_delta = layout.NO_TIMESTAMP, -1
    for expected, fields in enumerate(batch.fields(rules.max_decompressed_bytes)):
        _check_record(fields, expected, rules)
        timestamp = header.base_timestamp + fields.timestamp_delta
        _check_timestamp(timestamp, rules, now_ms)
        if timestamp > largest:
            largest, largest_delta = timestamp, fields.offset_delta
    return largest, largest_delta


def _check_record(fields: RecordFields, expected_delta: int, rules: ProduceRules) -> None:
    if fields.offset_delta != expected_delta:
        raise InvalidRecordError(
            f"record {expected_delta} of the batch says offset delta {fields.offset_delta}"
        )
    if fields.key is None and rules.requires_key:
        raise InvalidRecordError("a compacted topic takes no records without a key (CMP-10)")


def _check_timestamp(timestamp: int, rules: ProduceRules, now_ms: int) -> None:
    if timestamp == layout.NO_TIMESTAMP:
        return
    if abs(timestamp) > layout.INT64_MAX:
        raise InvalidTimestampError(f"timestamp {timestamp} is no int64")
    if rules.is_log_append_time:
        return
    if now_ms - timestamp > rules.max_before_ms or timestamp - now_ms > rules.max_after_ms:
        raise InvalidTimestampError(
            f"timestamp {timestamp} is too far from now, {now_ms}: "
            f"message.timestamp.before.max.ms={rules.max_before_ms}, "
            f"message.timestamp.after.max.ms={rules.max_after_ms}"
        )
