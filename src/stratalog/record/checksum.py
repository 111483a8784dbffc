"""CRC-32C over any buffer. The C library takes read-only bytes or arrays, so others are wrapped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c
import numpy as np

if TYPE_CHECKING:
    from typing_extensions import Buffer


def crc32c(data: Buffer) -> int:
    """CRC-32C (Castagnoli) of contiguous bytes, as an unsigned 32-bit number; nothing is copied."""
    if not isinstance(data, bytes):
        return int(google_crc32c.value(np.frombuffer(memoryview(data), dtype=np.uint8)))
    return int(google_crc32c.value(data))
