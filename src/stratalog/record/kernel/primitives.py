"""What every kernel is made of: unaligned loads and stores, varints, CRC-32C, SipHash-2-4-128.

Each function here exists as compiled code and as plain Python (K1). The compiled CRC uses the
processor's instruction on x86-64, three streams at a time because the instruction takes three
cycles and one can start in each; elsewhere it walks a table. In Python a library does it.
"""

from __future__ import annotations

import platform
from typing import Any

import google_crc32c
import numpy as np

from stratalog.record.kernel.compile import cached, inlined, intrinsic, stands_for

HAS_CRC_INSTRUCTION = platform.machine() in ("x86_64", "AMD64")


# ---------------------------------------------------------------- loads and stores


@intrinsic("loading", 64, "little")
def load_u64_le(buffer: Any, position: int) -> np.uint64:
    return np.uint64(int.from_bytes(bytes(buffer[position : position + 8]), "little"))


@intrinsic("loading", 64, "big")
def _load_u64_be(buffer: Any, position: int) -> np.uint64:
    return np.uint64(int.from_bytes(bytes(buffer[position : position + 8]), "big"))


@intrinsic("loading", 32, "big")
def _load_u32_be(buffer: Any, position: int) -> np.uint32:
    return np.uint32(int.from_bytes(bytes(buffer[position : position + 4]), "big"))


@intrinsic("loading", 16, "big")
def _load_u16_be(buffer: Any, position: int) -> np.uint16:
    return np.uint16(int.from_bytes(bytes(buffer[position : position + 2]), "big"))


def _store(buffer: Any, position: int, value: int, size: int) -> None:
    encoded = (int(value) & ((1 << (8 * size)) - 1)).to_bytes(size, "big")
    buffer[position : position + size] = np.frombuffer(encoded, np.uint8)


@intrinsic("storing", 64, "big")
def _store_u64_be(buffer: Any, position: int, value: Any) -> None:
    _store(buffer, position, value, 8)


@intrinsic("storing", 32, "big")
def _store_u32_be(buffer: Any, position: int, value: Any) -> None:
    _store(buffer, position, value, 4)


@intrinsic("storing", 16, "big")
def _store_u16_be(buffer: Any, position: int, value: Any) -> None:
    _store(buffer, position, value, 2)


@intrinsic("copying")
def copy_bytes(target: Any, target_at: Any, source: Any, source_at: Any, size: Any) -> None:
    target[target_at : target_at + size] = source[source_at : source_at + size]


@inlined
def load_i64(buffer: Any, position: int) -> Any:
    """A big-endian signed 64-bit integer, as int64."""
    return np.int64(_load_u64_be(buffer, position))


@inlined
def load_i32(buffer: Any, position: int) -> Any:
    """A big-endian signed 32-bit integer, as int64."""
    return np.int64(np.int32(_load_u32_be(buffer, position)))


@inlined
def load_i16(buffer: Any, position: int) -> Any:
    """A big-endian signed 16-bit integer, as int64."""
    return np.int64(np.int16(_load_u16_be(buffer, position)))


@inlined
def load_u32(buffer: Any, position: int) -> Any:
    """A big-endian unsigned 32-bit integer, as int64."""
    return np.int64(_load_u32_be(buffer, position))


@inlined
def store_64(buffer: Any, position: int, value: Any) -> None:
    """Store an int64 big-endian."""
    _store_u64_be(buffer, position, np.uint64(np.int64(value)))


@inlined
def store_32(buffer: Any, position: int, value: Any) -> None:
    """Store the low 32 bits big-endian."""
    _store_u32_be(buffer, position, np.uint32(np.int64(value)))


@inlined
def store_16(buffer: Any, position: int, value: Any) -> None:
    """Store the low 16 bits big-endian."""
    _store_u16_be(buffer, position, np.uint16(np.int64(value)))


# ---------------------------------------------------------------- varints (zigzag)

