"""Many payloads in one call: what the cleaner uses instead of `decompress` and `compress`.

lz4 and zstd run inside one kernel call for as many rows as there are, without the interpreter's
lock: called one by one from Python, two threads spend their time handing the lock to each other.
Rows that the kernel leaves (other codecs, uncommon frames, damage) go through the registry.

Invariants
- I1  Results are those of the registry, byte for byte, and so are the errors.
- I2  Output is bounded as there: `plain` is the caller's, only a row that alone exceeds it is
      given memory of its own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stratalog.base.errors import CorruptionError
from stratalog.record.codec import Codec, compress, decompress, native
from stratalog.record.kernel import frames

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]


def decompress_many(
    codecs: Int64s, raw: Bytes, starts: Int64s, ends: Int64s, plain: Bytes, limit_bytes: int
) -> tuple[Bytes, Int64s]:
    """Decompress `raw[starts[i]:ends[i]]`, one row after another, as many as fit.

    codecs (numbers of batch attributes), starts, ends: int64[n], n >= 1; plain: uint8[].
    Returns the buffer of the decompressed bytes and where each row ends in it, int64[m] with
    1 <= m <= n; row 0 starts at 0. The buffer is `plain`, or a new one if row 0 does not fit. The
    answer ends early before a row that does not fit, or that is damaged: call again from there.
    Raises `CorruptionError` (without a position) if row 0 is damaged or exceeds `limit_bytes`.
    """
    plain_ends = np.empty(len(codecs), np.int64)
    lz4_function, zstd_function, zstd_context = _decompressors(codecs)
    in_kernel = {int(Codec.LZ4): lz4_function != 0, int(Codec.ZSTD): zstd_function != 0}
    numbers = codecs.tolist()
    row = used = 0
    while row < len(numbers):
        if in_kernel.get(numbers[row]):
            row, used, stopped = frames.unpack_rows(
                codecs,
                raw,
                starts,
                ends,
                plain,
                row,
                used,
                limit_bytes,
                lz4_function,
                zstd_function,
                zstd_context,
                plain_ends,
            )
            if row == len(numbers) or (stopped == frames.NO_ROOM and row > 0):
                break
        try:
            codec = Codec.of_attributes(numbers[row])
            content = decompress(codec, raw[starts[row] : ends[row]], limit_bytes)
        except CorruptionError:
            if row > 0:
                break
            raise
        size = len(content)
        if used + size > len(plain):
            if row > 0:
                break
            plain = np.empty(size, np.uint8)
        plain[used : used + size] = np.frombuffer(content, np.uint8)
        used += size
        plain_ends[row] = used
        row += 1
    return plain, plain_ends[:row]


def compress_many(
    codecs: Int64s, plain: Bytes, starts: Int64s, ends: Int64s, packed: Bytes
) -> Int64s:
    """Compress `plain[starts[i]:ends[i]]` at the default level; where each ends in `packed`.

    codecs (0: copied as it is), starts, ends, result: int64[n]; packed: uint8[] of at least
    `packed_bound_bytes`. Row 0 starts at 0, each other row where the one before it ends.
    """
    packed_ends = np.empty(len(codecs), np.int64)
    lz4_function, zstd_function, zstd_context = _compressors(codecs)
    row = used = 0
    while row < len(codecs):
        row, used, _ = frames.pack_rows(
            codecs,
            plain,
            starts,
            ends,
            packed,
            row,
            used,
            lz4_function,
            zstd_function,
            zstd_context,
            packed_ends,
        )
        if row == len(codecs):
            break
        content = compress(Codec.of_attributes(int(codecs[row])), plain[starts[row] : ends[row]])
        packed[used : used + len(content)] = np.frombuffer(content, np.uint8)
        used += len(content)
        packed_ends[row] = used
        row += 1
    return packed_ends


def packed_bound_bytes(starts: Int64s, ends: Int64s) -> int:
    """The most that rows of these sizes can be compressed to, whatever the codec.

    Snappy is the worst: a sixth more, by its library's own bound, and the framing.
    """
    size = int((ends - starts).sum())
    return size + size // 5 + 128 * len(starts)


def _decompressors(codecs: Int64s) -> tuple[int, int, int]:
    """Addresses: lz4's function, zstd's function, zstd's context. 0 for what is not needed."""
    lz4_function = zstd_function = zstd_context = 0
    if native.is_enabled():
        lz4_function = native.find_lz4().decompress_safe
        if (codecs == Codec.ZSTD).any():
            zstd_context = native.zstd_decompressor()
            zstd_function = native.find_zstd().decompress_dctx if zstd_context else 0
    return lz4_function, zstd_function, zstd_context


def _compressors(codecs: Int64s) -> tuple[int, int, int]:
    lz4_function = zstd_function = zstd_context = 0
    if native.is_enabled():
        lz4_function = native.find_lz4().compress_default
        if (codecs == Codec.ZSTD).any():
            zstd_context = native.zstd_compressor()
            zstd_function = native.find_zstd().compress2 if zstd_context else 0
    return lz4_function, zstd_function, zstd_context
