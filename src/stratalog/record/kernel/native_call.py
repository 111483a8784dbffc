"""Calls of C functions from kernels, by address.

numba can call a ctypes function, but compiles its address in: such code cannot be cached, since
the address is another one in the next process. Here the address is an ordinary int64 argument.

Two shapes are enough for the codecs:

    call_lz4    int f(const char *source, char *target, int source_size, int target_capacity)
                LZ4_decompress_safe, LZ4_compress_default
    call_zstd   size_t f(ctx *, void *target, size_t capacity, const void *source, size_t size)
                ZSTD_decompressDCtx, ZSTD_compress2

Invariants
- N1  The address must be that of a function of exactly that shape; nothing here can check it.
- N2  The caller checks that source and target lie within their arrays (K2); the C function keeps to
      the sizes that it is given.
- N3  Both results are int64: what the C function returned, negative for an error.
"""

from __future__ import annotations

import ctypes
from typing import Any

from stratalog.record.kernel.compile import intrinsic

_LZ4 = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
_ZSTD = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_size_t,
)


@intrinsic("calling_lz4")
def call_lz4(
    function: Any,
    source: Any,
    source_at: Any,
    source_size: Any,
    target: Any,
    target_at: Any,
    capacity: Any,
) -> Any:
    from_address = source.ctypes.data + int(source_at)
    to_address = target.ctypes.data + int(target_at)
    return int(_LZ4(function)(from_address, to_address, int(source_size), int(capacity)))


@intrinsic("calling_zstd")
def call_zstd(
    function: Any,
    zstd_context: Any,
    target: Any,
    target_at: Any,
    capacity: Any,
    source: Any,
    source_at: Any,
    source_size: Any,
) -> Any:
    to_address = target.ctypes.data + int(target_at)
    from_address = source.ctypes.data + int(source_at)
    arguments = (zstd_context, to_address, int(capacity), from_address, int(source_size))
    return int(_ZSTD(function)(*arguments))
