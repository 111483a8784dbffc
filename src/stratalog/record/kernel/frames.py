"""Many compressed payloads in one call, so that threads do not queue for the interpreter's lock.

`unpack_rows` decompresses payload after payload into one buffer, `pack_rows` does the reverse;
lz4 and zstd themselves are C functions, called by address (`native_call.py`). Only the frames that
nearly every writer makes are worked on here. At any other one, and at anything odd, the kernel
stops at that row: the caller asks `record/codec`, whose word is final, and goes on with the next.

Invariants
- F1  What a kernel accepts, `record/codec` accepts too, and the bytes are the same: the registry
      is the naive twin of these kernels (K3).
- F2  Nothing is read outside a payload's bounds, nothing written outside the target.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stratalog.record.kernel.compile import inlined, kernel
from stratalog.record.kernel.native_call import call_lz4, call_zstd
from stratalog.record.kernel.primitives import copy_bytes, load_u32

# Why a kernel stopped at a row.
DONE = 0
NOT_HERE, NO_ROOM = -1, -2
"""NOT_HERE: the caller must see to the row. NO_ROOM: the row may fit an empty target."""

_NONE, _LZ4, _ZSTD = 0, 3, 4

_LZ4_MAGIC = 0x04224D18  # as load_u32 reads it, big-endian
_LZ4_FLAGS, _LZ4_BLOCK_KIND, _LZ4_HEADER_CHECKSUM = 0x60, 0x40, 0x82
_LZ4_HEADER_BYTES = 7
_LZ4_BLOCK_BYTES = 64 << 10
_LZ4_STORED = 1 << 31
_LZ4_OVERHEAD_BYTES = 64
"""Above a 255th of the content: what a block's bound, the frame's header and end add."""

_ZSTD_MAGIC = 0x28B52FFD
_ZSTD_DICTIONARY, _ZSTD_SINGLE_SEGMENT, _ZSTD_CHECKSUM = 0x03, 0x20, 0x04
_ZSTD_MAX_BLOCK_BYTES = 128 << 10
_ZSTD_MAX_WINDOW_BYTES = 1 << 27
_ZSTD_RLE, _ZSTD_COMPRESSED = 1, 2
_ZSTD_TOO_SMALL = -70
_ZSTD_OVERHEAD_BYTES = 128
"""Above a 256th of the content: ZSTD_COMPRESSBOUND adds 64 bytes at most."""


@kernel
def unpack_rows(
    codecs: Any,
    raw: Any,
    starts: Any,
    ends: Any,
    plain: Any,
    first_row: int,
    used: Any,
    limit_bytes: int,
    lz4_decompress: int,
    zstd_decompress: int,
    zstd_context: int,
    plain_ends: Any,
) -> Any:
    """Decompress `raw[starts[i]:ends[i]]` from row `first_row` on, into `plain` from `used` on.

    codecs, starts, ends: int64[n]; raw, plain: uint8[]; plain_ends: int64[n], filled row by row.
    `limit_bytes` bounds each row. An address of 0 leaves the rows of that codec to the caller.
    Returns (the row where it stopped, bytes of `plain` in use, DONE or why it stopped there).
    """
    for row in range(first_row, len(codecs)):
        start = starts[row]
        end = ends[row]
        room = min(limit_bytes, len(plain) - used)
        size: Any = np.int64(NOT_HERE)
        if 0 <= start <= end <= len(raw):
            if codecs[row] == _LZ4 and lz4_decompress != 0:
                size = _unpack_lz4(lz4_decompress, raw, start, end, plain, used, room)
            elif codecs[row] == _ZSTD and zstd_decompress != 0:
                size = _unpack_zstd(
                    zstd_decompress, zstd_context, raw, start, end, plain, used, room
                )
        if size < 0:
            return row, used, NOT_HERE if room == limit_bytes else size
        used += size
        plain_ends[row] = used
    return len(codecs), used, np.int64(DONE)


@inlined
def _unpack_lz4(
    function: int, raw: Any, start: int, end: int, plain: Any, used: int, room: Any
) -> Any:
    """Bytes written to `plain` at `used`, at most `room`; or why not. Kafka's own frames only."""
    if end - start < _LZ4_HEADER_BYTES or load_u32(raw, start) != _LZ4_MAGIC:
        return np.int64(NOT_HERE)
    if (
        raw[start + 4] != _LZ4_FLAGS
        or raw[start + 5] != _LZ4_BLOCK_KIND
        or raw[start + 6] != _LZ4_HEADER_CHECKSUM
    ):
        return np.int64(NOT_HERE)
    at = start + _LZ4_HEADER_BYTES
    done: Any = np.int64(0)
    while end - at >= 4:
        word = _little_endian(raw, at, 4)
        at += 4
        if word == 0:
            return done if at == end else np.int64(NOT_HERE)
        size = word & (_LZ4_STORED - 1)
        if size > end - at:
            return np.int64(NOT_HERE)
        capacity: Any = min(_LZ4_BLOCK_BYTES, room - done)
        if capacity <= 0:
            return np.int64(NO_ROOM)
        if word < _LZ4_STORED:
            written = call_lz4(function, raw, at, size, plain, used + done, capacity)
        elif size <= capacity:
            copy_bytes(plain, used + done, raw, at, size)
            written = size
        else:
            written = np.int64(-1)
        if written < 0:
            return np.int64(NO_ROOM if capacity < _LZ4_BLOCK_BYTES else NOT_HERE)
        at += size
        done += written
    return np.int64(NOT_HERE)


