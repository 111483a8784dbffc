"""lz4 (codec 3): frames of independent blocks, by the lz4 package, without the interpreter lock.

    frame   := magic:04 22 4d 18  flags  block-size  [content-size:8]  header-checksum  block* end
    block   := size:int32 (bit 31: stored as it is)  bytes[size]  [checksum:4]
    end     := 00 00 00 00  [content-checksum:4]

Integers are little-endian. Kafka writes flags 0x60 (version 1, independent blocks, neither
checksums nor content size) and blocks of 64 KiB (0x40), and refuses linked blocks. Such plain
frames are taken apart here, because one call of the block decoder, bounded by the block's size, is
faster for batches of common size than the library's frame decoder and allocates no more than it;
frames with checksums go to the library, which verifies them.

Kafka 0.8 and 0.9 computed the header checksum of magic 0 over the frame's magic number too; data of
magic 0 may carry either checksum and is written with the old one (KIP-57).
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import lz4.block
import lz4.frame

from stratalog.base.errors import CorruptionError

if TYPE_CHECKING:
    from typing_extensions import Buffer

MIN_LEVEL: Final = 1
MAX_LEVEL: Final = 17
DEFAULT_LEVEL: Final = 9
"""As in Kafka, the default level stands for the fast compressor, others for the thorough one."""

_MAGIC: Final = b"\x04\x22\x4d\x18"
_DESCRIPTOR: Final = b"\x60\x40"
_KAFKA_HEADER: Final = _MAGIC + _DESCRIPTOR + b"\x82"
"""What nearly every frame starts with: recognised whole, to save a few microseconds a batch."""
_BLOCK_BYTES: Final = 64 << 10
_WORD: Final = struct.Struct("<I")
_END: Final = b"\x00\x00\x00\x00"
_STORED: Final = 1 << 31
_MAX_LIBRARY_LEVEL: Final = 12
_MAX_EXPANSION: Final = 255
"""A byte of a length extension yields 255 bytes; nothing in a block yields more."""

_VERSION_MASK, _VERSION = 0xC0, 0x40
_INDEPENDENT, _BLOCK_CHECKSUM, _CONTENT_SIZE, _CONTENT_CHECKSUM = 0x20, 0x10, 0x08, 0x04
_RESERVED: Final = 0x03


def compress(data: Buffer, level: int | None, *, broken_checksum: bool = False) -> bytes:
    """One frame as Kafka writes it; a block that does not shrink is stored."""
    content = memoryview(data).cast("B")
    if level is None or level == DEFAULT_LEVEL:
        # The library's frames of this kind hold LZ4_compress_default's blocks: Kafka's own bytes.
        # lz4.block.compress would use the smaller table that is meant for streams.
        body: bytes = lz4.frame.compress(
            content,
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            store_size=False,
        )
        if not broken_checksum:
            return body
        body = body[len(_KAFKA_HEADER) :]
    else:
        body = b"".join(_thorough_blocks(content, min(level, _MAX_LIBRARY_LEVEL)))
    return _MAGIC + _DESCRIPTOR + _header_checksum(_DESCRIPTOR, broken_checksum) + body


def _thorough_blocks(content: memoryview, level: int) -> Iterator[bytes]:
    for start in range(0, len(content), _BLOCK_BYTES):
        block = content[start : start + _BLOCK_BYTES]
        packed = lz4.block.compress(
            block, mode="high_compression", compression=level, store_size=False
        )
        if len(packed) < len(block):
            yield len(packed).to_bytes(4, "little") + packed
        else:
            yield (len(block) | _STORED).to_bytes(4, "little") + bytes(block)
    yield _END


def decompress(data: Buffer, limit_bytes: int, *, any_checksum: bool = False) -> bytes:
    """The content of one frame. Raises `CorruptionError`."""
    view = memoryview(data).cast("B")
    if bytes(view[: len(_KAFKA_HEADER)]) == _KAFKA_HEADER:
        flags, block_bytes, position = _DESCRIPTOR[0], _BLOCK_BYTES, len(_KAFKA_HEADER)
    else:
        flags, block_bytes, position = _parse_header(view, any_checksum)
    blocks = _find_blocks(view, flags, position)
    if flags & (_BLOCK_CHECKSUM | _CONTENT_CHECKSUM):
        # Stored or not, no block holds more than this; the library allocates what it is told.
        bound_bytes = sum(
            min(block_bytes, _MAX_EXPANSION * (end - start)) for start, end, _ in blocks
        )
        return _decompress_checked(view, position, min(bound_bytes, limit_bytes))
    parts: list[bytes] = []
    total_bytes = 0
    for start, end, is_stored in blocks:
        room_bytes = limit_bytes - total_bytes
        if room_bytes <= 0:
            raise CorruptionError(f"lz4 data unfolds to more than {limit_bytes} bytes")
        part = _decompress_block(view[start:end], is_stored, min(block_bytes, room_bytes))
        total_bytes += len(part)
        parts.append(part)
    if flags & _CONTENT_SIZE and int.from_bytes(view[6:14], "little") != total_bytes:
        raise CorruptionError(f"lz4 frame unfolds to {total_bytes} bytes, says otherwise")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _find_blocks(view: memoryview, flags: int, position: int) -> list[tuple[int, int, bool]]:
    """Start, end and stored-or-not of each block; the frame must end where the data ends."""
    block_checksum_bytes = 4 if flags & _BLOCK_CHECKSUM else 0
    size_bytes = len(view)
    blocks = []
    while True:
        start = position + 4
        if start > size_bytes:
            raise CorruptionError("lz4 data is truncated")
        (word,) = _WORD.unpack_from(view, position)
        end = start + (word & ~_STORED)
        if end > size_bytes:
            raise CorruptionError("lz4 data is truncated")
        if word == 0:
            break
        blocks.append((start, end, word >= _STORED))
        position = end + block_checksum_bytes
    end = start + (4 if flags & _CONTENT_CHECKSUM else 0)
    if end != size_bytes:
        raise CorruptionError("lz4 data is truncated, or something follows its frame")
    return blocks


def _decompress_block(block: memoryview, is_stored: bool, room_bytes: int) -> bytes:
    if is_stored:
        if len(block) > room_bytes:
            raise CorruptionError(f"lz4 block of {len(block)} bytes exceeds its limit")
        return bytes(block)
    bound_bytes = min(room_bytes, _MAX_EXPANSION * len(block))
    try:
        content: bytes = lz4.block.decompress(block, uncompressed_size=bound_bytes)
        return content
    except (lz4.block.LZ4BlockError, ValueError) as error:
        raise CorruptionError(
            f"lz4 block is damaged or unfolds to more than {bound_bytes} bytes"
        ) from error


def _parse_header(view: memoryview, any_checksum: bool) -> tuple[int, int, int]:
    """Flags, largest block in bytes, and where the first block starts."""
    if len(view) < 7 or bytes(view[:4]) != _MAGIC:
        raise CorruptionError("not an lz4 frame")
    flags, block_descriptor = view[4], view[5]
    if flags & _VERSION_MASK != _VERSION or flags & _RESERVED or not flags & _INDEPENDENT:
        raise CorruptionError(f"lz4 frame flags {flags:#04x} are not supported")
    if block_descriptor & 0x8F or block_descriptor < 0x40:
        raise CorruptionError(f"lz4 block descriptor {block_descriptor:#04x} is not supported")
    position = 14 if flags & _CONTENT_SIZE else 6
    if len(view) <= position:
        raise CorruptionError("lz4 data is truncated")
    if not any_checksum:
        checksum = _header_checksum(bytes(view[4:position]), False)
        if bytes(view[position : position + 1]) != checksum:
            raise CorruptionError("lz4 frame header fails its checksum")
    return flags, 1 << (2 * (block_descriptor >> 4) + 8), position + 1


def _decompress_checked(view: memoryview, position: int, limit_bytes: int) -> bytes:
    header = bytes(view[: position - 1]) + _header_checksum(bytes(view[4 : position - 1]), False)
    decoder = lz4.frame.LZ4FrameDecompressor()
    try:
        content: bytes = decoder.decompress(header, max_length=limit_bytes + 1)
        content += decoder.decompress(view[position:], max_length=limit_bytes + 1)
    except (RuntimeError, EOFError, ValueError) as error:
        raise CorruptionError(f"lz4 data is damaged: {error}") from error
    if len(content) > limit_bytes or not decoder.eof:
        raise CorruptionError(f"lz4 data is damaged or unfolds to more than {limit_bytes} bytes")
    return content


@functools.lru_cache(maxsize=64)
def _header_checksum(descriptor: bytes, is_broken: bool) -> bytes:
    digest = _xxh32(_MAGIC + descriptor if is_broken else descriptor)
    return bytes([digest >> 8 & 0xFF])


def _xxh32(data: bytes) -> int:
    """xxHash-32 with seed 0 of fewer than 16 bytes, which is all that a header checksum covers."""
    assert len(data) < 16
    mask = 0xFFFFFFFF
    prime_1, prime_2, prime_3, prime_4, prime_5 = (
        0x9E3779B1,
        0x85EBCA77,
        0xC2B2AE3D,
        0x27D4EB2F,
        0x165667B1,
    )
    value = (prime_5 + len(data)) & mask
    position = 0
    while position + 4 <= len(data):
        word = int.from_bytes(data[position : position + 4], "little")
        value = (value + word * prime_3) & mask
        value = ((value << 17 | value >> 15) * prime_4) & mask
        position += 4
    for byte in data[position:]:
        value = (value + byte * prime_5) & mask
        value = ((value << 11 | value >> 21) & mask) * prime_1 & mask
    value = (value ^ value >> 15) * prime_2 & mask
    value = (value ^ value >> 13) * prime_3 & mask
    return value ^ value >> 16
