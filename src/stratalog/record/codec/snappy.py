"""snappy (codec 2), by cramjam, in the framing of the Java library xerial/snappy-java.

    framed  := header block*
    header  := 82 53 4e 41 50 50 59 00 (0x82 "SNAPPY" 0)  version:int32=1  compatible:int32=1
    block   := size:int32  raw-snappy[size]

Integers are big-endian. Kafka writes blocks of 32 KiB of content. A payload that does not start
with the magic is taken as one raw snappy block, and a header may reappear where a block could
start (concatenated streams); Java's reader allows both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import cramjam

from stratalog.base.errors import CorruptionError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MAGIC: Final = b"\x82SNAPPY\x00"
_HEADER: Final = _MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_BLOCK_BYTES: Final = 32 << 10

_MAX_EXPANSION: Final = 22
"""The densest element of a raw block is a three-byte copy that yields 64 bytes."""


def compress(data: Buffer) -> bytes:
    """The framed form; snappy has no levels."""
    content = memoryview(data).cast("B")
    parts = [_HEADER]
    for start in range(0, len(content), _BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(content[start : start + _BLOCK_BYTES]))
        parts += [len(block).to_bytes(4, "big"), block]
    return b"".join(parts)


def decompress(data: Buffer, limit_bytes: int) -> bytes:
    """The content of the framed form, or of one raw block. Raises `CorruptionError`."""
    view = memoryview(data).cast("B")
    if len(view) < len(_HEADER) or not _is_magic(view, 0):
        return _decompress_raw(view, limit_bytes)
    parts: list[bytes] = []
    total_bytes = 0
    position = len(_HEADER)
    while position < len(view):
        if _is_magic(view, position):
            position += len(_HEADER)
            continue
        start = position + 4
        size_bytes = int.from_bytes(view[position:start], "big", signed=True)
        if size_bytes < 0 or size_bytes > len(view) - start:
            raise CorruptionError(f"snappy block of {size_bytes} bytes does not fit its frame")
        position = start + size_bytes
        parts.append(_decompress_raw(view[start:position], limit_bytes - total_bytes))
        total_bytes += len(parts[-1])
    if position > len(view):
        raise CorruptionError("snappy frame header is truncated")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _is_magic(view: memoryview, position: int) -> bool:
    return bytes(view[position : position + len(_MAGIC)]) == _MAGIC


def _decompress_raw(block: memoryview, limit_bytes: int) -> bytes:
    # The declared length is read here, because the library allocates whatever it says.
    size_bytes = 0
    for index in range(min(5, len(block))):
        size_bytes |= (block[index] & 0x7F) << (7 * index)
        if block[index] < 0x80:
            break
    else:
        raise CorruptionError("snappy block has no valid length")
    if size_bytes > limit_bytes:
        raise CorruptionError(f"snappy block of {size_bytes} bytes exceeds the limit")
    if size_bytes > _MAX_EXPANSION * len(block):
        raise CorruptionError(f"{len(block)} bytes of snappy cannot unfold to {size_bytes}")
    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptionError(f"snappy data is damaged: {error}") from error
