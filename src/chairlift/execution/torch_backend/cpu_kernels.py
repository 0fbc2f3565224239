"""Chooses the kernels for a CPU: compiled ones where Numba is installed, plain torch otherwise.

Knows nothing of how either works.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from chairlift.execution.torch_backend.kernels import Kernels
from chairlift.execution.torch_backend.reference_kernels import ReferenceKernels
from chairlift.execution.torch_backend.torch_draw import Draw, draw_tokens

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CpuKernelSet:
    """Kernels, ready to be called, and what comes with them."""

    kernels: Kernels
    description: str
    num_torch_threads: int
    """How many threads torch's own operations should have beside these kernels."""
    draw: Draw
    """How tokens are drawn from logits."""
    close: Callable[[], None]
    """Ends the kernels' threads."""


def make_cpu_kernels(dtype: torch.dtype, num_threads: int) -> CpuKernelSet:
    """Return the fastest kernels that work here."""
    try:
        from chairlift.execution.torch_backend.kernels_cpu.kernels import CpuKernels
    except ImportError as error:
        logger.warning("Numba is missing (%s): running on plain torch kernels, which are many times slower", error)
        return CpuKernelSet(ReferenceKernels(), "plain torch kernels", num_threads, draw_tokens, lambda: None)
    kernels = CpuKernels(dtype, num_threads)
    return CpuKernelSet(kernels, "compiled kernels", kernels.num_torch_threads, kernels.draw, kernels.close)
