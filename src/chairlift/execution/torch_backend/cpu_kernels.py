"""Chooses the kernels for a CPU: compiled ones where Numba is installed, plain torch otherwise.

Knows nothing of how either works.
"""

import logging

import torch

from chairlift.execution.torch_backend.kernels import Kernels
from chairlift.execution.torch_backend.reference_kernels import ReferenceKernels

logger = logging.getLogger(__name__)


def cpu_kernels(dtype: torch.dtype, num_threads: int) -> Kernels:
    """Return the fastest kernels that work here, compiled and ready."""
    try:
        from chairlift.execution.torch_backend.kernels_cpu.kernels import CpuKernels
    except ImportError as error:
        logger.warning("Numba is missing (%s): running on plain torch kernels, which are many times slower", error)
        return ReferenceKernels()
    return CpuKernels(dtype, num_threads)
