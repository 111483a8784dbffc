"""A stored batch as a view of its bytes: the header, its checksum, its records (LOG-3, LOG-13).

    batches(buffer) -> Batch...        steps over whole batches of any magic
    Batch.header    -> BatchHeader     the fields, decoded once
    Batch.records() -> Record...       decompresses if need be, then decodes record after record

Records are decoded here for people, tests and small reads; the hot paths have kernels.

Invariants
- I1  Every length is held against the bytes that are there before it is used; nothing here raises
      anything but `CorruptionError` over bytes that are not a batch.
- I2  Offsets from `records()` strictly increase and lie within the batch's own range.
- I3  A final part of a batch is no error: a read of a log may end anywhere (LOG-8).
- I4  `CorruptionError.position` counts from the start of the buffer given to `batches`, and points
      at the batch; positions inside a decompressed payload would help nobody.

Legacy batches (magic 0 and 1) are one message each, or a wrapper of compressed messages, whose
`base_offset` field is the offset of its *last* message; `legacy` decodes them.

Sources: Kafka's DefaultRecordBatch, DefaultRecord, ByteBufferLogInputStream; KIP-98, KIP-534.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from stratalog.base.errors import CorruptionError
from stratalog.base.limits import MAX_DECOMPRESSED_BATCH_BYTES, MAX_HEADERS_PER_RECORD
from stratalog.record import layout, legacy
from stratalog.record.checksum import crc32c
from stratalog.record.codec import decompress
from stratalog.record.values import BatchHeader, Header, Record, check_length, parse_header
from stratalog.record.varint import decode_varint, decode_varlong

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "Batch",
    "BatchHeader",
    "Header",
    "Record",
    "RecordFields",
    "batches",
    "decode_record",
    "parse_header",
]

_STEP = struct.Struct(">qi")


class RecordFields(NamedTuple):
    """A record of magic 2 as its bytes have it: offset and timestamp are still deltas."""

    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """One whole batch: its header and exactly its bytes, at `position` of what it was read from."""

    header: BatchHeader
    data: memoryview
    position: int = 0

    def crc_ok(self) -> bool:
        """Whether the stored checksum is that of the bytes it covers."""
        if self.header.magic < 2:
            return legacy.crc_ok(self.header, self.data)
        return crc32c(self.data[layout.ATTRIBUTES :]) == self.header.crc

    def first_offset(self, limit_bytes: int = MAX_DECOMPRESSED_BATCH_BYTES) -> int:
        """The first offset of the batch's range; a legacy wrapper is decompressed to know it."""
        if self.header.magic < 2:
            return next(self.records(limit_bytes)).offset
        return self.header.base_offset

    def payload(self, limit_bytes: int = MAX_DECOMPRESSED_BATCH_BYTES) -> bytes:
        """The record bytes of a magic 2 batch, decompressed to at most `limit_bytes` (LOG-13)."""
        try:
            return decompress(self.header.codec, self.data[layout.HEADER_BYTES :], limit_bytes)
        except CorruptionError as error:
            raise CorruptionError(error.reason, position=self.position) from error

    def records(self, limit_bytes: int = MAX_DECOMPRESSED_BATCH_BYTES) -> Iterator[Record]:
        """The records, in order of their offsets. Raises `CorruptionError` on the way.

        Does not look at the checksum: `crc_ok` is the caller's choice.
        """
        if self.header.magic < 2:
            try:
                yield from legacy.records(self.header, self.data, limit_bytes)
            except CorruptionError as error:
                raise CorruptionError(error.reason, position=self.position) from error
            return
        header = self.header
        for fields in self.fields(limit_bytes):
            timestamp = header.base_timestamp + fields.timestamp_delta
            if header.is_log_append_time:
                timestamp = header.max_timestamp
            if abs(timestamp) > layout.INT64_MAX:
                raise CorruptionError("record timestamp out of range", position=self.position)
            sequence = header.base_sequence
            if sequence != layout.NO_SEQUENCE:
                sequence = layout.increment_sequence(sequence, fields.offset_delta)
            yield Record(
                header.base_offset + fields.offset_delta,
                timestamp,
                fields.key,
                fields.value,
                fields.headers,
                sequence,
            )

    def fields(self, limit_bytes: int = MAX_DECOMPRESSED_BATCH_BYTES) -> Iterator[RecordFields]:
        """The records of a magic 2 batch as stored, with deltas. Raises `CorruptionError`."""
        header = self.header
        if header.records_count == 0:
            # Kafka writes nothing after the header of an emptied batch, and looks at nothing.
            return
        payload = self.payload(limit_bytes)
        try:
            position = 0
            last_delta = -1
            for _ in range(header.records_count):
                fields, position = decode_record(payload, position)
                if not last_delta < fields.offset_delta <= header.last_offset_delta:
                    raise CorruptionError(f"offset delta {fields.offset_delta} is out of order")
                last_delta = fields.offset_delta
                yield fields
            if position != len(payload):
                raise CorruptionError(f"{len(payload) - position} bytes follow the last record")
        except CorruptionError as error:
            raise CorruptionError(error.reason, position=self.position) from error