@inlined
def _unpack_zstd(
    function: int,
    context: int,
    raw: Any,
    start: int,
    end: int,
    plain: Any,
    used: int,
    room: int,
) -> Any:
    """Bytes written to `plain` at `used`, at most `room`; or why not.

    Only single frames with at most one compressed block: larger content gains little here, and only
    so it is certain that no block was longer than allowed, and that nothing past the window was
    referred to. A decoder in pieces (the registry's, Kafka's) refuses that; this C function does
    not.
    """
    most_bytes = _zstd_most_bytes(raw, start, end)
    if most_bytes < 0:
        return np.int64(NOT_HERE)
    size = call_zstd(function, context, plain, used, room, raw, start, end - start)
    if size == _ZSTD_TOO_SMALL:
        return np.int64(NO_ROOM)
    return size if 0 <= size <= most_bytes else np.int64(NOT_HERE)


@inlined
def _zstd_most_bytes(raw: Any, start: int, end: int) -> Any:
    """The most that the one frame in `raw[start:end]` may hold; NOT_HERE if it is not just that."""
    refused = np.int64(NOT_HERE)
    if end - start < 6 or load_u32(raw, start) != _ZSTD_MAGIC:
        return refused
    descriptor = np.int64(raw[start + 4])
    if descriptor & _ZSTD_DICTIONARY != 0:
        return refused
    at: Any = start + 5
    size_kind = descriptor >> 6
    at += (1 << size_kind) if size_kind > 0 else 0
    window = np.int64(_ZSTD_MAX_WINDOW_BYTES)
    if descriptor & _ZSTD_SINGLE_SEGMENT != 0:
        # The window is the content; the library holds it against the size that the frame states.
        at += 1 if size_kind == 0 else 0
    else:
        exponent = np.int64(raw[start + 5])
        window = np.int64(1) << (10 + (exponent >> 3))
        window += (window >> 3) * (exponent & 7)
        at += 1
        if window > _ZSTD_MAX_WINDOW_BYTES:
            return refused
    most_block_bytes = min(window, _ZSTD_MAX_BLOCK_BYTES)
    most_bytes = np.int64(0)
    compressed_blocks = 0
    is_last = False
    while not is_last:
        if end - at < 3:
            return refused
        block = _little_endian(raw, at, 3)
        is_last = block & 1 != 0
        kind = (block >> 1) & 3
        size = block >> 3
        if kind > _ZSTD_COMPRESSED or size > most_block_bytes:
            return refused
        at += 3 + (1 if kind == _ZSTD_RLE else size)
        if kind == _ZSTD_COMPRESSED:
            compressed_blocks += 1
            size = most_block_bytes
        most_bytes += size
    at += 4 if descriptor & _ZSTD_CHECKSUM != 0 else 0
    if at != end or compressed_blocks > 1:
        return refused
    return min(most_bytes, window)


