"""Bytes that no honest writer makes, with the checksum right where it must not be what tells."""

from __future__ import annotations

import struct

import google_crc32c

from tests.naive import codecs

_HEADER = struct.Struct(">qiibIhiqqqhii")


def raw_batch(
    payload: bytes,
    *,
    count: int = 1,
    last_delta: int | None = None,
    base_offset: int = 0,
    length: int | None = None,
    magic: int = 2,
    attributes: int = 0,
    producer_id: int = -1,
) -> bytes:
    """A batch of format 2 of any content, its CRC-32C right. A codec in `attributes` packs it."""
    codec = attributes & 7
    if codec in (codecs.GZIP, codecs.SNAPPY, codecs.LZ4, codecs.ZSTD):
        payload = codecs.compress(codec, payload)
    return sealed(
        _HEADER.pack(
            base_offset,
            49 + len(payload) if length is None else length,
            0,
            magic,
            0,
            attributes,
            count - 1 if last_delta is None else last_delta,
            0,
            0,
            producer_id,
            -1,
            -1,
            count,
        )
        + payload
    )


def sealed(batch: bytes) -> bytes:
    """The same with its CRC-32C made right."""
    return batch[:17] + struct.pack(">I", google_crc32c.value(batch[21:])) + batch[21:]


def varint(value: int) -> bytes:
    """Zigzag; any size."""
    value = value * 2 if value >= 0 else -value * 2 - 1
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def raw_record(
    *,
    length: bytes | None = None,
    timestamp_delta: bytes = b"\0",
    offset_delta: bytes = b"\0",
    key_size: bytes = varint(1),
    key: bytes = b"k",
    value_size: bytes = varint(1),
    value: bytes = b"v",
    headers: bytes = b"\0",
) -> bytes:
    """A record of any content; sizes and deltas as they are to lie there."""
    body = b"\0" + timestamp_delta + offset_delta + key_size + key + value_size + value + headers
    return (varint(len(body)) if length is None else length) + body
