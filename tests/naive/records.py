"""Record batches of message formats 0, 1 and 2: taken apart, and put together again.

A `Batch` is one entry of a `.log` file: in format 2 a record batch, in the older formats one
message, which may be a compressed wrapper around others. Timestamps are milliseconds; a record's
timestamp is absolute, and is the batch's if that is of log append time.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.naive import codecs
from tests.naive.crc32c import crc32c

_V2 = struct.Struct(">qiibIhiqqqhii")
_CODEC, _APPEND_TIME, _TRANSACTIONAL, _CONTROL, _HORIZON = 0x07, 0x08, 0x10, 0x20, 0x40
ABORT, COMMIT = 0, 1

Headers = tuple[tuple[bytes, "bytes | None"], ...]


@dataclass(frozen=True)
class Record:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True)
class Batch:
    """Header fields as they stand; `raw` is the whole entry. In format 0 and 1 the fields that do
    not exist are -1, and `base_timestamp` and `max_timestamp` are the message's timestamp."""

    magic: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    raw: bytes = field(repr=False)

    @property
    def codec(self) -> int:
        return self.attributes & _CODEC

    @property
    def append_time(self) -> bool:
        return self.magic > 0 and bool(self.attributes & _APPEND_TIME)

    @property
    def transactional(self) -> bool:
        return self.magic == 2 and bool(self.attributes & _TRANSACTIONAL)

    @property
    def control(self) -> bool:
        return self.magic == 2 and bool(self.attributes & _CONTROL)

    @property
    def horizon_ms(self) -> int | None:
        """The delete horizon, which lies in the base timestamp's place."""
        return self.base_timestamp if self.magic == 2 and self.attributes & _HORIZON else None

    @property
    def last_sequence(self) -> int:
        if self.base_sequence == -1:
            return -1
        sequence = self.base_sequence + self.last_offset - self.base_offset
        return sequence if sequence < 1 << 31 else sequence - (1 << 31)

    def records(self) -> list[Record]:
        return list(_records_v2(self) if self.magic == 2 else _records_legacy(self))

    def crc_ok(self) -> bool:
        return self.crc == (crc32c(self.raw[21:]) if self.magic == 2 else zlib.crc32(self.raw[16:]))

    def control_type(self) -> int | None:
        """ABORT, COMMIT or another number; None for a control batch without its record."""
        for record in self.records():
            version, kind = struct.unpack_from(">hh", record.key or b"")
            assert version >= 0
            return int(kind)
        return None


def parse_log(data: bytes) -> list[Batch]:
    """All whole entries of a `.log` file."""
    batches, position = [], 0
    while position + 12 <= len(data):
        (length,) = struct.unpack_from(">i", data, position + 8)
        if position + 12 + length > len(data):
            break
        raw = data[position : position + 12 + length]
        batches.append(_parse_v2(raw) if raw[16] == 2 else _parse_legacy(raw))
        position += len(raw)
    return batches


def _parse_v2(raw: bytes) -> Batch:
    base, _, epoch, magic, crc, attributes, delta, base_ts, max_ts, pid, pe, seq, count = (
        _V2.unpack_from(raw)
    )
    return Batch(
        magic, base, base + delta, epoch, crc, attributes, base_ts, max_ts, pid, pe, seq, count, raw
    )


def _parse_legacy(raw: bytes) -> Batch:
    offset, _, crc, magic, attributes = struct.unpack_from(">qiIbb", raw)
    timestamp = struct.unpack_from(">q", raw, 18)[0] if magic == 1 else -1
    return Batch(
        magic, offset, offset, -1, crc, attributes, timestamp, timestamp, -1, -1, -1, -1, raw
    )


def _records_v2(batch: Batch) -> Iterator[Record]:
    data = batch.raw[61:]
    if batch.codec:
        data = codecs.decompress(batch.codec, data)
    position = 0
    for _ in range(batch.count):
        _, position = _read_varint(data, position)
        position += 1  # the record's attributes, unused
        timestamp, position = _read_varint(data, position)
        offset, position = _read_varint(data, position)
        key, position = _read_sized(data, position)
        value, position = _read_sized(data, position)
        header_count, position = _read_varint(data, position)
        headers = []
        for _ in range(header_count):
            name, position = _read_sized(data, position)
            content, position = _read_sized(data, position)
            headers.append((name or b"", content))
        yield Record(
            batch.base_offset + offset,
            batch.max_timestamp if batch.append_time else batch.base_timestamp + timestamp,
            key,
            value,
            tuple(headers),
        )
    assert position == len(data), "bytes after the last record"