@kernel
def pack_rows(
    codecs: Any,
    plain: Any,
    starts: Any,
    ends: Any,
    packed: Any,
    first_row: int,
    used: Any,
    lz4_compress: int,
    zstd_compress: int,
    zstd_context: int,
    packed_ends: Any,
) -> Any:
    """Compress `plain[starts[i]:ends[i]]` from row `first_row` on, into `packed` from `used` on.

    codecs, starts, ends: int64[n]; plain, packed: uint8[]; packed_ends: int64[n], filled row by
    row. Codec 0 copies. An address of 0 leaves the rows of that codec to the caller.
    Returns (the row where it stopped, bytes of `packed` in use, DONE or NOT_HERE).
    """
    for row in range(first_row, len(codecs)):
        start = starts[row]
        end = ends[row]
        room = len(packed) - used
        size: Any = np.int64(NOT_HERE)
        if 0 <= start <= end <= len(plain):
            content = end - start
            if codecs[row] == _NONE and content <= room:
                copy_bytes(packed, used, plain, start, content)
                size = content
            elif (
                codecs[row] == _LZ4
                and lz4_compress != 0
                and content + content // 255 + _LZ4_OVERHEAD_BYTES <= room
            ):
                size = _pack_lz4(lz4_compress, plain, start, end, packed, used)
            elif (
                codecs[row] == _ZSTD
                and zstd_compress != 0
                and content + content // 256 + _ZSTD_OVERHEAD_BYTES <= room
            ):
                size = call_zstd(
                    zstd_compress, zstd_context, packed, used, room, plain, start, content
                )
        if size < 0:
            return row, used, np.int64(NOT_HERE)
        used += size
        packed_ends[row] = used
    return len(codecs), used, np.int64(DONE)


@inlined
def _pack_lz4(function: int, plain: Any, start: int, end: int, packed: Any, used: int) -> Any:
    """Write the frame of `plain[start:end]` to `packed` at `used`; its size, negative if not."""
    at = used + _LZ4_HEADER_BYTES
    _store_little_endian(packed, used, 0x184D2204, 4)
    packed[used + 4] = _LZ4_FLAGS
    packed[used + 5] = _LZ4_BLOCK_KIND
    packed[used + 6] = _LZ4_HEADER_CHECKSUM
    while start < end:
        content: Any = min(_LZ4_BLOCK_BYTES, end - start)
        # All the room that it could take: with less, other bytes might come out.
        size = call_lz4(
            function, plain, start, content, packed, at + 4, content + content // 255 + 16
        )
        if size <= 0:
            return np.int64(NOT_HERE)
        word = size
        if size >= content:
            size = content
            word = content | _LZ4_STORED
            copy_bytes(packed, at + 4, plain, start, content)
        _store_little_endian(packed, at, word, 4)
        at += 4 + size
        start += content
    _store_little_endian(packed, at, 0, 4)
    return at + 4 - used


@inlined
def _little_endian(buffer: Any, position: int, size: int) -> Any:
    value = np.int64(0)
    for index in range(size):
        value |= np.int64(buffer[position + index]) << (8 * index)
    return value


@inlined
def _store_little_endian(buffer: Any, position: int, value: int, size: int) -> None:
    for index in range(size):
        buffer[position + index] = np.uint8((value >> (8 * index)) & 0xFF)
