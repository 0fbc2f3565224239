"""Kernels that several files of tests call, each closed after its file."""

from collections.abc import Iterator

import pytest
import torch

from chairlift.execution.torch_backend.kernels_cpu.threads import WorkerThreads
from chairlift.execution.torch_backend.kernels_native.kernels import NativeKernels
from chairlift.execution.torch_backend.kernels_native.library import LibraryError, open_library
from tests.equivalence.kernels.eager_kernels import EagerKernels


# Every instruction set that this processor has, and the portable code in both widths.
@pytest.fixture(
    scope="module",
    params=[("amx", 2), ("tiles", 1), ("avx512", 2), ("avx2", 1), ("avx2", 3), ("wide", 2), ("generic", 1)],
    ids=str,
)
def lazy_kernels(request: pytest.FixtureRequest) -> Iterator[NativeKernels]:
    name, num_threads = request.param
    try:
        library = open_library(name)
    except LibraryError as error:
        pytest.skip(str(error))
    threads = WorkerThreads(num_threads)
    yield NativeKernels(library, threads)
    threads.close()


@pytest.fixture
def kernels(lazy_kernels: NativeKernels) -> EagerKernels:
    return EagerKernels(lazy_kernels)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
