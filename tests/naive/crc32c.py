"""CRC-32C (Castagnoli), one byte at a time from a table."""

from __future__ import annotations

_REVERSED_POLYNOMIAL = 0x82F63B78


def _table_entry(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (_REVERSED_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_table_entry(byte) for byte in range(256)]


def crc32c(data: bytes) -> int:
    """The checksum of `data`, unsigned 32 bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
