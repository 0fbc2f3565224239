"""Writes down products of rows with packed weights. Knows nothing of how rows are rounded, nor of what is recorded."""

from typing import NamedTuple

import torch

from chairlift.execution.torch_backend.kernels_native.buffers import Buffers
from chairlift.execution.torch_backend.kernels_native.operations import OperationList
from chairlift.execution.torch_backend.kernels_native.packing import PackedLinear
from chairlift.execution.torch_backend.kernels_native.program import Cut, LinearShape, Recording
from chairlift.execution.torch_backend.weights.blocks import BLOCK_SIZE

ROUNDED_KINDS = {torch.int8: 8, torch.int16: 16, torch.bfloat16: 2}
"""``NumberKind`` of ``csrc/rows.h``."""
_WHOLE_NUMBERS = {"linear_nibble": torch.int8, "linear_byte": torch.int16}


class Rows(NamedTuple):
    """What a product reads: numbers, and where scales and sums of 32 whole ones lie ``[K / 32, T]``, or 0."""

    numbers: torch.Tensor  # [T, K]
    scales: int
    sums: int


def rounded_dtype(packed: PackedLinear, *, has_tiles: bool) -> torch.dtype:
    """Return what rows are rounded to before they are multiplied with weights."""
    return torch.bfloat16 if has_tiles else _WHOLE_NUMBERS[packed.operation]


class Product(NamedTuple):
    """Which operation multiplies with which weights, how many panels of results it makes, and where."""

    operation: str
    packed: PackedLinear
    num_panels: int
    y: torch.Tensor


def rows_for(buffers: Buffers, x: torch.Tensor, dtype: torch.dtype) -> tuple[Rows, tuple[int, int, int, int]]:
    """Make room for rounded rows; return it, and as ``Rounded`` of ``csrc/rows.h``."""
    num_rows, depth = x.shape
    is_in_tiles = dtype == torch.bfloat16
    rounded = buffers.rows_of_tiles(num_rows, depth) if is_in_tiles else buffers.empty(num_rows, depth, dtype=dtype)
    scale_rows = sum_rows = None
    if not dtype.is_floating_point:
        scale_rows, sum_rows = (buffers.empty(depth // BLOCK_SIZE, num_rows) for _ in range(2))
    scales = 0 if scale_rows is None else scale_rows.data_ptr()
    sums = 0 if sum_rows is None else sum_rows.data_ptr()
    return Rows(rounded, scales, sums), (ROUNDED_KINDS[dtype], rounded.data_ptr(), scales, sums)


def write_product(
    due: OperationList, recording: Recording | None, cut: Cut, rows: Rows, product: Product, *further: int
) -> None:
    """Write down the operation, and what in it follows from the number of rows; ``further`` arguments come last."""
    operation, packed, num_panels, y = product
    num_rows, depth = rows.numbers.shape
    shape = LinearShape(depth * rows.numbers.element_size(), num_panels)
    block_rows, block_panels = cut.block_sizes(num_rows, *shape)
    if recording is not None:
        recording.linear_operations[num_rows, shape].append(due.count)
    due.add(
        operation,
        -(-num_rows // block_rows) * -(-num_panels // block_panels),
        rows.numbers.data_ptr(),
        rows.numbers.stride(0),
        rows.scales,
        rows.sums,
        packed.panels.ctypes.data,
        0 if packed.bias is None else packed.bias.data_ptr(),
        y.data_ptr(),
        num_rows,
        depth,
        num_panels,
        block_rows,
        block_panels,
        cut.few_rows,
        *further,
    )