def batches(buffer: Buffer) -> Iterator[Batch]:
    """The whole batches in `buffer`, which must stay unchanged while they are in use.

    Raises `CorruptionError` with the position (bytes from the start of `buffer`) of the batch whose
    length, magic, offset or counts are impossible. Checksums are the caller's business.
    """
    view = memoryview(buffer).cast("B")
    position = 0
    while len(view) - position >= layout.MIN_STEP_BYTES:
        _, length = _STEP.unpack_from(view, position)
        check_length(length, view[position + layout.MAGIC], position)
        end = position + layout.LOG_OVERHEAD + length
        if end > len(view):
            return
        data = view[position:end]
        yield Batch(_located_header(data, position), data, position)
        position = end


def decode_record(payload: bytes, position: int) -> tuple[RecordFields, int]:
    """The record of magic 2 at `position`, and the position after it. Raises `CorruptionError`."""
    size_bytes, start = decode_varint(payload, position)
    end = start + size_bytes
    if size_bytes < 0 or end > len(payload):
        raise CorruptionError(f"record of {size_bytes} bytes does not fit its batch")
    # The first byte holds attributes, of which none is in use.
    timestamp_delta, position = decode_varlong(payload, start + 1)
    offset_delta, position = decode_varint(payload, position)
    key, position = _decode_bytes(payload, position, end)
    value, position = _decode_bytes(payload, position, end)
    count, position = decode_varint(payload, position)
    headers: list[Header] = []
    if count != 0:
        if not 0 < count <= min(MAX_HEADERS_PER_RECORD, (end - position) // 2):
            raise CorruptionError(f"{count} headers do not fit their record")
        for _ in range(count):
            header_key, position = _decode_bytes(payload, position, end)
            header_value, position = _decode_bytes(payload, position, end)
            if header_key is None:
                raise CorruptionError("record header without a key")
            headers.append((header_key, header_value))
    if position != end:
        raise CorruptionError(
            f"record of {size_bytes} bytes has {position - start} bytes of fields"
        )
    return RecordFields(offset_delta, timestamp_delta, key, value, tuple(headers)), end


def _decode_bytes(payload: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size_bytes, start = decode_varint(payload, position)
    if size_bytes == -1:
        return None, start
    if size_bytes < 0 or start + size_bytes > end:
        raise CorruptionError(f"field of {size_bytes} bytes does not fit its record")
    return payload[start : start + size_bytes], start + size_bytes


def _located_header(data: memoryview, position: int) -> BatchHeader:
    try:
        return parse_header(data)
    except CorruptionError as error:
        raise CorruptionError(error.reason, position=position) from error
