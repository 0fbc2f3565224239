"""Native kernels for tests: what they are compared with, and results that can be read at once.

Knows nothing of instruction sets.
"""

from collections.abc import Callable
from typing import Any

from chairlift.execution.torch_backend.kernels_native.kernels import NativeKernels
from chairlift.execution.torch_backend.reference_kernels import ReferenceKernels

REFERENCE = ReferenceKernels()
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}


class EagerKernels:
    """Native kernels whose every result can be read at once."""

    def __init__(self, kernels: NativeKernels) -> None:
        self._kernels = kernels

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._kernels, name)

        def call(*arguments: Any) -> Any:
            result = method(*arguments)
            self._kernels.finish()
            return result

        return call
