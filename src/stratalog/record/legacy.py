"""Messages of magic 0 and 1, as Kafka wrote them before 0.11: read, and cleaned (LOG-4).

    message := offset:int64  size:int32  crc:uint32  magic:int8  attributes:int8
               [timestamp:int64]  key-size:int32  key  value-size:int32  value
    wrapper := message whose attributes name a codec; its value is compressed message*

The timestamp is there in magic 1 only; a size of -1 is null. The CRC-32 covers magic to the end.

Invariants
- I1  A wrapper's stored offset is that of its last message. Messages inside have their own offset
      in magic 0, and in magic 1 the distance to the first one: absolute = stored offset - last
      inner + inner.
- I2  Messages inside are of the wrapper's magic, not compressed again, and their offsets increase.
- I3  A LogAppendTime wrapper's timestamp is that of every message inside (KIP-32).
- I4  `rebuild(wrapper, all its records)` has the records, offset and timestamp of the wrapper.

Sources: Kafka's LegacyRecord, AbstractLegacyRecordBatch, MemoryRecordsBuilder; KIP-31, KIP-32.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from stratalog.base.errors import CorruptionError, UsageError
from stratalog.record import layout
from stratalog.record.codec import Codec, compress, decompress
from stratalog.record.values import BatchHeader, Record, parse_header

if TYPE_CHECKING:
    from stratalog.record.batch import Batch

_INT32 = struct.Struct(">i")


def crc_ok(header: BatchHeader, data: memoryview) -> bool:
    """Whether the CRC-32 of the message `data` is the stored one."""
    return zlib.crc32(data[layout.MAGIC :]) == header.crc


def records(header: BatchHeader, data: memoryview, limit_bytes: int) -> Iterator[Record]:
    """The records of one message, or of a wrapper that unfolds to at most `limit_bytes` (LOG-13).

    Raises `CorruptionError` without a position. The checksums of the messages inside a wrapper are
    checked, as Kafka's consumers do; that of `data` itself is the caller's choice.
    """
    key, value = _key_and_value(header.magic, data)
    if header.codec is Codec.NONE:
        yield Record(header.base_offset, header.max_timestamp, key, value)
        return
    if value is None:
        raise CorruptionError("compressed wrapper message without a value")
    content = decompress(header.codec, value, limit_bytes, magic=header.magic)
    messages = list(_messages(content, header.magic))
    if not messages:
        raise CorruptionError("compressed wrapper message holds no messages")
    shift = header.base_offset - messages[-1][0].base_offset if header.magic == 1 else 0
    before = -1
    for inner, message in messages:
        offset = inner.base_offset + shift
        if not before < offset <= header.base_offset:
            raise CorruptionError(f"inner message offset {offset} is out of order")
        before = offset
        timestamp = header.max_timestamp if header.is_log_append_time else inner.max_timestamp
        key, value = _key_and_value(inner.magic, message)
        yield Record(offset, timestamp, key, value)


def build_message(
    magic: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    *,
    timestamp: int = layout.NO_TIMESTAMP,
    attributes: int = 0,
) -> bytes:
    """One message of `magic` 0 or 1; magic 0 has no room for a timestamp and drops it."""
    _check_magic(magic)
    body = struct.pack(">bb", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", timestamp)
    body += _encode_bytes(key) + _encode_bytes(value)
    crc = zlib.crc32(body)
    return struct.pack(">qiI", offset, len(body) + 4, crc) + body


def build_wrapper(
    magic: int,
    codec: Codec,
    contents: Sequence[Record],
    *,
    level: int | None = None,
    log_append_time_ms: int | None = None,
) -> bytes:
    """`contents` (at least one, offsets increasing) in one compressed wrapper of `magic` 0 or 1.

    The bytes inside, the offset and the timestamp are those Kafka's builder writes: offsets inside
    count from the first record (magic 1); the timestamp is the largest, or `log_append_time_ms`,
    which is then every record's; magic 0 has neither.
    Raises `UsageError` if there is nothing to wrap, no codec, headers, or another magic.
    """
    _check_magic(magic)
    if not contents or codec is Codec.NONE or any(record.headers for record in contents):
        raise UsageError("a wrapper takes a codec and at least one record, none with headers")
    if magic == 0:
        log_append_time_ms = None
    type_bit = 0 if log_append_time_ms is None else layout.TIMESTAMP_TYPE_MASK
    first_offset = contents[0].offset if magic == 1 else 0
    inner = b"".join(
        build_message(
            magic,
            record.offset - first_offset,
            record.key,
            record.value,
            timestamp=record.timestamp if log_append_time_ms is None else log_append_time_ms,
            attributes=type_bit,
        )
        for record in contents
    )
    timestamp = max(record.timestamp for record in contents)
    return build_message(
        magic,
        contents[-1].offset,
        None,
        compress(codec, inner, level, magic=magic),
        timestamp=timestamp if log_append_time_ms is None else log_append_time_ms,
        attributes=codec | type_bit,
    )


def rebuild(wrapper: Batch, retained: Sequence[Record]) -> bytes:
    """A compressed wrapper that holds only `retained` of its records, as Kafka's cleaner writes it.

    Same magic and codec (at its default level), offset = the last retained one's, timestamp = the
    largest retained (CreateTime) or the wrapper's own (LogAppendTime). With nothing retained the
    wrapper is dropped: that is the caller's decision, here a `UsageError`.
    """
    header = wrapper.header
    append_time_ms = header.max_timestamp if header.is_log_append_time else None
    return build_wrapper(header.magic, header.codec, retained, log_append_time_ms=append_time_ms)


def _messages(content: bytes, magic: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    view = memoryview(content)
    position = 0
    while position < len(view):
        if view[position + layout.MAGIC : position + layout.MAGIC + 1] != bytes([magic]):
            raise CorruptionError(f"inner message is not of its wrapper's magic {magic}")
        inner = parse_header(view, position)
        end = position + inner.size_bytes
        if end > len(view):
            raise CorruptionError(f"inner message of {inner.size_bytes} bytes is truncated")
        message = view[position:end]
        if inner.codec is not Codec.NONE:
            raise CorruptionError("inner message is compressed again")
        if not crc_ok(inner, message):
            raise CorruptionError("inner message fails its checksum")
        yield inner, message
        position = end


def _key_and_value(magic: int, data: memoryview) -> tuple[bytes | None, bytes | None]:
    key, position = _decode_bytes(data, layout.LEGACY_KEY_LENGTH[magic])
    value, position = _decode_bytes(data, position)
    if position != len(data):
        raise CorruptionError(f"message of {len(data)} bytes has fields of {position} bytes")
    return key, value


def _decode_bytes(data: memoryview, position: int) -> tuple[bytes | None, int]:
    start = position + _INT32.size
    if start > len(data):
        raise CorruptionError("message is truncated")
    (size_bytes,) = _INT32.unpack_from(data, position)
    if size_bytes == -1:
        return None, start
    if not 0 <= size_bytes <= len(data) - start:
        raise CorruptionError(f"field of {size_bytes} bytes does not fit its message")
    return bytes(data[start : start + size_bytes]), start + size_bytes


def _encode_bytes(content: bytes | None) -> bytes:
    return _INT32.pack(-1) if content is None else _INT32.pack(len(content)) + content


def _check_magic(magic: int) -> None:
    if magic not in layout.LEGACY_MAGICS:
        raise UsageError(f"magic {magic} is not a legacy message format")
