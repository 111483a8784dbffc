"""How far a `.log` file can be believed, one batch after another."""

from __future__ import annotations

import struct
import zlib

from tests.naive.crc32c import crc32c


def sound_prefix(data: bytes, base: int, limit: int) -> tuple[int, int]:
    """(bytes that are sound, offset after them): whole entries of magic 0 to 2 with the right
    checksum, offsets growing from `base` on and below `limit`."""
    position, next_offset = 0, base
    while len(data) - position > 16:
        offset, length = struct.unpack_from(">qi", data, position)
        entry = data[position : position + 12 + max(length, 0)]
        magic = entry[16] if len(entry) > 16 else 255
        least = {0: 14, 1: 22, 2: 49}.get(magic)
        if least is None or length < least or len(entry) < 12 + length:
            break
        if magic == 2:
            crc, _, delta = struct.unpack_from(">IHi", entry, 17)
            is_right = crc == crc32c(entry[21:])
        else:
            (crc,), delta = struct.unpack_from(">I", entry, 12), 0
            is_right = crc == zlib.crc32(entry[16:])
        if not is_right or delta < 0 or offset < next_offset or offset + delta >= limit:
            break
        next_offset = offset + delta + 1
        position += len(entry)
    return position, next_offset
