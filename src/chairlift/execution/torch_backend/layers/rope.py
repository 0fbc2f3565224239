"""Rotary positions: the frequencies of every scaling variant, and the tables that kernels read.

Knows nothing of queries and keys; kernels rotate them.
"""

import math

import torch

from chairlift.execution.torch_backend.model_config import RopeConfig


def rope_tables(rope: RopeConfig, head_dim: int, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines, float32 ``[num_positions, d / 2]`` each, the attention factor multiplied in."""
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = torch.outer(positions, inverse_frequencies(rope, head_dim))  # [positions, d / 2]
    return angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Return the angle per position of each pair of dimensions, float32 ``[d / 2]``."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.frequency_divisors is not None:
        frequencies = frequencies / torch.tensor(rope.frequency_divisors, dtype=torch.float32)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _stretch_by_wavelength(rope, frequencies)
    if rope.kind == "yarn":
        return _stretch_by_dimension(rope, frequencies, head_dim)
    return frequencies


def _stretch_by_wavelength(rope: RopeConfig, frequencies: torch.Tensor) -> torch.Tensor:
    """Llama 3: turns per original context decide::

    turns       0 ....... low_freq_factor ....... high_freq_factor .......
                | divided by factor | blend of both | as it was
    """
    assert rope.original_max_positions is not None  # noqa: S101 - checked by RopeConfig
    turns = rope.original_max_positions * frequencies / (2 * math.pi)
    kept = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0, 1)
    return (1 - kept) * frequencies / rope.factor + kept * frequencies


def _stretch_by_dimension(rope: RopeConfig, frequencies: torch.Tensor, head_dim: int) -> torch.Tensor:
    """YaRN: fast dimensions stay, slow ones are divided by the factor, a linear ramp lies between."""
    low = _dimension_of_turns(rope, rope.beta_fast, head_dim)
    high = _dimension_of_turns(rope, rope.beta_slow, head_dim)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    stretched = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return stretched * frequencies / rope.factor + (1 - stretched) * frequencies


def _dimension_of_turns(rope: RopeConfig, turns: float, head_dim: int) -> float:
    """The (fractional) pair of dimensions that makes this many turns over the original context."""
    assert rope.original_max_positions is not None  # noqa: S101 - checked by RopeConfig
    return head_dim * math.log(rope.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))


def yarn_attention_factor(factor: float, mscale: float | None = None, mscale_all_dim: float | None = None) -> float:
    """What YaRN multiplies cosines and sines by when the model does not say."""
    if factor <= 1:
        return 1.0
    if mscale and mscale_all_dim:
        return _yarn_scale(factor, mscale) / _yarn_scale(factor, mscale_all_dim)
    return _yarn_scale(factor, 1.0)


def _yarn_scale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0
