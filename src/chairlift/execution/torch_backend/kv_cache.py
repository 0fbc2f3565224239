"""The memory of KV pages: one tensor per layer, and the arithmetic of how many pages fit.

Knows nothing of requests: which page belongs to whom is the scheduler's business.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from chairlift.core.step_plan import PageCopy, StepPlan
from chairlift.execution.torch_backend.host_cache import HostCache
from chairlift.execution.torch_backend.memory_ahead import MemoryAhead, regions_of

_CACHE_LINE_BYTES = 64
_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class KVShape:
    """Shape of the KV memory of one model: everything but the number of pages.

    With int8, every row of ``d`` numbers is followed by its float32 scale, so that a page is one piece of memory.
    """

    num_layers: int
    num_kv_heads: int
    head_size: int
    page_size: int
    dtype: torch.dtype

    @property
    def row_size(self) -> int:
        """Numbers of the dtype in one row: a token's keys or values of one head, and their scale."""
        return self.head_size + (_SCALE_BYTES if self.dtype == torch.int8 else 0)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page in all layers, keys and values."""
        return 2 * self.num_layers * self.num_kv_heads * self.page_size * self.row_size * self.dtype.itemsize

    def num_pages(self, num_bytes: int) -> int:
        """Return how many pages fit into ``num_bytes``."""
        return num_bytes // self.page_bytes


class KVCache:
    """KV pages of all layers; ``layers[i]`` is ``[2, P, G, p, row]``, keys first. ``host`` is the tier beside them.

    On a CPU the memory is reserved at once but taken from the system only shortly before a page is first written.
    """

    def __init__(self, shape: KVShape, num_pages: int, device: torch.device, *, num_host_pages: int = 0) -> None:
        self.shape = shape
        self.num_pages = num_pages
        self.layers = _pages(shape, num_pages, device)
        self.host = HostCache(self.layers, _pages(shape, num_host_pages, torch.device("cpu")), device)
        self._ahead = MemoryAhead([region for layer in self.layers for region in regions_of(layer)])
        self._ahead.reached(0)

    def reached(self, plan: StepPlan) -> None:
        """A step is about to be run that may write the pages which this plan names."""
        named = [max(new.pages, default=0) for new in plan.new]
        named += [max(growth.pages, default=0) for growth in plan.grown]
        named += [copy.target for copy in (*plan.copies, *plan.swapped_in)]
        self._ahead.reached(max(named, default=0))

    def close(self) -> None:
        """Free the memory."""
        self._ahead.close()
        self.host.close()
        self.layers.clear()

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy whole pages in all layers; no page is both a source and a target."""
        if not copies:
            return
        device = self.layers[0].device
        sources = torch.tensor([copy.source for copy in copies], device=device)
        targets = torch.tensor([copy.target for copy in copies], device=device)
        for layer in self.layers:
            layer[:, targets] = layer[:, sources]


def _pages(shape: KVShape, num_pages: int, device: torch.device) -> list[torch.Tensor]:
    if num_pages == 0:
        return []
    size = (2, num_pages, shape.num_kv_heads, shape.page_size, shape.row_size)
    return [_zeros(size, shape.dtype, device) for _ in range(shape.num_layers)]


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    # calloc gives zero pages of the system without touching them, so a big cache neither slows the start nor occupies
    # memory early; the slice puts every page's rows on cache lines.
    num_bytes = int(np.prod(size)) * dtype.itemsize
    memory = np.zeros(num_bytes + _CACHE_LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE_BYTES
    return torch.from_numpy(memory[start : start + num_bytes]).view(dtype).view(size)
