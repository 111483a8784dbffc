"""Compression of record payloads: one file a codec, one table here (LOG-13).

The interface of every codec is the same pair of functions, `compress(data, level)` and
`decompress(data, limit_bytes)`; this registry picks the pair by the number in a batch's
attributes.

Invariants
- I1  `decompress` returns at most `limit_bytes` bytes or raises `CorruptionError`; a length
      that the data declares is held against the limit, and against what so few bytes can
      possibly unfold to, before anything of that length is allocated.
- I2  `decompress` accepts what Kafka accepts, and raises nothing but `CorruptionError` otherwise.
- I3  `compress` writes frames whose header flags are those that Kafka's own writers set.
- I4  gzip, lz4 and zstd work without the interpreter lock; contexts are reused by thread, never
      shared between threads.

Sources: KIP-110 (zstd), KIP-390 (levels), KIP-57 (the lz4 frame and its broken past).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from stratalog.base.errors import CorruptionError, UsageError
from stratalog.record.codec import gzip, lz4, snappy, zstd

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Codec(IntEnum):
    """The codec number of a batch's attributes, bits 0 to 2."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def of_attributes(cls, attributes: int) -> Codec:
        """The codec of a batch's attributes. Raises `CorruptionError` for the numbers 5 to 7."""
        number = attributes & 7
        if number > cls.ZSTD:
            raise CorruptionError(f"unknown compression codec {number}")
        return cls(number)


LEVELS: dict[Codec, tuple[int, int, int]] = {
    Codec.GZIP: (gzip.MIN_LEVEL, gzip.MAX_LEVEL, gzip.DEFAULT_LEVEL),
    Codec.LZ4: (lz4.MIN_LEVEL, lz4.MAX_LEVEL, lz4.DEFAULT_LEVEL),
    Codec.ZSTD: (zstd.MIN_LEVEL, zstd.MAX_LEVEL, zstd.DEFAULT_LEVEL),
}
"""Lowest, highest and default level of the codecs that have levels (KIP-390)."""


def compress(codec: Codec, data: Buffer, level: int | None = None, *, magic: int = 2) -> bytes:
    """`data` (contiguous bytes) as one compressed payload.

    `level=None` is the codec's default, which is what Kafka's cleaner uses. `magic` matters to lz4
    only: magic 0 has its own header checksum. Raises `UsageError` for a level out of range.
    """
    if level is not None and codec in LEVELS:
        lowest, highest, _ = LEVELS[codec]
        if not (lowest <= level <= highest or (codec is Codec.GZIP and level == -1)):
            raise UsageError(f"{codec.name.lower()} level {level} is not in {lowest}..{highest}")
    if codec == Codec.LZ4:
        return lz4.compress(data, level, broken_checksum=magic == 0)
    if codec == Codec.ZSTD:
        return zstd.compress(data, level)
    if codec == Codec.SNAPPY:
        return snappy.compress(data)
    if codec == Codec.GZIP:
        return gzip.compress(data, level)
    return bytes(data)


def decompress(codec: Codec, data: Buffer, limit_bytes: int, *, magic: int = 2) -> bytes:
    """The bytes that `data` (contiguous bytes of any buffer type) unfolds to.

    Raises `CorruptionError` (without a position) if the data is damaged or truncated, or would
    exceed `limit_bytes`. `magic` 0 admits lz4 frames with the header checksum of Kafka 0.8/0.9.
    """
    if codec == Codec.LZ4:
        return lz4.decompress(data, limit_bytes, any_checksum=magic == 0)
    if codec == Codec.ZSTD:
        return zstd.decompress(data, limit_bytes)
    if codec == Codec.SNAPPY:
        return snappy.decompress(data, limit_bytes)
    if codec == Codec.GZIP:
        return gzip.decompress(data, limit_bytes)
    content = memoryview(data)
    if content.nbytes > limit_bytes:
        raise CorruptionError(f"{content.nbytes} bytes exceed the limit of {limit_bytes} bytes")
    return bytes(content)
