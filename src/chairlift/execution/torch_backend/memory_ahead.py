"""Takes memory from the system shortly before it is written, beside the steps.

Knows nothing of pages of KV or who has them: it is told regions that are written in step with one another from front to
back, and how far somebody has come.

A system gives memory out when it is first written, and stops the writer meanwhile. Where it gives it out in huge pages,
all layers of a KV cache reach the end of theirs in the same step: on a virtual machine whose host takes 8 ms for each,
one step in some thousand tokens lasts a quarter of a second longer.
"""

import ctypes
import mmap
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event, Lock, Thread

import torch

_HUGE_PAGE_BYTES = 2 << 20
_MADV_POPULATE_WRITE = 23
"""Linux 5.14 and newer; what is there already stays as it is, so that it may be written meanwhile."""
_PAUSE = 3.0


@dataclass(frozen=True, slots=True)
class Region:
    """Equal items, one behind the other, in memory that nobody frees while ``owner`` lives."""

    owner: torch.Tensor
    address: int
    item_bytes: int
    num_items: int

    def take(self, first: int, end: int) -> bool:
        """Take the memory of items ``[first, end)``; return whether the system does such a thing."""
        end = min(end, self.num_items)
        if first >= end:
            return True
        start = self.address + first * self.item_bytes
        start -= start % mmap.PAGESIZE
        num_bytes = self.address + end * self.item_bytes - start
        return _libc().madvise(ctypes.c_void_p(start), ctypes.c_size_t(num_bytes), _MADV_POPULATE_WRITE) == 0


class MemoryAhead:
    """Keeps the memory of regions ahead of their use, by a quarter of a block to one and a quarter.

    A block is as many items as fill a huge page of one region. A thread lives as long as there is something to take. It
    pauses for three times as long as each piece took, so that it costs steps little; only the first block is taken at
    once, since nothing runs yet.

    Args:
        regions: with equally many items, which are used in step with one another; none if nothing is to be done.
    """

    def __init__(self, regions: Sequence[Region]) -> None:
        self._regions = list(regions) if sys.platform == "linux" else []
        self._block_items = max((-(-_HUGE_PAGE_BYTES // region.item_bytes) for region in self._regions), default=1)
        self._num_wanted = 0
        self._num_taken = 0
        self._lock = Lock()
        self._thread: Thread | None = None
        self._is_closed = Event()

    def reached(self, item: int) -> None:
        """Somebody is about to write this item; what follows soon is taken in the background."""
        # What is three quarters of a block further on, but at least the next item.
        num_wanted = 1 + (item + max(1, self._block_items * 3 // 4)) // self._block_items
        if num_wanted <= self._num_wanted or not self._regions:
            return
        with self._lock:
            self._num_wanted = num_wanted
            if self._thread is None:
                self._thread = Thread(target=self._take, name="chairlift-memory", daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Block until everything is taken that somebody will soon reach."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """Take nothing more; afterwards the memory may be freed."""
        self._is_closed.set()
        self._regions = []
        self.wait()

    def _take(self) -> None:
        while True:
            with self._lock:
                if self._num_taken >= self._num_wanted or not self._regions:
                    self._thread = None
                    return
                block, regions = self._num_taken, self._regions
                self._num_taken += 1
            first = block * self._block_items
            for region in regions:
                start_s = time.perf_counter()
                if not region.take(first, first + self._block_items):
                    self._regions = []  # an old kernel, or no memory: whoever writes will find out
                    break
                pause_s = _PAUSE * (time.perf_counter() - start_s) if block else 0.0
                if self._is_closed.wait(pause_s):
                    break


def regions_of(tensor: torch.Tensor) -> list[Region]:
    """Return the two halves of a layer ``[2, P, ...]`` as regions of ``P`` items; none if it is not on a CPU."""
    if tensor.device.type != "cpu" or tensor.shape[1] == 0:
        return []
    item_bytes = tensor[0, 0].nbytes
    return [Region(tensor, half.data_ptr(), item_bytes, tensor.shape[1]) for half in tensor]


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
