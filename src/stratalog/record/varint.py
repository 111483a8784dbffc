"""Variable-length integers: zigzag, then seven bits a byte, lowest first (protobuf's sint).

    value            0   -1    1   -2   ...
    zigzag           0    1    2    3   ...   (value << 1) ^ (value >> 63)
    bytes           00   01   02   03   ...   bit 7 of a byte: another one follows

Invariants
- I1  A varint takes 1 to 5 bytes and holds an int32, a varlong 1 to 10 bytes and an int64; anything
      else is `CorruptionError`. Encodings longer than needed are accepted, as Kafka accepts them.
- I2  `decode_*` never reads past the end of its buffer.

One byte is by far the commonest length, so it is decoded before anything else is looked at.

Source: Kafka's ByteUtils; KIP-98.
"""

from __future__ import annotations

from stratalog.base.errors import CorruptionError
from stratalog.record.layout import INT32_MAX, INT64_MAX

_UINT32_MAX = (1 << 32) - 1
_UINT64_MAX = (1 << 64) - 1


def encode_varint(value: int) -> bytes:
    """An int32 as 1 to 5 bytes. `OverflowError` outside its range: a caller's bug."""
    if not -INT32_MAX - 1 <= value <= INT32_MAX:
        raise OverflowError(f"{value} is not an int32")
    return _encode_unsigned((value << 1) ^ (value >> 31))


def encode_varlong(value: int) -> bytes:
    """An int64 as 1 to 10 bytes. `OverflowError` outside its range: a caller's bug."""
    if not -INT64_MAX - 1 <= value <= INT64_MAX:
        raise OverflowError(f"{value} is not an int64")
    return _encode_unsigned((value << 1) ^ (value >> 63))


def decode_varint(buffer: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """The int32 at `position`, and the position after it. Raises `CorruptionError`."""
    if position < len(buffer) and (byte := buffer[position]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    return _decode(buffer, position, 5, _UINT32_MAX)


def decode_varlong(buffer: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """The int64 at `position`, and the position after it. Raises `CorruptionError`."""
    if position < len(buffer) and (byte := buffer[position]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    return _decode(buffer, position, 10, _UINT64_MAX)


def size_of_varint(value: int) -> int:
    """Bytes that `encode_varint` makes of an int32, which are also those of `encode_varlong`."""
    zigzag = (value << 1) ^ (value >> 63)
    return max(1, (zigzag.bit_length() + 6) // 7)


size_of_varlong = size_of_varint
"""The same for an int64: both encodings are the same but for their ranges."""


def _encode_unsigned(zigzag: int) -> bytes:
    encoded = bytearray()
    while zigzag > 0x7F:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


def _decode(
    buffer: bytes | bytearray | memoryview, position: int, max_bytes: int, max_zigzag: int
) -> tuple[int, int]:
    start = position
    end = min(len(buffer), start + max_bytes)
    zigzag = shift = 0
    while position < end:
        byte = buffer[position]
        position += 1
        zigzag |= (byte & 0x7F) << shift
        if byte < 0x80:
            if zigzag > max_zigzag:
                break
            return (zigzag >> 1) ^ -(zigzag & 1), position
        shift += 7
    reason = "is truncated" if end == len(buffer) else "is too long"
    raise CorruptionError(f"variable-length integer {reason}", position=start)
