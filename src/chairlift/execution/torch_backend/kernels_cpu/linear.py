"""Matrix products of few rows with packed float32 weights.

Knows nothing of layers. Weights are packed once into panels, so that they are read from memory in one straight run::

    weight [N, K]   ->   panels [N / W, K, W]      W = panel width, N padded with zeros

A work item is a block of rows times a group of panels. The rows of a block stay in the second-level cache while every
panel of the group passes by once; within a panel, up to six rows at a time keep all their sums in registers.
"""

import torch
from numba import njit

from chairlift.execution.torch_backend.kernels_cpu.machine import (
    float32_at,
    int64_at,
    take_next,
)
from chairlift.execution.torch_backend.kernels_cpu.tiles import multiply_tile, panel_shape

_MAX_TILE_ROWS = 6
_CACHED_ROWS_BYTES = 256 * 1024
_ITEMS_PER_THREAD = 8

_tile_1 = multiply_tile(1, panel_shape, reads_ahead=True)
_tile_2 = multiply_tile(2, panel_shape, reads_ahead=True)
_tile_3 = multiply_tile(3, panel_shape, reads_ahead=True)
_tile_4 = multiply_tile(4, panel_shape, reads_ahead=True)
_tile_5 = multiply_tile(5, panel_shape, reads_ahead=True)
_tile_6 = multiply_tile(6, panel_shape, reads_ahead=True)


def panel_width() -> int:
    """Return how many outputs one panel holds."""
    num_vectors, num_lanes = panel_shape()
    return num_vectors * num_lanes


def pack_panels(weight: torch.Tensor) -> torch.Tensor:
    """Return ``weight [N, K]`` as panels, float32 ``[N / W, K, W]``."""
    width = panel_width()
    padded = torch.nn.functional.pad(weight.float(), (0, 0, 0, -len(weight) % width))
    return padded.view(-1, width, weight.shape[1]).transpose(1, 2).contiguous()


def block_sizes(num_rows: int, depth: int, num_panels: int, num_threads: int) -> tuple[int, int]:
    """Return how many rows and how many panels a work item takes."""
    most_rows = max(_MAX_TILE_ROWS, _CACHED_ROWS_BYTES // (4 * depth))
    num_blocks = -(-num_rows // most_rows)
    rows = -(-num_rows // num_blocks)
    rows = -(-rows // _MAX_TILE_ROWS) * _MAX_TILE_ROWS
    panels = max(1, num_panels * num_blocks // (num_threads * _ITEMS_PER_THREAD))
    return rows, min(panels, num_panels)


def linear_body(arguments):
    """``y[T, N] = x[T, K] W + bias``; N is padded to whole panels in ``y`` and ``bias``."""
    own = int64_at(arguments + 16)
    x, x_stride, panels, bias, y = own[0], own[1], own[2], own[3], own[4]
    num_rows, depth, num_panels, width = own[5], own[6], own[7], own[8]
    block_rows, block_panels = own[9], own[10]
    num_groups = (num_panels + block_panels - 1) // block_panels
    num_items = (num_rows + block_rows - 1) // block_rows * num_groups
    y_stride = num_panels * width
    while True:
        item = take_next(arguments)
        if item >= num_items:
            break
        first_row = item // num_groups * block_rows
        end_row = min(num_rows, first_row + block_rows)
        first_panel = item % num_groups * block_panels
        for panel in range(first_panel, min(num_panels, first_panel + block_panels)):
            column = panel * width
            out = y + 4 * column
            _start_sums(bias, column, out, y_stride, first_row, end_row, width)
            weights = panels + 4 * column * depth
            _multiply_rows(x, x_stride, weights, width, out, y_stride, first_row, end_row, depth)


@njit(error_model="numpy", fastmath=True)
def _start_sums(bias, column, out, y_stride, first_row, end_row, width):
    for row in range(first_row, end_row):
        sums = float32_at(out + 4 * row * y_stride)
        if bias == 0:
            for j in range(width):
                sums[j] = 0.0
        else:
            biases = float32_at(bias + 4 * column)
            for j in range(width):
                sums[j] = biases[j]


@njit(error_model="numpy")
def _multiply_rows(x, x_stride, weights, width, out, y_stride, first_row, end_row, depth):
    # Even shares: 8 rows are 4 + 4, which runs faster than 6 + 2.
    num_tiles = (end_row - first_row + _MAX_TILE_ROWS - 1) // _MAX_TILE_ROWS
    # What follows the panel in memory is the next panel: each tile asks for its share of it, so that memory is read
    # while the cores multiply.
    panel_bytes = 4 * width * depth
    ahead_bytes = 4 * width // num_tiles
    row = first_row
    for tile in range(num_tiles):
        ahead = weights + panel_bytes + tile * depth * ahead_bytes
        rows = (end_row - row + num_tiles - tile - 1) // (num_tiles - tile)
        a = x + 4 * row * x_stride
        c = out + 4 * row * y_stride
        if rows == 6:
            _tile_6(a, x_stride, weights, width, c, y_stride, depth, ahead, ahead_bytes)
        elif rows == 5:
            _tile_5(a, x_stride, weights, width, c, y_stride, depth, ahead, ahead_bytes)
        elif rows == 4:
            _tile_4(a, x_stride, weights, width, c, y_stride, depth, ahead, ahead_bytes)
        elif rows == 3:
            _tile_3(a, x_stride, weights, width, c, y_stride, depth, ahead, ahead_bytes)
        elif rows == 2:
            _tile_2(a, x_stride, weights, width, c, y_stride, depth, ahead, ahead_bytes)
        else:
            _tile_1(a, x_stride, weights, width, c, y_stride, depth, ahead, ahead_bytes)
        row += rows
