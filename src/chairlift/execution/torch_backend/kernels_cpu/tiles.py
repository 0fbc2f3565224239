"""Tiles: the inner loops of matrix products, with all sums in registers, written as instructions.

Knows nothing of models or of where numbers come from. Addresses are int64, in bytes.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from chairlift.execution.torch_backend.kernels_cpu.machine import write_prefetch

_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_F32 = ir.FloatType()
_FLOAT_BYTES = 4


class _TileWriter:
    """Writes the instructions of one tile: vector loads and stores, and loops whose sums live in registers."""

    def __init__(self, builder: Any, num_lanes: int) -> None:
        self.builder = builder
        self.vector = ir.VectorType(_F32, num_lanes)
        self.num_lanes = num_lanes
        self.zero = ir.Constant(self.vector, None)

    def intrinsic(self, name: str, *argument_types: Any, result: Any) -> Any:
        function_type = ir.FunctionType(result, argument_types)
        return cgutils.get_or_insert_function(self.builder.module, function_type, name)

    def multiply_add(self, a: Any, b: Any, total: Any) -> Any:
        name = f"llvm.fma.v{self.num_lanes}f32"
        function = self.intrinsic(name, self.vector, self.vector, self.vector, result=self.vector)
        return self.builder.call(function, (a, b, total))

    def address(self, base: Any, index: Any) -> Any:
        """Address of number ``index`` behind ``base``."""
        return self.builder.add(base, self.builder.mul(index, _I64(_FLOAT_BYTES)))

    def beside(self, base: Any, num_vectors: int) -> Any:
        """Address of the vector ``num_vectors`` behind ``base``."""
        return self.builder.add(base, _I64(_FLOAT_BYTES * self.num_lanes * num_vectors))

    def load(self, address: Any) -> Any:
        return self._load(address, self.vector)

    def load_number(self, address: Any) -> Any:
        return self._load(address, _F32)

    def load_repeated(self, address: Any) -> Any:
        nothing = ir.Constant(self.vector, ir.Undefined)
        single = self.builder.insert_element(nothing, self.load_number(address), _I32(0))
        first_everywhere = ir.Constant(ir.VectorType(_I32, self.num_lanes), None)
        return self.builder.shuffle_vector(single, nothing, first_everywhere)

    def store(self, value: Any, address: Any) -> None:
        instruction = self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer()))
        instruction.align = _FLOAT_BYTES

    def sum_lanes(self, value: Any) -> Any:
        name = f"llvm.vector.reduce.fadd.v{self.num_lanes}f32"
        function = self.intrinsic(name, _F32, self.vector, result=_F32)
        return self.builder.call(function, (ir.Constant(_F32, 0.0), value), fastmath=("reassoc",))

    def loop(self, count: Any, starts: list[Any], step: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        """Run ``step(index, values)`` for ``index < count``, at least once; return its last values."""
        builder = self.builder
        entry = builder.block
        body = builder.append_basic_block("tile.loop")
        after = builder.append_basic_block("tile.after")
        builder.branch(body)
        builder.position_at_end(body)
        index = builder.phi(_I64)
        phis = [builder.phi(start.type) for start in starts]
        values = step(index, phis)
        next_index = builder.add(index, _I64(1))
        for phi, start, value in zip([index, *phis], [_I64(0), *starts], [next_index, *values], strict=True):
            phi.add_incoming(start, entry)
            phi.add_incoming(value, body)
        builder.cbranch(builder.icmp_signed("<", next_index, count), body, after)
        builder.position_at_end(after)
        return values

    def _load(self, address: Any, kind: Any) -> Any:
        instruction = self.builder.load(self.builder.inttoptr(address, kind.as_pointer()))
        instruction.align = _FLOAT_BYTES
        return instruction


@cache
def panel_shape() -> tuple[int, int]:
    """Return how many vectors of how many lanes a panel of weights is wide, so that sums of six rows fill registers."""
    return (4, 16) if get_host_cpu_features().get("avx512f") else (2, 8)


def narrow_shape() -> tuple[int, int]:
    """Return the shape of tiles over the head size, which need not be a multiple of more."""
    return 1, 8


def multiply_tile(
    num_rows: int, shape: Callable[[], tuple[int, int]], *, reads_ahead: bool = False
) -> Callable[..., None]:
    """Make ``tile(a, a_stride, b, b_stride, c, c_stride, depth)``, the inner loop of matrix products.

    It takes addresses of float32 numbers and strides in numbers, and does, with all sums in registers::

        c[r, j] += sum over k < depth of a[r, k] * b[k, j]      r < num_rows, j < vectors * lanes

    ``depth`` is at least 1; ``shape`` gives vectors and lanes, and is asked when the tile is compiled. A tile that
    ``reads_ahead`` takes two arguments more, ``ahead`` and ``ahead_bytes``: at each ``k`` it asks the cache for what
    lies at ``ahead + k * ahead_bytes``, which may be memory that does not exist.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, a_stride, b, b_stride, c, c_stride, depth = args[:7]
        num_vectors, num_lanes = shape()
        writer = _TileWriter(builder, num_lanes)
        a_rows = [writer.address(a, builder.mul(a_stride, _I64(row))) for row in range(num_rows)]
        c_rows = [writer.address(c, builder.mul(c_stride, _I64(row))) for row in range(num_rows)]
        places = [writer.beside(c_row, j) for c_row in c_rows for j in range(num_vectors)]

        def step(k: Any, sums: list[Any]) -> list[Any]:
            if reads_ahead:
                write_prefetch(builder, builder.add(args[7], builder.mul(args[8], k)))
            b_row = writer.address(b, builder.mul(b_stride, k))
            b_vectors = [writer.load(writer.beside(b_row, j)) for j in range(num_vectors)]
            new: list[Any] = []
            for row, a_row in enumerate(a_rows):
                factor = writer.load_repeated(writer.address(a_row, k))
                old = sums[row * num_vectors : (row + 1) * num_vectors]
                new.extend(map(writer.multiply_add, [factor] * num_vectors, b_vectors, old))
            return new

        totals = writer.loop(depth, [writer.load(place) for place in places], step)
        for total, place in zip(totals, places, strict=True):
            writer.store(total, place)
        return context.get_dummy_value()

    if reads_ahead:

        @intrinsic
        def ahead_tile(
            typingctx: Any,
            a: Any,
            a_stride: Any,
            b: Any,
            b_stride: Any,
            c: Any,
            c_stride: Any,
            depth: Any,
            ahead: Any,
            ahead_bytes: Any,
        ) -> Any:
            return types.void(*[types.int64] * 9), generate

        return ahead_tile

    @intrinsic
    def tile(typingctx: Any, a: Any, a_stride: Any, b: Any, b_stride: Any, c: Any, c_stride: Any, depth: Any) -> Any:
        return types.void(*[types.int64] * 7), generate

    return tile


