"""Where each field of a stored batch lies, as numbers that the decoders and the kernels share.

A log file is a run of batches. All three generations ("magic" 0, 1 and 2) keep their first
seventeen bytes alike enough that a reader can step over a batch without knowing its generation:
an offset (int64 at 0), a length (int32 at 8) that counts the bytes after itself, and the magic
byte at 16. Everything is big-endian.

Invariants
- I1  A batch of any magic takes `LOG_OVERHEAD + length` bytes.
- I2  The CRC-32C of a magic 2 batch covers `ATTRIBUTES` to the end: offset, length, leader epoch
      and magic lie outside it, so that a broker can patch them in place (LOG-3).
- I3  `HEADER` unpacks to the fields of `batch.BatchHeader` in their order.

Sources: Kafka's DefaultRecordBatch and LegacyRecord; KIP-98 (magic 2), KIP-32 (timestamps),
KIP-534 (delete horizon). docs/FORMAT.md draws the same tables.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

# Shared by every magic.
BASE_OFFSET: Final = 0
LENGTH: Final = 8
MAGIC: Final = 16
LOG_OVERHEAD: Final = 12
"""Offset and length: the bytes in front of what `length` counts."""
MIN_STEP_BYTES: Final = 17
"""Bytes that must be there before a batch can be told from a part of one."""

# Magic 2: the batch header.
LEADER_EPOCH: Final = 12
CRC: Final = 17
ATTRIBUTES: Final = 21
LAST_OFFSET_DELTA: Final = 23
BASE_TIMESTAMP: Final = 27
MAX_TIMESTAMP: Final = 35
PRODUCER_ID: Final = 43
PRODUCER_EPOCH: Final = 51
BASE_SEQUENCE: Final = 53
RECORDS_COUNT: Final = 57
HEADER_BYTES: Final = 61

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
assert HEADER.size == HEADER_BYTES

# Magic 2: the attributes (int16).
CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_MASK: Final = 0x08
TRANSACTIONAL_MASK: Final = 0x10
CONTROL_MASK: Final = 0x20
DELETE_HORIZON_MASK: Final = 0x40

# Magic 0 and 1: one message, or a wrapper of compressed messages.
LEGACY_MAGICS: Final = (0, 1)
MAGIC_V2: Final = 2
LEGACY_CRC: Final = 12
LEGACY_ATTRIBUTES: Final = 17
LEGACY_TIMESTAMP: Final = 18
"""Magic 1 only."""
LEGACY_KEY_LENGTH: Final = (18, 26)
"""Indexed by magic."""
LEGACY_OVERHEAD: Final = (14, 22)
"""What `length` counts, at least, by magic: crc, magic, attributes, timestamp, two lengths."""
LEGACY_ATTRIBUTES_MASK: Final = CODEC_MASK | TIMESTAMP_TYPE_MASK
"""The other bits of the one attribute byte mean nothing in magic 0 and 1."""

# Values that mean "none".
NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final = -1

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1


class TimestampType(IntEnum):
    """Who set a batch's timestamps: the producer, or the log on append (`LOG-3`, KIP-32)."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


def increment_sequence(sequence: int, delta: int) -> int:
    """`sequence + delta` on the circle of the 2^31 sequence numbers (after 2^31-1 comes 0)."""
    return (sequence + delta) & INT32_MAX