BAD_VARINT = -1
"""Returned as the next position when a varint is cut off or too long."""


@inlined
def read_varint(buffer: Any, position: int, end: int) -> Any:
    """(value, next position) of a zigzag varint of at most ten bytes, or BAD_VARINT."""
    if position >= end:
        return np.int64(0), np.int64(BAD_VARINT)
    byte = np.uint64(buffer[position])
    position += 1
    raw = byte & np.uint64(0x7F)
    shift = np.uint64(7)
    while byte >= np.uint64(0x80):
        if position >= end or shift > np.uint64(63):
            return np.int64(0), np.int64(BAD_VARINT)
        byte = np.uint64(buffer[position])
        position += 1
        raw |= (byte & np.uint64(0x7F)) << shift
        shift += np.uint64(7)
    return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), np.int64(position)


@inlined
def size_of_varint(value: Any) -> Any:
    """Bytes that `write_varint` takes for an int64."""
    raw = (np.uint64(value) << np.uint64(1)) ^ np.uint64(value >> np.int64(63))
    size = np.int64(1)
    while raw >= np.uint64(0x80):
        raw >>= np.uint64(7)
        size += np.int64(1)
    return size


@inlined
def write_varint(buffer: Any, position: int, value: Any) -> Any:
    """Write an int64 as a zigzag varint; the next position."""
    raw = (np.uint64(value) << np.uint64(1)) ^ np.uint64(value >> np.int64(63))
    while raw >= np.uint64(0x80):
        buffer[position] = np.uint8(raw & np.uint64(0x7F)) | np.uint8(0x80)
        raw >>= np.uint64(7)
        position += 1
    buffer[position] = np.uint8(raw)
    return np.int64(position + 1)


# ---------------------------------------------------------------- CRC-32C

_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected


def _byte_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        odd = table & np.uint64(1)
        table = (table >> np.uint64(1)) ^ (odd * np.uint64(_POLYNOMIAL))
    return table


def _zeros_tables(byte_table: np.ndarray, zeros: int) -> np.ndarray:
    """uint64[4, 256]: for each byte of a CRC, what it becomes after `zeros` more zero bytes.

    `zeros` is a power of two.
    """
    bits = np.arange(32, dtype=np.uint64)
    ones = np.uint64(1) << bits
    basis = byte_table[(ones & np.uint64(0xFF)).astype(np.int64)] ^ (ones >> np.uint64(8))
    for _ in range(zeros.bit_length() - 1):  # as many zeros again
        is_set = (basis[:, None] >> bits) & np.uint64(1) == 1
        basis = np.bitwise_xor.reduce(np.where(is_set, basis, np.uint64(0)), axis=1)
    tables = np.zeros((4, 256), np.uint64)
    for byte in range(4):
        for bit in range(8):
            chosen = (np.arange(256) >> bit) & 1 == 1
            tables[byte, chosen] ^= basis[8 * byte + bit]
    return tables


_LONG, _SHORT = 1024, 128
BYTE_TABLE = _byte_table()
_LONG_TABLES = _zeros_tables(BYTE_TABLE, _LONG)
_SHORT_TABLES = _zeros_tables(BYTE_TABLE, _SHORT)


@intrinsic("crc_step", 64)
def crc_step_64(crc: Any, data: Any) -> Any:
    """`crc`, a register without the last inversion, after the eight bytes of a word."""
    return _crc_step_in_python(crc, data, 8)


@intrinsic("crc_step", 8)
def crc_step_8(crc: Any, data: Any) -> Any:
    """The same after one byte."""
    return _crc_step_in_python(crc, data, 1)


def _crc_step_in_python(crc: Any, data: Any, size: int) -> Any:
    content = int(data).to_bytes(size, "little")
    return np.uint64(google_crc32c.extend(int(crc) ^ 0xFFFFFFFF, content) ^ 0xFFFFFFFF)


