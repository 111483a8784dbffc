"""The four codecs in the framings that Kafka uses. Whole buffers, no limits: test data is honest.

snappy is either one raw block or the stream of java's snappy library: a 16-byte header, then
blocks of a 4-byte size and raw snappy data. Kafka's lz4 frames of message format 0 carry a header
checksum over the wrong bytes (the frame's magic number is included), so frames are taken apart
by hand and the checksum is not looked at.
"""

from __future__ import annotations

import struct
import zlib

import cramjam
import lz4.block
import lz4.frame
import zstandard

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

_SNAPPY_STREAM = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_SNAPPY_BLOCK = 32 * 1024
_LZ4_BLOCK_BYTES = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
_PRIMES = (2654435761, 2246822519, 3266489917, 668265263, 374761393)


def compress(codec: int, data: bytes, *, magic: int = 2) -> bytes:
    if codec == GZIP:
        deflate = zlib.compressobj(wbits=31)
        return bytes(deflate.compress(data) + deflate.flush())
    if codec == SNAPPY:
        out = _SNAPPY_STREAM
        for start in range(0, len(data), _SNAPPY_BLOCK):
            block = bytes(cramjam.snappy.compress_raw(data[start : start + _SNAPPY_BLOCK]))
            out += struct.pack(">i", len(block)) + block
        return out
    if codec == LZ4:
        frame = lz4.frame.compress(
            data, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False, store_size=False
        )
        if magic == 0:
            frame = frame[:6] + bytes([lz4_header_checksum(frame[:6])]) + frame[7:]
        return bytes(frame)
    if codec == ZSTD:
        return bytes(zstandard.ZstdCompressor(write_content_size=False).compress(data))
    raise ValueError(f"codec {codec}")


def decompress(codec: int, data: bytes) -> bytes:
    if codec == GZIP:
        return zlib.decompress(data, wbits=31)
    if codec == SNAPPY:
        return _unsnappy(data)
    if codec == LZ4:
        return _unlz4(data)
    if codec == ZSTD:
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    raise ValueError(f"codec {codec}")


def _unsnappy(data: bytes) -> bytes:
    if not data.startswith(_SNAPPY_STREAM[:8]):
        return bytes(cramjam.snappy.decompress_raw(data))
    out, position = b"", 16
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        out += bytes(cramjam.snappy.decompress_raw(data[position + 4 : position + 4 + size]))
        position += 4 + size
    return out


def _unlz4(data: bytes) -> bytes:
    magic, flags, descriptor = struct.unpack_from("<IBB", data)
    assert (magic, flags & 0xE0) == (0x184D2204, 0x60), "version 1, independent blocks"
    block_bytes = _LZ4_BLOCK_BYTES[(descriptor >> 4) & 7]
    out, position = b"", 7 + (8 if flags & 0x08 else 0)
    while True:
        (size,) = struct.unpack_from("<I", data, position)
        position += 4
        if size == 0:
            return out
        stored, size = size & 0x80000000, size & 0x7FFFFFFF
        block = data[position : position + size]
        out += block if stored else lz4.block.decompress(block, uncompressed_size=block_bytes)
        position += size + (4 if flags & 0x10 else 0)


def lz4_header_checksum(data: bytes) -> int:
    """Of a frame's descriptor; Kafka's format 0 took the magic number before it in."""
    return (_xxh32_short(data) >> 8) & 0xFF


def _xxh32_short(data: bytes) -> int:
    """xxHash32 with seed 0 of fewer than 16 bytes."""

    def rotate(value: int, bits: int) -> int:
        value &= 0xFFFFFFFF
        return ((value << bits) | (value >> (32 - bits))) & 0xFFFFFFFF

    p1, p2, p3, p4, p5 = _PRIMES
    h = (p5 + len(data)) & 0xFFFFFFFF
    whole = len(data) - len(data) % 4
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        h = rotate(h + word * p3, 17) * p4 & 0xFFFFFFFF
    for byte in data[whole:]:
        h = rotate(h + byte * p5, 11) * p1 & 0xFFFFFFFF
    h = ((h ^ (h >> 15)) * p2) & 0xFFFFFFFF
    h = ((h ^ (h >> 13)) * p3) & 0xFFFFFFFF
    return h ^ (h >> 16)
