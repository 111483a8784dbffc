"""The headers of a log's batches folded into block checksums, and held against them.

A digest (`segment/digest.py`) cuts a log into blocks of whole batches, each ending with the first
batch that ends `BLOCK_BYTES` or more behind the block's start, and keeps one CRC-32C a block: over
the first `COVERED_BYTES` of each batch, or all of a smaller one. Beside it runs one CRC-32C over
the batches' own checksum fields, which says what the contents are whatever the headers say.

Because of how blocks end, every batch of a block starts less than `BLOCK_BYTES` behind the block's
start: whoever has `HEAD_BYTES` from there can check the block, however large its last batch is.

Invariants
- Never reads outside `raw[:filled]` (K2), and takes no step that leaves the file.
- `fold` gives the same blocks however the batches are cut into calls.
"""

from __future__ import annotations

from typing import Any

import google_crc32c
import numpy as np

from stratalog.record.kernel.arrays import BAD_COUNT, BAD_LENGTH, BAD_MAGIC, BAD_ORDER, OK
from stratalog.record.kernel.compile import compiled, inlined, kernel, stands_for
from stratalog.record.kernel.primitives import (
    BYTE_TABLE,
    HAS_CRC_INSTRUCTION,
    crc_step_8,
    crc_step_64,
    load_i32,
    load_i64,
    load_u64_le,
)

BLOCK_BYTES = 64 << 10
COVERED_BYTES = 61
"""The header of magic 2. Lookups go by all of it, and check no batch's own checksum."""
HEAD_BYTES = BLOCK_BYTES - 1 + COVERED_BYTES
OPEN_BYTES, OPEN_CRC, CONTENT_CRC, LAST_OFFSET = 0, 1, 2, 3
"""Slots of the fold's state: the unfinished block's bytes and CRC, the CRC of the batches'
checksums, the last offset so far."""

_MAX_OFFSET = (1 << 63) - 1
_LOG_OVERHEAD = 12
_SMALLEST_BATCH_BYTES = 26
_ONES = np.uint64(0xFFFFFFFF)


@inlined
def _extended_by_instruction(crc: Any, buffer: Any, start: int, end: int) -> Any:
    register = np.uint64(crc) ^ _ONES
    position = start
    while end - position >= 8:
        register = crc_step_64(register, load_u64_le(buffer, position))
        position += 8
    while position < end:
        register = crc_step_8(register, np.uint64(buffer[position]))
        position += 1
    return np.int64(register ^ _ONES)


@inlined
def _extended_by_table(crc: Any, buffer: Any, start: int, end: int) -> Any:
    register = np.uint64(crc) ^ _ONES
    for position in range(start, end):
        index = np.int64((register ^ np.uint64(buffer[position])) & np.uint64(0xFF))
        register = BYTE_TABLE[index] ^ (register >> np.uint64(8))
    return np.int64(register ^ _ONES)


_EXTENDED = _extended_by_instruction if HAS_CRC_INSTRUCTION else _extended_by_table


@stands_for(lambda: compiled(_EXTENDED))
def extended_crc(crc: Any, buffer: Any, start: int, end: int) -> Any:
    """The CRC-32C of what `crc` covers and `buffer[start:end]`."""
    return np.int64(google_crc32c.extend(int(crc), bytes(buffer[start:end])))


@inlined
def _step(raw: Any, position: int, filled: int, end: int) -> Any:
    """The size of the batch at `position`; 0: its header is not all there; else -(damage)."""
    if filled - position < _SMALLEST_BATCH_BYTES:
        return np.int64(0)
    length = load_i32(raw, position + 8)
    magic = raw[position + 16]
    if magic > 2:
        return np.int64(-BAD_MAGIC)
    # Magic 0 and 1: what lies behind the length, at least.
    smallest = COVERED_BYTES if magic == 2 else (34 if magic == 1 else 26)
    size = length + _LOG_OVERHEAD
    if size < smallest or size > end - position:
        return np.int64(-BAD_LENGTH)
    if filled - position < min(size, COVERED_BYTES):
        return np.int64(0)
    return size


@kernel(cost=lambda _raw, filled, *_: 10 * (filled // COVERED_BYTES))
def fold(raw: Any, filled: int, end: int, state: Any, sizes: Any, sums: Any) -> Any:
    """Fold the batches that start in `raw[:filled]` into blocks.

    raw: uint8[]; `end`: where the log ends, counted like positions in `raw`; state: int64[4];
    sizes, sums: int64[], filled with the bytes and the CRC of each block that was finished.
    Returns (blocks finished, where the next batch starts: perhaps behind `filled`, error). Stops
    without an error when the header that follows is not all there, or when `sizes` is full.
    """
    blocks = 0
    position = 0
    while blocks < len(sizes):
        size = _step(raw, position, filled, end)
        if size < 0:
            return blocks, position, -size
        if size == 0:
            break
        magic = raw[position + 16]
        base_offset = load_i64(raw, position)
        last_delta = load_i32(raw, position + 23) if magic == 2 else np.int64(0)
        if last_delta < 0:
            return blocks, position, np.int64(BAD_COUNT)
        if base_offset <= state[LAST_OFFSET] or base_offset > _MAX_OFFSET - last_delta:
            return blocks, position, np.int64(BAD_ORDER)
        crc_at = position + (17 if magic == 2 else 12)
        covered = position + min(size, COVERED_BYTES)
        state[OPEN_CRC] = extended_crc(state[OPEN_CRC], raw, position, covered)
        state[CONTENT_CRC] = extended_crc(state[CONTENT_CRC], raw, crc_at, crc_at + 4)
        state[LAST_OFFSET] = base_offset + last_delta
        state[OPEN_BYTES] += size
        if state[OPEN_BYTES] >= BLOCK_BYTES:
            sizes[blocks] = state[OPEN_BYTES]
            sums[blocks] = state[OPEN_CRC]
            state[OPEN_BYTES] = 0
            state[OPEN_CRC] = 0
            blocks += 1
        position += size
    return blocks, position, np.int64(OK)


@kernel(cost=lambda _raw, filled, *_: 6 * (filled // COVERED_BYTES))
def sound_blocks(raw: Any, filled: int, sizes: Any, sums: Any) -> Any:
    """How many of the first blocks of `raw[:filled]` are as `sizes` and `sums` (int64[]) say.

    The first begins at 0. Of the last one the heads are enough: `HEAD_BYTES` from its start.
    """
    position = 0
    for block in range(len(sizes)):
        end = position + sizes[block]
        crc = np.int64(0)
        while position < end:
            size = _step(raw, position, filled, end)
            if size <= 0:
                return block
            crc = extended_crc(crc, raw, position, position + min(size, COVERED_BYTES))
            position += size
        if crc != sums[block]:
            return block
    return len(sizes)
