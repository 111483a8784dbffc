"""What the tests of kernels share: bytes as arrays, random keys, the naive twins' answers."""

from __future__ import annotations

import os
import struct
from random import Random

import numpy as np
import numpy.typing as npt

from stratalog.record.kernel import arrays, scan
from stratalog.record.kernel.compile import JIT
from tests.naive.siphash import siphash128

SWEEP = int(os.environ.get("STRATALOG_SWEEP", "1"))
SHARE = 1 if JIT else 10
"""Kernels as plain Python take their time."""

MAX_BATCH_BYTES = 1 << 20
SECRET = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
SECRET_WORDS = (np.uint64(SECRET[0]), np.uint64(SECRET[1]))


def times(count: int) -> int:
    """How many random cases to try."""
    return max(2, count * SWEEP // SHARE)


def as_array(data: bytes) -> npt.NDArray[np.uint8]:
    """Writable, as buffers of kernels are."""
    return np.frombuffer(bytearray(data), np.uint8)


def naive_hash(key: bytes, secret: tuple[int, int] = SECRET) -> tuple[int, int]:
    """The two halves that kernels make of a key's hash."""
    high, low = struct.unpack("<QQ", siphash128(struct.pack("<QQ", *secret), key))
    return high, low


def random_hashes(random: Random, count: int) -> npt.NDArray[np.uint64]:
    """uint64[count, 2]."""
    words = [(random.getrandbits(64), random.getrandbits(64)) for _ in range(count)]
    return np.array(words, np.uint64).reshape(count, 2)


def scanned(data: bytes, crc_from: int = -1) -> npt.NDArray[np.void]:
    """The table of the batches of a whole log file."""
    raw = as_array(data)
    rows, _, _, following = scan.whole_batches(raw, len(raw), MAX_BATCH_BYTES)
    assert following == 0
    table = np.zeros(rows, arrays.BATCH)
    filled, consumed, error, _ = scan.scan_batches(raw, len(raw), -1, crc_from, 1 << 20, table)
    assert (filled, consumed, error) == (rows, len(data), arrays.OK)
    return table
