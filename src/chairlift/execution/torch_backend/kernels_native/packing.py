"""Lays weights out the way the compiled operations read them.

Knows nothing of layers. The layouts are those of ``csrc/linear.h`` and ``csrc/dots.h``; W is the number of lanes.
"""

from dataclasses import dataclass

import numpy as np
import torch

from chairlift.execution.torch_backend.weights.blocks import BLOCK_SIZE, BlockWeight

_NIBBLE_PLACES = ((3, 4), (5, 7), (6, 1), (0, 2))
"""By row of four and half: where ``as_halves`` of ``csrc/linear_tiles.h`` finds a nibble with fewest shifts."""


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A linear layer's weights in panels."""

    operation: str
    """The operation that multiplies with them."""
    num_outputs: int
    depth: int
    panel_width: int
    panels: np.ndarray
    bias: torch.Tensor | None  # float32 [N padded]

    @property
    def num_panels(self) -> int:
        """Panels, the last one filled up with zeros."""
        return -(-self.num_outputs // self.panel_width)


def pack_linear(
    weight: torch.Tensor | BlockWeight, bias: torch.Tensor | None, num_lanes: int, *, has_tiles: bool = False
) -> PackedLinear:
    """Return weights ``[N, K]`` in panels, for tiles or for vectors."""
    num_outputs, depth = weight.shape
    if isinstance(weight, torch.Tensor):
        if weight.dtype == torch.bfloat16 and has_tiles and depth % BLOCK_SIZE == 0:
            operation, width, panels = "linear_half", num_lanes, _half_tiles(weight, num_lanes)
        else:
            operation, width, panels = "linear_float", 2 * num_lanes, _float_panels(weight, 2 * num_lanes)
    elif weight.minimums is not None:
        panels = _nibble_tiles(weight, num_lanes) if has_tiles else _nibble_panels(weight, num_lanes)
        operation, width = "linear_nibble", num_lanes
    else:
        operation, width, panels = "linear_byte", num_lanes, _byte_panels(weight, num_lanes)
    if bias is not None:
        bias = torch.nn.functional.pad(bias.float(), (0, -num_outputs % width)).contiguous()
    return PackedLinear(operation, num_outputs, depth, width, panels, bias)


def _float_panels(weight: torch.Tensor, width: int) -> np.ndarray:
    padded = torch.nn.functional.pad(weight.float(), (0, 0, 0, -len(weight) % width))
    panels = padded.view(-1, width, weight.shape[1]).transpose(1, 2)  # [N / 2 W, K, 2 W]
    return _on_cache_lines(panels.numpy())


def _nibble_panels(weight: BlockWeight, width: int) -> np.ndarray:
    assert weight.minimums is not None  # noqa: S101 - four bits have minimums
    values = _panels_of(weight.values.numpy(), width)  # [P, W, K]
    num_panels, _, depth = values.shape
    # Within a block of 32 inputs: four runs of [low or high nibble][four inputs].
    runs = values.reshape(num_panels, width, depth // BLOCK_SIZE, 4, 2, 4)
    both = runs[:, :, :, :, 0] | (runs[:, :, :, :, 1] << 4)  # [P, W, B, 4, 4]
    block = np.dtype([("scales", "<f2", width), ("minimums", "<f2", width), ("weights", "u1", (4, width, 4))])
    panels = _on_cache_lines(np.empty((num_panels, depth // BLOCK_SIZE), block))
    panels["scales"] = _panels_of(weight.scales.numpy(), width).transpose(0, 2, 1)
    panels["minimums"] = _panels_of(weight.minimums.numpy(), width).transpose(0, 2, 1)
    panels["weights"] = both.transpose(0, 2, 3, 1, 4)
    return panels


def _half_tiles(weight: torch.Tensor, width: int) -> np.ndarray:
    values = _panels_of(weight.contiguous().view(torch.int16).numpy(), width)  # [P, W, K]
    num_panels, _, depth = values.shape
    pairs = values.reshape(num_panels, width, depth // BLOCK_SIZE, BLOCK_SIZE // 2, 2)
    return _on_cache_lines(pairs.transpose(0, 2, 3, 1, 4))  # [P, B, K / 2 within the block, W, 2]


def _nibble_tiles(weight: BlockWeight, width: int) -> np.ndarray:
    assert weight.minimums is not None  # noqa: S101 - four bits have minimums
    values = _panels_of(weight.values.numpy(), width)  # [P, W, K]
    num_panels, _, depth = values.shape
    # A row of a tile has two inputs of every output. Four rows: [P, B, four, row, half, number within the half].
    rows = values.reshape(num_panels, 2, width // 2, depth // BLOCK_SIZE, 4, 4, 2).transpose(0, 3, 4, 5, 1, 2, 6)
    rows = rows.reshape(num_panels, depth // BLOCK_SIZE, 4, 4, 2, width).astype(np.uint32)
    words = np.zeros((num_panels, depth // BLOCK_SIZE, 4, width), np.uint32)
    for row, places in enumerate(_NIBBLE_PLACES):
        for half, place in enumerate(places):
            words |= rows[:, :, :, row, half] << (4 * place)
    block = np.dtype([("scales", "<f2", width), ("minimums", "<f2", width), ("weights", "<u4", (4, width))])
    panels = _on_cache_lines(np.empty((num_panels, depth // BLOCK_SIZE), block))
    panels["scales"] = _panels_of(weight.scales.numpy(), width).transpose(0, 2, 1)
    panels["minimums"] = _panels_of(weight.minimums.numpy(), width).transpose(0, 2, 1)
    panels["weights"] = words
    return panels


def _byte_panels(weight: BlockWeight, width: int) -> np.ndarray:
    values = _panels_of(weight.values.numpy(), width)  # [P, W, K]
    num_panels, _, depth = values.shape
    pairs = values.reshape(num_panels, width, depth // BLOCK_SIZE, BLOCK_SIZE // 2, 2)
    block = np.dtype([("scales", "<f2", width), ("weights", "i1", (BLOCK_SIZE // 2, width, 2))])
    panels = _on_cache_lines(np.empty((num_panels, depth // BLOCK_SIZE), block))
    panels["scales"] = _panels_of(weight.scales.numpy(), width).transpose(0, 2, 1)
    panels["weights"] = pairs.transpose(0, 2, 3, 1, 4)
    return panels


def _panels_of(rows: np.ndarray, width: int) -> np.ndarray:
    """``[N, X] -> [N / width, width, X]``, filled up with zeros."""
    missing = -len(rows) % width
    if missing:
        rows = np.concatenate((rows, np.zeros((missing, rows.shape[1]), rows.dtype)))
    return rows.reshape(-1, width, rows.shape[1])


def _on_cache_lines(array: np.ndarray) -> np.ndarray:
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    if array.dtype.names is None:
        copy[...] = array
    return copy
