"""Makes batches of magic 2 from records, and patches the fields that a log assigns on append.

    build_batch(records, ...) -> bytes               a whole batch
    with_codec(batch, codec, ...) -> bytearray       the same batch, compressed another way
    assign_offsets(batch, base_offset, ...)          in place: offset, leader epoch, append time

The bytes equal Kafka's: base timestamp = the first record's (or the delete horizon, KIP-534), max
timestamp = the largest; a batch without records has base timestamp -1 and no codec.

Invariants
- I1  What is built here decodes to the same records: `batches(build_batch(r))` is the identity.
- I2  `assign_offsets` leaves every byte that the checksum covers alone, unless it changes a time;
      then the checksum is made anew (LOG-3).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stratalog.base.errors import RecordTooLargeError, UsageError
from stratalog.base.limits import MAX_BATCH_BYTES, MAX_DECOMPRESSED_BATCH_BYTES
from stratalog.record import layout
from stratalog.record.batch import Batch, Header
from stratalog.record.checksum import crc32c
from stratalog.record.codec import Codec, compress
from stratalog.record.varint import encode_varint, encode_varlong

_NULL = encode_varint(-1)
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
_INT64 = struct.Struct(">q")


class NewRecord(NamedTuple):
    """A record to be written. `timestamp` in ms since the epoch; None: it has none."""

    key: bytes | None
    value: bytes | None
    timestamp: int | None = None
    headers: tuple[Header, ...] = ()


def encode_record(
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[Header] = (),
) -> bytes:
    """One record of magic 2, with its length in front."""
    headers = tuple(headers)
    parts = [
        b"\x00",
        encode_varlong(timestamp_delta),
        encode_varint(offset_delta),
        *_encode_bytes(key),
        *_encode_bytes(value),
        encode_varint(len(headers)),
    ]
    for header_key, header_value in headers:
        parts += _encode_bytes(header_key)
        parts += _encode_bytes(header_value)
    body = b"".join(parts)
    return encode_varint(len(body)) + body


class _Varints(dict[int, bytes]):
    """Varints by value; those of numbers that come often are made once."""

    def __missing__(self, value: int) -> bytes:
        encoded = encode_varlong(value)
        if abs(value) <= _OFTEN:
            self[value] = encoded
        return encoded


_OFTEN = 8191  # what two bytes hold
_varints = _Varints()


def _encode_records(
    records: Iterable[NewRecord], deltas: Iterable[int], time_deltas: Iterable[int]
) -> bytes:
    """`encode_record` of each, in a third of the time for those without headers."""
    varints = _varints
    parts: list[bytes] = []
    for record, delta, time_delta in zip(records, deltas, time_deltas, strict=True):
        key, value, _, headers = record
        if headers:
            parts.append(encode_record(delta, time_delta, key, value, headers))
            continue
        body = b"".join(
            (
                b"\x00",
                varints[time_delta],
                varints[delta],
                varints[-1 if key is None else len(key)],
                key or b"",
                varints[-1 if value is None else len(value)],
                value or b"",
                b"\x00",
            )
        )
        parts += (varints[len(body)], body)
    return b"".join(parts)


def build_batch(
    records: Sequence[NewRecord],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    log_append_time_ms: int | None = None,
    producer_id: int = layout.NO_PRODUCER_ID,
    producer_epoch: int = layout.NO_PRODUCER_EPOCH,
    base_sequence: int = layout.NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = 0,
    delete_horizon_ms: int | None = None,
    offset_deltas: Sequence[int] | None = None,
    last_offset_delta: int | None = None,
    max_timestamp: int | None = None,
    default_timestamp: int = layout.NO_TIMESTAMP,
) -> bytes:
    """A batch of magic 2.

    `default_timestamp` is that of records that have none, in ms.

    `offset_deltas` (default 0, 1, 2...) must increase; `last_offset_delta` (default: the last of
    them) may exceed it, as in a cleaned batch. `log_append_time_ms` makes it a LogAppendTime batch.
    `max_timestamp` is for batches without records, which keep the one they had, and for tests.
    Raises `UsageError` for arguments that make no batch, `RecordTooLargeError` past
    `MAX_BATCH_BYTES`.
    """
    deltas = range(len(records)) if offset_deltas is None else offset_deltas
    if last_offset_delta is None:
        last_offset_delta = deltas[-1] if len(deltas) else 0
    _check_deltas(deltas, len(records), last_offset_delta)

    timestamps = [default_timestamp if r.timestamp is None else r.timestamp for r in records]
    if delete_horizon_ms is not None and records:
        base_timestamp = delete_horizon_ms
    else:
        base_timestamp = timestamps[0] if timestamps else layout.NO_TIMESTAMP
    if max_timestamp is None:
        max_timestamp = max(timestamps, default=layout.NO_TIMESTAMP)
    if log_append_time_ms is not None:
        max_timestamp = log_append_time_ms

    time_deltas = [timestamp - base_timestamp for timestamp in timestamps]
    body = _encode_records(records, deltas, time_deltas)
    if records:
        body = compress(codec, body, level)
    if layout.HEADER_BYTES + len(body) > MAX_BATCH_BYTES:
        raise RecordTooLargeError(f"a batch of {len(body)} bytes of records cannot be read back")
    attributes = int(codec) if records else 0
    attributes |= layout.TIMESTAMP_TYPE_MASK if log_append_time_ms is not None else 0
    attributes |= layout.TRANSACTIONAL_MASK if transactional else 0
    attributes |= layout.CONTROL_MASK if control else 0
    attributes |= layout.DELETE_HORIZON_MASK if delete_horizon_ms is not None and records else 0
    batch = bytearray(layout.HEADER_BYTES + len(body))
    layout.HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - layout.LOG_OVERHEAD,
        leader_epoch,
        2,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    batch[layout.HEADER_BYTES :] = body
    _seal(memoryview(batch))
    return bytes(batch)


def assign_offsets(
    batch: bytearray | memoryview,
    base_offset: int,
    leader_epoch: int,
    log_append_time_ms: int | None = None,
    *,
    max_timestamp: int | None = None,
) -> None:
    """Give a produced batch of magic 2 its place in the log, in its own (writable) bytes.

    `log_append_time_ms` makes it a LogAppendTime batch of that time. `max_timestamp` corrects a
    header that is not the maximum of its records. Either makes the checksum anew, if it changes
    anything.
    """
    view = memoryview(batch)
    _INT64.pack_into(view, layout.BASE_OFFSET, base_offset)
    _INT32.pack_into(view, layout.LEADER_EPOCH, leader_epoch)
    if _set_times(view, log_append_time_ms, max_timestamp):
        _seal(view)


def with_codec(
    batch: Batch,
    codec: Codec,
    *,
    level: int | None = None,
    limit_bytes: int = MAX_DECOMPRESSED_BATCH_BYTES,
    log_append_time_ms: int | None = None,
    max_timestamp: int | None = None,
) -> bytearray:
    """A batch of magic 2 with its records compressed by `codec`; all else stays as it is.

    The records' bytes are not looked into: they are those of Kafka, which encodes them again, as
    long as a producer encodes them in one way. The two times are as in `assign_offsets`, which then
    finds nothing to change. A batch without records has no codec. Raises `CorruptionError` for one
    that exceeds `limit_bytes` once decompressed, `RecordTooLargeError` past `MAX_BATCH_BYTES`.
    """
    rebuilt = bytearray(batch.data[: layout.HEADER_BYTES])
    if batch.header.records_count > 0:
        rebuilt += compress(codec, batch.payload(limit_bytes), level)
        attributes = batch.header.attributes & ~layout.CODEC_MASK | codec
        _INT16.pack_into(rebuilt, layout.ATTRIBUTES, attributes)
        _INT32.pack_into(rebuilt, layout.LENGTH, len(rebuilt) - layout.LOG_OVERHEAD)
    if len(rebuilt) > MAX_BATCH_BYTES:
        raise RecordTooLargeError(f"a batch of {len(rebuilt)} bytes cannot be read back")
    view = memoryview(rebuilt)
    _set_times(view, log_append_time_ms, max_timestamp)
    _seal(view)
    return rebuilt


def _set_times(view: memoryview, log_append_time_ms: int | None, max_timestamp: int | None) -> bool:
    """Set type and maximum of the timestamps; whether that changed anything."""
    (attributes,) = _INT16.unpack_from(view, layout.ATTRIBUTES)
    (stored_timestamp,) = _INT64.unpack_from(view, layout.MAX_TIMESTAMP)
    wanted = attributes
    if log_append_time_ms is not None:
        max_timestamp = log_append_time_ms
        wanted |= layout.TIMESTAMP_TYPE_MASK
    if wanted == attributes and max_timestamp in (None, stored_timestamp):
        return False
    _INT16.pack_into(view, layout.ATTRIBUTES, wanted)
    _INT64.pack_into(view, layout.MAX_TIMESTAMP, max_timestamp)
    return True


def _seal(view: memoryview) -> None:
    _UINT32.pack_into(view, layout.CRC, crc32c(view[layout.ATTRIBUTES :]))


def _check_deltas(deltas: Sequence[int], records_count: int, last_offset_delta: int) -> None:
    if len(deltas) != records_count:
        raise UsageError(f"{len(deltas)} offset deltas for {records_count} records")
    before = -1
    for delta in deltas:
        if delta <= before:
            raise UsageError(f"offset delta {delta} does not follow {before}")
        before = delta
    if not max(before, 0) <= last_offset_delta <= layout.INT32_MAX:
        raise UsageError(f"last offset delta {last_offset_delta} is below the last record's")


def _encode_bytes(content: bytes | None) -> tuple[bytes, ...]:
    return (_NULL,) if content is None else (encode_varint(len(content)), content)
