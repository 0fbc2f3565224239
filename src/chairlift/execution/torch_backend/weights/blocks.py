"""Weights in whole numbers with a scale per 32 inputs: as model files store them, or made from float weights.

Knows nothing of file formats or of how weights are multiplied.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

BLOCK_SIZE = 32
"""Inputs that share a scale, as in GGUF's Q4_0, Q4_1 and Q8_0."""


@dataclass(frozen=True, slots=True)
class BlockWeight:
    """``weight[n, k] = scales[n, b] * values[n, k] + minimums[n, b]`` with ``b = k // 32``.

    Four bits (0 to 15, uint8) where there are minimums, eight bits (-127 to 127, int8) where there are none.
    """

    values: torch.Tensor  # [N, K]
    scales: torch.Tensor  # float16 [N, K / 32]
    minimums: torch.Tensor | None  # float16 [N, K / 32]

    @property
    def shape(self) -> torch.Size:
        """``[N, K]``."""
        return self.values.shape

    def dequantized(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the weights as floats."""
        values = self.values.float().unflatten(1, (-1, BLOCK_SIZE))
        weights = values * self.scales.float().unsqueeze(2)
        if self.minimums is not None:
            weights += self.minimums.float().unsqueeze(2)
        return weights.flatten(1).to(dtype)


def fits_blocks(shape: Sequence[int]) -> bool:
    """Whether a weight of this shape can be kept in blocks."""
    return len(shape) == 2 and shape[1] % BLOCK_SIZE == 0


def join_blocks(parts: Sequence[BlockWeight]) -> BlockWeight:
    """Return weights of one kind as one, joined along the outputs."""
    minimums = [part.minimums for part in parts if part.minimums is not None]
    return BlockWeight(
        torch.cat([part.values for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat(minimums) if minimums else None,
    )


def quantize_int8(weight: torch.Tensor) -> BlockWeight:
    """Round to eight bits per 32 inputs, as GGUF's Q8_0 does: the largest number of a block becomes 127."""
    blocks = weight.float().unflatten(1, (-1, BLOCK_SIZE))  # [N, B, 32]
    scales = (blocks.abs().amax(dim=2) / 127).half()
    values = torch.round(blocks / _divisor(scales)).clamp(-127, 127)
    return BlockWeight(values.to(torch.int8).flatten(1), scales, None)


def quantize_q4(weight: torch.Tensor) -> BlockWeight:
    """Round to four bits per 32 inputs, as GGUF's Q4_1 does: the least number becomes 0, the greatest 15."""
    blocks = weight.float().unflatten(1, (-1, BLOCK_SIZE))
    minimums = blocks.amin(dim=2).half()
    scales = ((blocks.amax(dim=2) - minimums.float()) / 15).half()
    values = torch.round((blocks - minimums.float().unsqueeze(2)) / _divisor(scales)).clamp(0, 15)
    return BlockWeight(values.to(torch.uint8).flatten(1), scales, minimums)


def _divisor(scales: torch.Tensor) -> torch.Tensor:
    """Scales as divisors: a block of equal numbers has scale 0, and all its values are 0."""
    wide = scales.float().unsqueeze(2)
    return torch.where(wide > 0, wide, torch.inf)
