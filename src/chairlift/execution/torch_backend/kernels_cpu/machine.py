"""The few machine operations that Numba lacks: addresses as pointers, a shared counter, reading ahead.

Knows nothing of models. Everything here is inlined into the bodies that use it. Addresses are int64, in bytes.
"""

import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_F32 = ir.FloatType()
_F64 = ir.DoubleType()


def _int_to_pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return builder.inttoptr(args[0], context.get_value_type(signature.return_type))


@intrinsic
def float32_at(typingctx: Any, address: Any) -> Any:
    """Return a pointer to float32 numbers, to be indexed without bounds or negative indices."""
    return types.CPointer(types.float32)(types.int64), _int_to_pointer


@intrinsic
def float64_at(typingctx: Any, address: Any) -> Any:
    """Return a pointer to float64 numbers."""
    return types.CPointer(types.float64)(types.int64), _int_to_pointer


@intrinsic
def uint16_at(typingctx: Any, address: Any) -> Any:
    """Return a pointer to the bits of bfloat16 numbers."""
    return types.CPointer(types.uint16)(types.int64), _int_to_pointer


@intrinsic
def int32_at(typingctx: Any, address: Any) -> Any:
    """Return a pointer to int32 numbers."""
    return types.CPointer(types.int32)(types.int64), _int_to_pointer


@intrinsic
def int64_at(typingctx: Any, address: Any) -> Any:
    """Return a pointer to int64 numbers."""
    return types.CPointer(types.int64)(types.int64), _int_to_pointer


@intrinsic
def take_next(typingctx: Any, address: Any) -> Any:
    """Add one to the int64 at an address, atomically, and return what it was."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(args[0], _I64.as_pointer()), _I64(1), "monotonic")

    return types.int64(types.int64), generate


@intrinsic
def atomic_load(typingctx: Any, address: Any) -> Any:
    """Read the int64 at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], _I64.as_pointer()), "seq_cst", 8)

    return types.int64(types.int64), generate


@intrinsic
def atomic_store(typingctx: Any, address: Any, value: Any) -> Any:
    """Write the int64 at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], builder.inttoptr(args[0], _I64.as_pointer()), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def atomic_add(typingctx: Any, address: Any, value: Any) -> Any:
    """Add to the int64 at an address and return what it was."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(args[0], _I64.as_pointer()), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def atomic_replace(typingctx: Any, address: Any, expected: Any, value: Any) -> Any:
    """Write the int64 at an address if it is what was expected, and return whether it was."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _I64.as_pointer())
        pair = builder.cmpxchg(pointer, args[1], args[2], "seq_cst", "seq_cst")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64), generate


@intrinsic
def call_body(typingctx: Any, body: Any, arguments: Any) -> Any:
    """Call the compiled body at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function_type = ir.FunctionType(ir.VoidType(), (_I64,))
        builder.call(builder.inttoptr(args[0], function_type.as_pointer()), (args[1],))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def pause(typingctx: Any) -> Any:
    """Tell the core that this is a waiting loop."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        machine = platform.machine().lower()
        nothing = ir.VoidType()
        if machine in ("x86_64", "amd64"):
            function_type = ir.FunctionType(nothing, ())
            builder.call(cgutils.get_or_insert_function(builder.module, function_type, "llvm.x86.sse2.pause"), ())
        elif machine in ("aarch64", "arm64"):
            function_type = ir.FunctionType(nothing, (_I32,))
            function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.aarch64.hint")
            builder.call(function, (_I32(1),))
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def float64_of_bits(typingctx: Any, bits: Any) -> Any:
    """Reinterpret an int64 as a float64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _F64)

    return types.float64(types.int64), generate


@intrinsic
def float32_of_bits(typingctx: Any, bits: Any) -> Any:
    """Reinterpret an int32 as a float32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _F32)

    return types.float32(types.int32), generate


@intrinsic
def bits_of_float32(typingctx: Any, number: Any) -> Any:
    """Reinterpret a float32 as an int32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _I32)

    return types.int32(types.float32), generate


def write_prefetch(builder: Any, address: Any) -> None:
    """Write the instruction that :func:`prefetch` is, for those who write instructions themselves."""
    # Into the second-level cache: what is asked for is more than the first level holds.
    pointer = builder.inttoptr(address, ir.IntType(8).as_pointer())
    function_type = ir.FunctionType(ir.VoidType(), (pointer.type, _I32, _I32, _I32))
    function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
    builder.call(function, (pointer, _I32(0), _I32(2), _I32(1)))


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Ask for the cache line at an address, to be read soon; never an error, whatever the address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        write_prefetch(builder, args[0])
        return context.get_dummy_value()

    return types.void(types.int64), generate
