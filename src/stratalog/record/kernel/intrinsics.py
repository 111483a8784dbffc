"""What compiled kernels are made of that numba has no name for: instructions, written for LLVM.

Each function answers an intrinsic, for `compile.stands_for`. Importing this imports numba, so it is
done when kernels are compiled.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic


def loading(bits: int, order: str) -> Any:
    """`load(buffer, position)` of an unsigned integer at any alignment, bounds unchecked.

    `order`: "big" or "little", as seen from a little-endian processor.
    """

    def load(typing_context: Any, buffer: Any, position: Any) -> Any:
        result = types.Integer.from_bitwidth(bits, signed=False)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = cgutils.create_struct_proxy(signature.args[0])(
                context, builder, value=arguments[0]
            )
            address = builder.gep(array.data, [arguments[1]])
            integer = ir.IntType(bits)
            value = builder.load(builder.bitcast(address, integer.as_pointer()), align=1)
            return builder.bswap(value) if order == "big" else value

        return result(buffer, types.intp), generate

    return intrinsic(load)


def storing(bits: int, order: str) -> Any:
    """`store(buffer, position, value)`, likewise."""

    def store(typing_context: Any, buffer: Any, position: Any, value: Any) -> Any:
        integer_type = types.Integer.from_bitwidth(bits, signed=False)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = cgutils.create_struct_proxy(signature.args[0])(
                context, builder, value=arguments[0]
            )
            address = builder.gep(array.data, [arguments[1]])
            pointer = builder.bitcast(address, ir.IntType(bits).as_pointer())
            value = builder.bswap(arguments[2]) if order == "big" else arguments[2]
            builder.store(value, pointer, align=1)
            return context.get_dummy_value()

        return types.none(buffer, types.intp, integer_type), generate

    return intrinsic(store)


def copying() -> Any:
    """`copy(target, target_at, source, source_at, size)` of bytes."""

    def copy(
        typing_context: Any, target: Any, target_at: Any, source: Any, source_at: Any, size: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def data(index: int) -> Any:
                return cgutils.create_struct_proxy(signature.args[index])(
                    context, builder, value=arguments[index]
                ).data

            cgutils.raw_memcpy(
                builder,
                builder.gep(data(0), [arguments[1]]),
                builder.gep(data(2), [arguments[3]]),
                arguments[4],
                1,
            )
            return context.get_dummy_value()

        return types.none(target, types.intp, source, types.intp, types.intp), generate

    return intrinsic(copy)


def crc_step(bits: int) -> Any:
    """`step(register, data)`: the processor's CRC-32C of 64 or 8 bits more."""

    def step(typing_context: Any, crc: Any, data: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            wide = ir.IntType(64)
            if bits == 64:
                function = cgutils.get_or_insert_function(
                    builder.module,
                    ir.FunctionType(wide, [wide, wide]),
                    "llvm.x86.sse42.crc32.64.64",
                )
                return builder.call(function, arguments)
            narrow = ir.IntType(32)
            function = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(narrow, [narrow, ir.IntType(8)]),
                "llvm.x86.sse42.crc32.32.8",
            )
            crc32 = builder.trunc(arguments[0], narrow)
            data8 = builder.trunc(arguments[1], ir.IntType(8))
            return builder.zext(builder.call(function, [crc32, data8]), wide)

        return types.uint64(types.uint64, types.uint64), generate

    return intrinsic(step)


def prefetching(words: int) -> Any:
    """Prefetches a row of a map whose rows are `words` words long."""

    def prefetch(typing_context: Any, array: Any, row: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = cgutils.create_struct_proxy(signature.args[0])(
                context, builder, value=arguments[0]
            ).data
            word = builder.mul(arguments[1], ir.Constant(arguments[1].type, words))
            pointer = builder.bitcast(builder.gep(data, [word]), ir.IntType(8).as_pointer())
            flag = ir.IntType(32)
            function = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(ir.VoidType(), [pointer.type, flag, flag, flag]),
                "llvm.prefetch.p0",
            )
            builder.call(
                function,
                [pointer, ir.Constant(flag, 1), ir.Constant(flag, 3), ir.Constant(flag, 1)],
            )
            return context.get_dummy_value()

        return types.none(array, types.intp), generate

    return intrinsic(prefetch)


def calling_lz4() -> Any:
    """See `native_call`."""

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


def calling_zstd() -> Any:
    """See `native_call`."""

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
    array = cgutils.create_struct_proxy(signature.args[index])(
        context, builder, value=arguments[index]
    )
    return builder.gep(array.data, [arguments[index + 1]])
