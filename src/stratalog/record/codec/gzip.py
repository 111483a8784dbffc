"""gzip (codec 1), by the standard library's zlib.

Kafka writes one member with the ten header bytes that Java writes; readers of Java take several
members one after another, and so does this one.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from stratalog.base.errors import CorruptionError

if TYPE_CHECKING:
    from typing_extensions import Buffer

MIN_LEVEL: Final = 1
MAX_LEVEL: Final = 9
DEFAULT_LEVEL: Final = 6
"""What zlib makes of -1, Kafka's default."""

_HEADER: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""No flags, time or extra flags, operating system unknown: what Java 16 and later write."""

_MIN_MEMBER_BYTES: Final = 18
_RAW_DEFLATE: Final = -15
_GZIP_MEMBER: Final = 31


def compress(data: Buffer, level: int | None) -> bytes:
    """One gzip member."""
    content = memoryview(data).cast("B")
    deflate = zlib.compressobj(
        DEFAULT_LEVEL if level is None else level, zlib.DEFLATED, _RAW_DEFLATE
    )
    body = deflate.compress(content) + deflate.flush()
    trailer = zlib.crc32(content).to_bytes(4, "little")
    trailer += (len(content) & 0xFFFFFFFF).to_bytes(4, "little")
    return _HEADER + body + trailer


def decompress(data: Buffer, limit_bytes: int) -> bytes:
    """All members. Raises `CorruptionError`; zlib grows its buffer as it goes, up to the limit."""
    view = memoryview(data).cast("B")
    if len(view) >= _MIN_MEMBER_BYTES and int.from_bytes(view[-4:], "little") > limit_bytes:
        # The last member's size (modulo 2^32): an honest bomb is refused before it unfolds.
        raise CorruptionError(f"gzip data unfolds to more than {limit_bytes} bytes")
    rest: Buffer = view
    content = b""
    while True:
        member = zlib.decompressobj(_GZIP_MEMBER)
        try:
            # One byte more than allowed tells "full" from "too much"; 0 would mean "no limit".
            content += member.decompress(rest, limit_bytes - len(content) + 1)
        except zlib.error as error:
            raise CorruptionError(f"gzip data is damaged: {error}") from error
        if len(content) > limit_bytes:
            raise CorruptionError(f"gzip data unfolds to more than {limit_bytes} bytes")
        if not member.eof:
            raise CorruptionError("gzip data is truncated")
        rest = member.unused_data
        if not rest:
            return content
