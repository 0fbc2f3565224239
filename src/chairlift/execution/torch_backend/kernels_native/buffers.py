"""Memory for results that operations in one list write and read, used again as soon as nobody holds a result.

Knows nothing of operations. Operations run in the order in which they were written down, so the memory of a result that
Python has let go of may serve a later operation even before the list has run; it is never handed to anybody else.
"""

import math
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_ALIGNMENT = 64
_MIN_BYTES = 4096
_TILE_ROWS = 16
_KINDS = {
    torch.float32: ("<f4", 4),
    torch.int16: ("<i2", 2),
    torch.int32: ("<i4", 4),
    torch.int8: ("|i1", 1),
    torch.bfloat16: ("<i2", 2),
}


class Buffers:
    """Hands out tensors; their memory comes back by itself when the last view of them is gone."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[NDArray[np.uint8]]] = defaultdict(list)

    @property
    def num_bytes_free(self) -> int:
        """Memory that waits to be used again."""
        return sum(size * len(pieces) for size, pieces in self._free.items())

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a contiguous tensor with whatever was in its memory."""
        kind, item_bytes = _KINDS[dtype]
        # Sizes in powers of two: steps of all sizes share their memory.
        size = 1 << (max(_MIN_BYTES, math.prod(shape) * item_bytes) - 1).bit_length()
        free = self._free[size]
        memory = free.pop() if free else _aligned(size)
        return torch.from_numpy(np.asarray(_Lease(memory, free, shape, kind)))

    def rows_of_tiles(self, num_rows: int, width: int) -> torch.Tensor:
        """Return bfloat16 rows with memory behind them: products read tiles whole, whatever is there."""
        return self.empty(num_rows + _TILE_ROWS, width, dtype=torch.bfloat16)[:num_rows]


class _Lease:
    """Gives its memory back when the array made from it, and so every tensor over it, is gone."""

    __slots__ = ("__array_interface__", "_free", "_memory")

    def __init__(
        self, memory: NDArray[np.uint8], free: list[NDArray[np.uint8]], shape: tuple[int, ...], kind: str
    ) -> None:
        self._memory = memory
        self._free = free
        self.__array_interface__: dict[str, Any] = {
            "shape": shape,
            "typestr": kind,
            "data": (memory.ctypes.data, False),
            "version": 3,
        }

    def __del__(self) -> None:
        self._free.append(self._memory)


def _aligned(num_bytes: int) -> NDArray[np.uint8]:
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + num_bytes]