def dot_tile(num_rows: int, num_columns: int, num_lanes: int) -> Callable[..., None]:
    """Make ``tile(a, a_stride, b, b_stride, c, c_stride, num_vectors)``: products of rows with rows.

    ::

        c[r, j] = sum over k < num_vectors * num_lanes of a[r, k] * b[j, k]      r < num_rows, j < num_columns
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, a_stride, b, b_stride, c, c_stride, num_vectors = args
        writer = _TileWriter(builder, num_lanes)
        a_rows = [writer.address(a, builder.mul(a_stride, _I64(row))) for row in range(num_rows)]
        b_rows = [writer.address(b, builder.mul(b_stride, _I64(column))) for column in range(num_columns)]

        def step(k: Any, sums: list[Any]) -> list[Any]:
            offset = builder.mul(k, _I64(num_lanes))
            b_vectors = [writer.load(writer.address(b_row, offset)) for b_row in b_rows]
            new: list[Any] = []
            for row, a_row in enumerate(a_rows):
                a_vector = writer.load(writer.address(a_row, offset))
                old = sums[row * num_columns : (row + 1) * num_columns]
                new.extend(map(writer.multiply_add, [a_vector] * num_columns, b_vectors, old))
            return new

        totals = writer.loop(num_vectors, [writer.zero] * (num_rows * num_columns), step)
        for index, total in enumerate(totals):
            row, column = divmod(index, num_columns)
            c_row = writer.address(c, builder.mul(c_stride, _I64(row)))
            writer.store(writer.sum_lanes(total), writer.address(c_row, _I64(column)))
        return context.get_dummy_value()

    @intrinsic
    def tile(
        typingctx: Any, a: Any, a_stride: Any, b: Any, b_stride: Any, c: Any, c_stride: Any, num_vectors: Any
    ) -> Any:
        return types.void(*[types.int64] * 7), generate

    return tile
