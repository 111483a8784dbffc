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

from numba.core import types
from numba.extending import intrinsic

from stratalog.record.kernel.compile import JIT


def _lz4_intrinsic() -> Any:
    def call(
        typing_context: Any,
        function: Any,
        source: Any,
        source_at: Any,
        source_size: Any,
        target: Any,
        target_at: Any,
        capacity: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            from llvmlite import ir

            pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
            shape = ir.FunctionType(number, [pointer, pointer, number, number])
            result = builder.call(
                builder.inttoptr(arguments[0], shape.as_pointer()),
                [
                    _pointer(context, builder, signature, arguments, 1),
                    _pointer(context, builder, signature, arguments, 4),
                    builder.trunc(arguments[3], number),
                    builder.trunc(arguments[6], number),
                ],
            )
            return builder.sext(result, ir.IntType(64))

        word = types.int64
        return word(word, source, word, word, target, word, word), generate

    return intrinsic(call)


def _zstd_intrinsic() -> Any:
    def call(
        typing_context: Any,
        function: Any,
        zstd_context: Any,
        target: Any,
        target_at: Any,
        capacity: Any,
        source: Any,
        source_at: Any,
        source_size: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            from llvmlite import ir

            pointer, number = ir.IntType(8).as_pointer(), ir.IntType(64)
            shape = ir.FunctionType(number, [pointer, pointer, number, pointer, number])
            return builder.call(
                builder.inttoptr(arguments[0], shape.as_pointer()),
                [
                    builder.inttoptr(arguments[1], pointer),
                    _pointer(context, builder, signature, arguments, 2),
                    arguments[4],
                    _pointer(context, builder, signature, arguments, 5),
                    arguments[7],
                ],
            )

        word = types.int64
        return word(word, word, target, word, word, source, word, word), generate

    return intrinsic(call)


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any, index: int) -> Any:
    """The address of the array at argument `index`, at the position in the argument after it."""
    from numba.core import cgutils

    array = cgutils.create_struct_proxy(signature.args[index])(
        context, builder, value=arguments[index]
    )
    return builder.gep(array.data, [arguments[index + 1]])


if JIT:
    call_lz4 = _lz4_intrinsic()
    call_zstd = _zstd_intrinsic()
else:
    _LZ4 = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int
    )
    _ZSTD = ctypes.CFUNCTYPE(
        ctypes.c_ssize_t,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_void_p,
        ctypes.c_size_t,
    )

    def call_lz4(
        function: int,
        source: Any,
        source_at: int,
        source_size: int,
        target: Any,
        target_at: int,
        capacity: int,
    ) -> int:
        from_address = source.ctypes.data + int(source_at)
        to_address = target.ctypes.data + int(target_at)
        return int(_LZ4(function)(from_address, to_address, int(source_size), int(capacity)))

    def call_zstd(
        function: int,
        zstd_context: int,
        target: Any,
        target_at: int,
        capacity: int,
        source: Any,
        source_at: int,
        source_size: int,
    ) -> int:
        to_address = target.ctypes.data + int(target_at)
        from_address = source.ctypes.data + int(source_at)
        arguments = (zstd_context, to_address, int(capacity), from_address, int(source_size))
        return int(_ZSTD(function)(*arguments))
