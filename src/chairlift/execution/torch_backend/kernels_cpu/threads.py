"""Runs compiled loop bodies on the OpenMP threads that torch already has.

Knows nothing of what the bodies compute. A second thread pool beside torch's would fight it for the cores: an idle
OpenMP thread spins for a while before it sleeps. So bodies are started through the very OpenMP library that torch is
linked with; where that cannot be found (macOS), they run on one thread.
"""

import ctypes
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from numba import cfunc, types

NUM_COUNTERS = 2
"""Arguments that every body has before its own: next work item, next thread number."""

_INT64_BYTES = 8


def compile_body(body: Callable[[int], None]) -> int:
    """Compile a loop body and return its address, from a cache on disk where one can be written."""
    signature = types.void(types.int64)
    options = {"error_model": "numpy", "fastmath": True}
    try:
        compiled = cfunc(signature, cache=True, **options)(body)
    except RuntimeError:  # Numba found no place for its cache
        compiled = cfunc(signature, **options)(body)
    _keep_alive.append(compiled)
    return compiled.address


def float_bits(number: float) -> int:
    """Return a float's bits as int64, the way bodies take floats."""
    return struct.unpack("<q", struct.pack("<d", number))[0]


class Threads:
    """Starts bodies on ``num_threads`` threads."""

    def __init__(self, num_threads: int) -> None:
        self._start = _find_parallel_start()
        self.num_threads = num_threads if self._start is not None else 1

    def run(self, body_address: int, *arguments: int, parallel: bool = True) -> None:
        """Run a body to its end on all threads, or on the calling one alone; ``arguments`` are its own."""
        packed = (ctypes.c_int64 * (NUM_COUNTERS + len(arguments)))(0, 0, *arguments)
        if parallel and self._start is not None and self.num_threads > 1:
            self._start(body_address, packed, self.num_threads, 0)
        else:
            _BODY(body_address)(ctypes.addressof(packed))


_BODY = ctypes.CFUNCTYPE(None, ctypes.c_int64)
_keep_alive: list[Any] = []
"""Machine code lives as long as the object that Numba returned for it."""


def _find_parallel_start() -> Any:
    """Return ``GOMP_parallel`` of the OpenMP library that torch itself uses; LLVM's and Intel's have it as well."""
    folder = Path(torch.__file__).parent / "lib"
    for path in sorted(folder.glob("libtorch_cpu.*")):
        try:
            start = ctypes.CDLL(str(path)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        start.restype = None
        start.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        return start
    return None
