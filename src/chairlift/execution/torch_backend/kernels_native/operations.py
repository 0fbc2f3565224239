"""The list of operations of a step: written down by Python, computed at once by all threads.

Knows nothing of what operations compute. Between two operations threads meet in compiled code, so Python's share of a
step is to write the list, and no operation waits for it. What is the same in every step is written once, see
:mod:`program`.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chairlift.execution.torch_backend.kernels_native.library import Library

_OPERATION_FIELDS = 48
_OPERATION_BYTES = 8 * _OPERATION_FIELDS
"""``Operation`` of ``csrc/sequence.h``: body and items, two counters on cache lines of their own, arguments."""
ITEMS_FIELD = 1
COUNTER_FIELDS = (8, 16)
FIRST_ARGUMENT = 24
_MAX_ARGUMENTS = _OPERATION_FIELDS - FIRST_ARGUMENT
_LAYOUTS = [struct.Struct(f"<qq48xq56xq56x{count}q") for count in range(_MAX_ARGUMENTS + 1)]
_MIN_CAPACITY = 512


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations in the memory that compiled code reads, one row each."""

    fields: NDArray[np.int64]  # [operations, 48]

    @property
    def address(self) -> int:
        """Of the first one."""
        return self.fields.ctypes.data


class OperationList:
    """Operations that are due; :meth:`run` computes them in order and begins a new list.

    Args:
        library: the operations.
        run_body: runs a body with arguments on all threads, or on the calling one alone.
    """

    def __init__(self, library: Library, run_body: Callable[..., None]) -> None:
        self._library = library
        self._run_body = run_body
        self._kept: list[Any] = []
        self._operations = _operations(_MIN_CAPACITY)
        self._bytes = memoryview(self._operations.fields.reshape(-1).view(np.uint8).data)
        self._num_items = 0
        self.count = 0

    def add(self, name: str, num_items: int, *arguments: int) -> None:
        """Write down an operation; all addresses among its arguments must stay valid until the list has run."""
        offset = self.count * _OPERATION_BYTES
        if offset == len(self._bytes):
            self._grow()
        _LAYOUTS[len(arguments)].pack_into(self._bytes, offset, self._library.bodies[name], num_items, 0, 0, *arguments)
        self.count += 1
        self._num_items = max(self._num_items, num_items)

    def amend(self, index: int, argument: int, *values: int) -> None:
        """Replace arguments of an operation that was written down."""
        first = FIRST_ARGUMENT + argument
        self._operations.fields[index, first : first + len(values)] = values

    def keep(self, *objects: object) -> None:
        """Keep objects alive whose memory the operations use."""
        self._kept += objects

    def run(self) -> None:
        """Compute what is due."""
        if self.count:
            self.run_these(self._operations, self.count, parallel=self._num_items > 1)
        self._clear()

    def run_these(self, operations: Operations, count: int, *, parallel: bool = True) -> None:
        """Compute operations that were written down earlier."""
        self._run_body(self._library.run_sequence, operations.address, count, parallel=parallel)

    def take(self) -> Operations:
        """Return what is due without computing it, and begin a new list."""
        taken = _operations(self.count)
        taken.fields[...] = self._operations.fields[: self.count]
        self._clear()
        return taken

    def _clear(self) -> None:
        self.count = self._num_items = 0
        self._kept.clear()

    def _grow(self) -> None:
        old = self._operations.fields
        self._operations = _operations(2 * len(old))
        self._operations.fields[: len(old)] = old
        self._bytes = memoryview(self._operations.fields.reshape(-1).view(np.uint8).data)


def _operations(capacity: int) -> Operations:
    memory = np.zeros(capacity * _OPERATION_BYTES + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return Operations(memory[start : start + capacity * _OPERATION_BYTES].view(np.int64).reshape(-1, _OPERATION_FIELDS))
