"""Host memory for the KV pages of preempted requests, and the copies there and back.

Knows nothing of requests: which page goes where is in the plan.

On a CPU it is ordinary memory, and a copy is done when the call returns. On a GPU it is pinned memory and copies run
on a stream of their own: pages leave through a staging buffer while the step computes, and a step that needs pages
back waits for those alone.
"""

import time
from collections.abc import Sequence
from typing import Protocol

import torch

from chairlift.core.step_plan import PageCopy

_NS_PER_MS = 1_000_000


class HostCache:
    """Pages of all layers in host memory; ``layers[i]`` is ``[2, P, G, p, d]`` like those of the KV cache.

    Args:
        device_layers: the pages on the device.
        host_layers: those in host memory; empty if there are none.
        device: what the model runs on.
    """

    def __init__(
        self, device_layers: list[torch.Tensor], host_layers: list[torch.Tensor], device: torch.device
    ) -> None:
        self._device_layers = device_layers
        self.layers = host_layers if device.type == "cpu" else [layer.pin_memory() for layer in host_layers]
        self._copier: _Copier = _BlockingCopier() if device.type == "cpu" else _StreamCopier(device)

    def copy(self, out: Sequence[PageCopy], back: Sequence[PageCopy]) -> None:
        """Start a plan's copies, those to the host first; what the step computes afterwards finds its pages there."""
        if not out and not back:
            return
        self._copier.begin()
        if out:
            self._copier.copy_out(self._device_layers, self.layers, *_indices(out))
        if back:
            self._copier.copy_back(self.layers, self._device_layers, *_indices(back))
        self._copier.end()

    def take_duration_ns(self) -> int:
        """Wait for the copies of the step, and return how long they took; 0 if there were none."""
        return self._copier.take_duration_ns()

    def close(self) -> None:
        """Free the memory."""
        self._copier.take_duration_ns()
        self.layers.clear()


def _indices(copies: Sequence[PageCopy]) -> tuple[torch.Tensor, torch.Tensor]:
    sources = torch.tensor([copy.source for copy in copies])
    targets = torch.tensor([copy.target for copy in copies])
    return sources, targets


class _Copier(Protocol):
    """Copies pages ``from_pages`` of all layers to pages ``to_pages``, between :meth:`begin` and :meth:`end`."""

    def begin(self) -> None: ...
    def end(self) -> None: ...
    def copy_out(
        self, sources: list[torch.Tensor], targets: list[torch.Tensor], from_pages: torch.Tensor, to_pages: torch.Tensor
    ) -> None: ...
    def copy_back(
        self, sources: list[torch.Tensor], targets: list[torch.Tensor], from_pages: torch.Tensor, to_pages: torch.Tensor
    ) -> None: ...
    def take_duration_ns(self) -> int: ...


class _BlockingCopier:
    """Both sides are ordinary memory."""

    def __init__(self) -> None:
        self._started_ns = 0
        self._duration_ns = 0

    def begin(self) -> None:
        self._started_ns = time.perf_counter_ns()

    def end(self) -> None:
        self._duration_ns += time.perf_counter_ns() - self._started_ns

    def copy_out(
        self, sources: list[torch.Tensor], targets: list[torch.Tensor], from_pages: torch.Tensor, to_pages: torch.Tensor
    ) -> None:
        for source, target in zip(sources, targets, strict=True):
            target.index_copy_(1, to_pages, source.index_select(1, from_pages))

    copy_back = copy_out

    def take_duration_ns(self) -> int:
        duration_ns, self._duration_ns = self._duration_ns, 0
        return duration_ns


class _StreamCopier:
    """The device is a GPU. Copies run on a stream of their own, in the order in which they were asked for.

    ::

        compute stream   gather ──> step n (may overwrite the pages) ──> ...    scatter ──> step m (reads the pages)
        copy stream            └──> staging to host ─────────────────> host to staging ─┘
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._began = torch.cuda.Event(enable_timing=True)
        self._ended = torch.cuda.Event(enable_timing=True)
        self._is_timed = False

    def begin(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        self._began.record(self._stream)

    def end(self) -> None:
        self._ended.record(self._stream)
        self._is_timed = True

    def copy_out(
        self, sources: list[torch.Tensor], targets: list[torch.Tensor], from_pages: torch.Tensor, to_pages: torch.Tensor
    ) -> None:
        indices = from_pages.to(self._device)
        staged = [layer.index_select(1, indices) for layer in sources]
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for part, target in zip(staged, targets, strict=True):
                for row, page in enumerate(to_pages.tolist()):
                    # Keys and values one by one: only memory without gaps is copied without waiting for it.
                    target[0, page].copy_(part[0, row], non_blocking=True)
                    target[1, page].copy_(part[1, row], non_blocking=True)
                # The allocator must not hand the staging memory out before the copy stream is done with it.
                part.record_stream(self._stream)

    def copy_back(
        self, sources: list[torch.Tensor], targets: list[torch.Tensor], from_pages: torch.Tensor, to_pages: torch.Tensor
    ) -> None:
        compute = torch.cuda.current_stream(self._device)
        indices = to_pages.to(self._device)
        staged: list[torch.Tensor] = []
        with torch.cuda.stream(self._stream):
            for source in sources:
                shape = (source.shape[0], len(to_pages), *source.shape[2:])
                part = torch.empty(shape, dtype=source.dtype, device=self._device)
                for row, page in enumerate(from_pages.tolist()):
                    part[0, row].copy_(source[0, page], non_blocking=True)
                    part[1, row].copy_(source[1, page], non_blocking=True)
                staged.append(part)
        compute.wait_stream(self._stream)
        for part, target in zip(staged, targets, strict=True):
            target.index_copy_(1, indices, part)
            part.record_stream(compute)

    def take_duration_ns(self) -> int:
        if not self._is_timed:
            return 0
        self._is_timed = False
        self._ended.synchronize()
        return round(self._began.elapsed_time(self._ended) * _NS_PER_MS)