def _records_legacy(batch: Batch) -> Iterator[Record]:
    key, value = _legacy_body(batch)
    if not batch.codec:
        yield Record(batch.base_offset, batch.max_timestamp, key, value)
        return
    inner = parse_log(codecs.decompress(batch.codec, value or b""))
    # Format 1 numbers the inner messages from 0, and the wrapper has the last one's offset.
    shift = batch.last_offset - inner[-1].base_offset if batch.magic == 1 else 0
    for message in inner:
        timestamp = batch.max_timestamp if batch.append_time else message.max_timestamp
        yield Record(message.base_offset + shift, timestamp, *_legacy_body(message))


def _legacy_body(batch: Batch) -> tuple[bytes | None, bytes | None]:
    parts, position = [], 26 if batch.magic == 1 else 18
    for _ in range(2):
        (size,) = struct.unpack_from(">i", batch.raw, position)
        position += 4
        parts.append(None if size < 0 else batch.raw[position : position + size])
        position += max(size, 0)
    return parts[0], parts[1]


def build_v2(
    records: Sequence[Record],
    *,
    base_offset: int,
    last_offset: int,
    codec: int = codecs.NONE,
    leader_epoch: int = 0,
    append_time_ms: int | None = None,
    max_timestamp: int | None = None,
    horizon_ms: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """A batch of format 2. Without records it is a bare header of no codec, whose base timestamp
    is -1 and whose `max_timestamp` must be given."""
    attributes = codec if records else codecs.NONE
    attributes |= _APPEND_TIME if append_time_ms is not None else 0
    attributes |= _TRANSACTIONAL if transactional else 0
    attributes |= _CONTROL if control else 0
    attributes |= _HORIZON if horizon_ms is not None else 0
    base_timestamp = -1
    if horizon_ms is not None:
        base_timestamp = horizon_ms
    elif records:
        base_timestamp = records[0].timestamp
    if append_time_ms is not None:
        max_timestamp = append_time_ms
    elif records:
        max_timestamp = max(record.timestamp for record in records)
    assert max_timestamp is not None
    body = b"".join(_encode_record(record, base_offset, base_timestamp) for record in records)
    if records and codec:
        body = codecs.compress(codec, body)
    header = _V2.pack(
        base_offset,
        49 + len(body),
        leader_epoch,
        2,
        0,
        attributes,
        last_offset - base_offset,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    return header[:17] + struct.pack(">I", crc32c(header[21:] + body)) + header[21:] + body


def build_marker(
    kind: int,
    *,
    offset: int,
    timestamp: int,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int = 0,
    leader_epoch: int = 0,
) -> bytes:
    """The control batch that ends a transaction."""
    key = struct.pack(">hh", 0, kind)
    value = struct.pack(">hi", 0, coordinator_epoch)
    return build_v2(
        [Record(offset, timestamp, key, value)],
        base_offset=offset,
        last_offset=offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def build_legacy(
    records: Sequence[Record], *, magic: int, codec: int = codecs.NONE, append_time: bool = False
) -> bytes:
    """Messages of format 0 or 1: one entry each, or one compressed wrapper around them all."""
    attributes = _APPEND_TIME if append_time else 0
    if codec == codecs.NONE:
        return b"".join(
            _message(r.offset, magic, attributes, r.timestamp, r.key, r.value) for r in records
        )
    first = records[0].offset if magic == 1 else 0
    inner = b"".join(
        _message(r.offset - first, magic, attributes, r.timestamp, r.key, r.value) for r in records
    )
    return _message(
        records[-1].offset,
        magic,
        attributes | codec,
        max(record.timestamp for record in records),
        None,
        codecs.compress(codec, inner, magic=magic),
    )


def _message(
    offset: int, magic: int, attributes: int, ts: int, key: bytes | None, value: bytes | None
) -> bytes:
    body = struct.pack(">bb", magic, attributes)
    body += struct.pack(">q", ts) if magic == 1 else b""
    for part in (key, value):
        body += struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


def _encode_record(record: Record, base_offset: int, base_timestamp: int) -> bytes:
    body = b"\0" + _varint(record.timestamp - base_timestamp) + _varint(record.offset - base_offset)
    body += _sized(record.key) + _sized(record.value) + _varint(len(record.headers))
    for name, content in record.headers:
        body += _sized(name) + _sized(content)
    return _varint(len(body)) + body


def _varint(value: int) -> bytes:
    value = value * 2 if value >= 0 else -value * 2 - 1  # zigzag
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position


def _sized(part: bytes | None) -> bytes:
    return _varint(-1) if part is None else _varint(len(part)) + part


def _read_sized(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = _read_varint(data, position)
    if size < 0:
        return None, position
    return data[position : position + size], position + size
