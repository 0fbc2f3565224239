"""Chooses the kernels for a CPU: C++ where they can, Numba and oneDNN for bfloat16 without tiles, plain torch at worst.

Knows nothing of how any of them works.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from chairlift.execution.torch_backend.kernels import Kernels
from chairlift.execution.torch_backend.reference_kernels import ReferenceKernels
from chairlift.execution.torch_backend.torch_draw import Draw, draw_tokens

if TYPE_CHECKING:
    from chairlift.execution.torch_backend.executor import Model
    from chairlift.execution.torch_backend.kernels_native.library import Library
    from chairlift.execution.torch_backend.models import Llama

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
    kv_dtypes: frozenset[torch.dtype]
    """Numbers that KV pages may hold."""
    prepared: "Callable[[Llama, int], Model]"
    """Makes a model that is built on the kernels, and the rows of a step at most, into what the executor runs."""
    close: Callable[[], None]
    """Ends the kernels' threads."""
    is_batch_invariant: bool = False
    """Whether a row's results are the same, bit for bit, whatever rows are computed with it."""
    activation_dtype: torch.dtype | None = None
    """If it is another than the weights'."""


def make_cpu_kernels(
    dtype: torch.dtype, num_threads: int, head_size: int, *, deterministic: bool = False
) -> CpuKernelSet:
    """Return the fastest kernels that work here, for activations of a dtype and heads of a size.

    With ``deterministic``, they are batch-invariant if any are.
    """
    try:
        from chairlift.execution.torch_backend.kernels_cpu.kernels import CpuKernels
    except ImportError as error:
        logger.warning("Numba is missing (%s): running on plain torch kernels, which are many times slower", error)
        return plain_kernels(dtype, num_threads)
    library = _native_library(head_size)
    if library is None or (dtype != torch.float32 and not library.has_tiles):
        kernels = CpuKernels(dtype, num_threads)
        name, kv_dtypes = "kernels compiled by Numba", frozenset({dtype})
        return CpuKernelSet(kernels, name, kernels.num_torch_threads, kernels.draw, kv_dtypes, _as_it_is, kernels.close)
    from chairlift.execution.torch_backend.kernels_native.kernels import NativeKernels
    from chairlift.execution.torch_backend.kernels_native.recorded_model import RecordedModel

    # Tiles multiply bfloat16 weights; everything else is float32 in either case.
    compiled = CpuKernels(torch.float32, num_threads)
    native = NativeKernels(library, compiled.threads, is_batch_invariant=deterministic)
    return CpuKernelSet(
        native,
        native.description,
        compiled.num_torch_threads,
        compiled.draw,
        native.kv_dtypes,
        lambda model, max_rows: RecordedModel(model, native, max_rows),
        compiled.close,
        is_batch_invariant=deterministic,
        activation_dtype=torch.float32,
    )


def plain_kernels(dtype: torch.dtype, num_threads: int) -> CpuKernelSet:
    """Return kernels in plain torch, the truth that others are tested against."""
    name, kv_dtypes = "plain torch kernels", frozenset({dtype})
    return CpuKernelSet(ReferenceKernels(), name, num_threads, draw_tokens, kv_dtypes, _as_it_is, lambda: None)


def _as_it_is(model: "Llama", max_rows: int) -> "Model":
    return model


def _native_library(head_size: int) -> "Library | None":
    from chairlift.execution.torch_backend.kernels_native.kernels import NativeKernels
    from chairlift.execution.torch_backend.kernels_native.library import LibraryError, open_library

    if not NativeKernels.supports(head_size):
        logger.warning("heads of %d numbers do not fit the C++ kernels: using Numba's, which are slower", head_size)
        return None
    try:
        return open_library()
    except LibraryError as error:
        logger.warning("%s: using Numba's kernels, several times slower with weights of 4 or 8 bits", error)
        return None
