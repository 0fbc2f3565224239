"""Kernels whose results may depend on a batch, beside such that promise otherwise."""

from collections.abc import Iterator

import pytest

from chairlift.execution.torch_backend.kernels_cpu.threads import WorkerThreads
from chairlift.execution.torch_backend.kernels_native.kernels import NativeKernels
from chairlift.execution.torch_backend.kernels_native.library import LibraryError, open_library
from tests.equivalence.kernels.eager_kernels import EagerKernels


def both_kinds(instruction_set: str) -> Iterator[tuple[EagerKernels, EagerKernels]]:
    """Yield them once; the test is skipped where the processor does not have the instruction set."""
    try:
        library = open_library(instruction_set)
    except LibraryError as error:
        pytest.skip(str(error))
    threads = WorkerThreads(2)
    usual, invariant = (NativeKernels(library, threads, is_batch_invariant=value) for value in (False, True))
    yield EagerKernels(usual), EagerKernels(invariant)
    threads.close()