@inlined
def _after_zeros(tables: Any, crc: Any) -> Any:
    mask = np.uint64(0xFF)
    return (
        tables[0, np.int64(crc & mask)]
        ^ tables[1, np.int64((crc >> np.uint64(8)) & mask)]
        ^ tables[2, np.int64((crc >> np.uint64(16)) & mask)]
        ^ tables[3, np.int64((crc >> np.uint64(24)) & mask)]
    )


@inlined
def _three_streams(buffer: Any, position: int, crc: Any, length: int, tables: Any) -> Any:
    second = np.uint64(0)
    third = np.uint64(0)
    for at in range(position, position + length, 8):
        crc = crc_step_64(crc, load_u64_le(buffer, at))
        second = crc_step_64(second, load_u64_le(buffer, at + length))
        third = crc_step_64(third, load_u64_le(buffer, at + 2 * length))
    return _after_zeros(tables, _after_zeros(tables, crc) ^ second) ^ third


def _crc_by_instruction(buffer: Any, start: int, end: int) -> Any:
    crc = np.uint64(0xFFFFFFFF)
    position = start
    while end - position >= 3 * _LONG:
        crc = _three_streams(buffer, position, crc, _LONG, _LONG_TABLES)
        position += 3 * _LONG
    while end - position >= 3 * _SHORT:
        crc = _three_streams(buffer, position, crc, _SHORT, _SHORT_TABLES)
        position += 3 * _SHORT
    while end - position >= 8:
        crc = crc_step_64(crc, load_u64_le(buffer, position))
        position += 8
    while position < end:
        crc = crc_step_8(crc, np.uint64(buffer[position]))
        position += 1
    return np.int64(crc ^ np.uint64(0xFFFFFFFF))


def _crc_by_table(buffer: Any, start: int, end: int) -> Any:
    crc = np.uint64(0xFFFFFFFF)
    for position in range(start, end):
        index = np.int64((crc ^ np.uint64(buffer[position])) & np.uint64(0xFF))
        crc = BYTE_TABLE[index] ^ (crc >> np.uint64(8))
    return np.int64(crc ^ np.uint64(0xFFFFFFFF))


@stands_for(cached(_crc_by_instruction if HAS_CRC_INSTRUCTION else _crc_by_table))
def crc32c(buffer: Any, start: int, end: int) -> Any:
    """CRC-32C of `buffer[start:end]` (uint8), as a non-negative int64."""
    return np.int64(google_crc32c.value(bytes(buffer[start:end])))


# ---------------------------------------------------------------- SipHash-2-4, 128 bits


@inlined
def _rotate(value: Any, bits: int) -> Any:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@inlined
def _round(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    v0 += v1
    v2 += v3
    v1 = _rotate(v1, 13) ^ v0
    v3 = _rotate(v3, 16) ^ v2
    v0 = _rotate(v0, 32)
    v2 += v1
    v0 += v3
    v1 = _rotate(v1, 17) ^ v2
    v3 = _rotate(v3, 21) ^ v0
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


@inlined
def siphash128(buffer: Any, start: int, length: int, key0: Any, key1: Any) -> Any:
    """(high, low) uint64 halves of SipHash-2-4-128 of `buffer[start:start+length]`.

    The secret is two uint64. The first eight bytes of the published byte order are `high`.
    Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF", 128-bit variant.
    """
    v0 = key0 ^ np.uint64(0x736F6D6570736575)
    v1 = key1 ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
    v2 = key0 ^ np.uint64(0x6C7967656E657261)
    v3 = key1 ^ np.uint64(0x7465646279746573)
    whole = start + (length & ~7)
    for at in range(start, whole, 8):
        word = load_u64_le(buffer, at)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
    word = np.uint64(length & 0xFF) << np.uint64(56)
    for i in range(length & 7):
        word |= np.uint64(buffer[whole + i]) << np.uint64(8 * i)
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= np.uint64(0xEE)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    high = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return high, v0 ^ v1 ^ v2 ^ v3
