"""SipHash-2-4 with 128 bits of output, as in the authors' description of the function."""

from __future__ import annotations

import struct

_MASK = 0xFFFFFFFFFFFFFFFF


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _round(v: list[int]) -> None:
    v[0] = (v[0] + v[1]) & _MASK
    v[1] = _rotate(v[1], 13) ^ v[0]
    v[0] = _rotate(v[0], 32)
    v[2] = (v[2] + v[3]) & _MASK
    v[3] = _rotate(v[3], 16) ^ v[2]
    v[0] = (v[0] + v[3]) & _MASK
    v[3] = _rotate(v[3], 21) ^ v[0]
    v[2] = (v[2] + v[1]) & _MASK
    v[1] = _rotate(v[1], 17) ^ v[2]
    v[2] = _rotate(v[2], 32)


def siphash128(key: bytes, data: bytes) -> bytes:
    """The 16 bytes of output for a key of 16 bytes; read as two little-endian 64-bit numbers,
    the first half is the first 8 bytes."""
    k0, k1 = struct.unpack("<QQ", key)
    v = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D ^ 0xEE,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]
    tail = len(data) % 8
    last = data[len(data) - tail :] + bytes(7 - tail) + bytes([len(data) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", data[: len(data) - tail] + last):
        v[3] ^= word
        _round(v)
        _round(v)
        v[0] ^= word
    v[2] ^= 0xEE
    for _ in range(4):
        _round(v)
    low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    for _ in range(4):
        _round(v)
    return struct.pack("<QQ", low, v[0] ^ v[1] ^ v[2] ^ v[3])
