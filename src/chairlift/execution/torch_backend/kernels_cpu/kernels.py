"""The CPU's set of kernels: NumPy-free glue between torch tensors and the compiled bodies.

Knows nothing of model architectures. Products of matrices with float32 weights run in :mod:`linear`; with bfloat16
weights in oneDNN, which uses the CPU's own bfloat16 instructions.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from chairlift.execution.torch_backend.device import computes_bfloat16
from chairlift.execution.torch_backend.forward import ForwardBatch
from chairlift.execution.torch_backend.kernels_cpu import attention, draw, linear, rows
from chairlift.execution.torch_backend.kernels_cpu.compilation import compile_body
from chairlift.execution.torch_backend.kernels_cpu.threads import OpenMPThreads, Threads, WorkerThreads
from chairlift.execution.torch_backend.most_likely import MostLikely, most_likely
from chairlift.execution.torch_backend.number_bits import float_bits
from chairlift.execution.torch_backend.reference_kernels import ReferenceKernels
from chairlift.execution.torch_backend.weights.blocks import BlockWeight

_SERIAL_NUMBERS = 32_768
"""Row operations on fewer numbers than this, some 20 us of work, are not worth sharing."""


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A linear layer's weights, ready for one of the two ways to multiply."""

    num_outputs: int
    weight: torch.Tensor
    """float32 panels [N / W, K, W], or bfloat16 in oneDNN's own layout."""
    bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Runs:
    """The attention items of one step; ``pages`` keeps the memory alive that ``items`` points to."""

    batch: ForwardBatch
    items: np.ndarray
    pages: list[np.ndarray]


class CpuKernels:
    """Implements :class:`~chairlift.execution.torch_backend.kernels.Kernels` for one dtype.

    Everything is compiled when the constructor returns. Not for use by two threads at once.
    """

    name = "compiled"

    def __init__(self, dtype: torch.dtype, num_threads: int) -> None:
        self.dtype = dtype
        self._is_half = int(dtype == torch.bfloat16)
        self._packs_half = dtype == torch.bfloat16 and computes_bfloat16()
        self._reference = ReferenceKernels()
        threads = OpenMPThreads if self._is_half else WorkerThreads
        self.threads: Threads = threads(num_threads)
        self.num_torch_threads = num_threads if self._is_half else 1
        """Threads for torch's own operations; one where it does only small things, see :mod:`threads`."""
        self._linear = compile_body(linear.linear_body)
        self._norm = compile_body(rows.norm_body)
        self._rotate = compile_body(rows.rotate_body)
        self._silu_mul = compile_body(rows.silu_mul_body)
        self._attention = compile_body(attention.attention_body)
        self._draw = compile_body(draw.draw_body)
        self._scratch = torch.empty(0)
        self._runs: _Runs | None = None

    def close(self) -> None:
        """End the threads."""
        self.threads.close()

    def pack_linear(self, weight: torch.Tensor | BlockWeight, bias: torch.Tensor | None = None) -> PackedLinear:
        """Lay weights out the way they are read; blocks become floats first."""
        floats = weight.dequantized(self.dtype) if isinstance(weight, BlockWeight) else weight.to(self.dtype)
        if self._is_half:
            bias = None if bias is None else bias.to(self.dtype)
            if self._packs_half:
                floats = torch.ops.mkldnn._reorder_linear_weight(floats.contiguous(), None)
            return PackedLinear(len(floats), floats, bias)
        panels = linear.pack_panels(floats)
        if bias is not None:
            bias = torch.nn.functional.pad(bias.float(), (0, panels.shape[0] * panels.shape[2] - len(bias)))
        return PackedLinear(len(floats), panels, bias)

    def pack_embedding(self, weight: torch.Tensor | BlockWeight, head: PackedLinear | None = None) -> torch.Tensor:
        """Keep the table as it is; a head's panels cannot be read by row."""
        return weight if isinstance(weight, torch.Tensor) else weight.dequantized(self.dtype)

    def embed(self, token_ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """``[T] -> [T, E]``."""
        return torch.nn.functional.embedding(token_ids, table)

    def take_rows(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """``x[rows]``."""
        return x[rows]

    def finish(self) -> None:
        """Nothing is ever due."""

    def linear(self, x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
        """``[T, in] -> [T, out]``."""
        if len(x) == 0:  # a step of prompts that none of them ends has no sampling row
            return x.new_empty(0, packed.num_outputs)
        if self._packs_half:
            return torch.ops.mkldnn._linear_pointwise(x, packed.weight, packed.bias, "none", [], "")
        if self._is_half:
            return torch.nn.functional.linear(x, packed.weight, packed.bias)
        num_rows, depth = x.shape
        num_panels, _, width = packed.weight.shape
        y = torch.empty(num_rows, num_panels * width)  # [T, N padded]
        block_rows, block_panels = linear.block_sizes(num_rows, depth, num_panels, self.threads.num_threads)
        self.threads.run(
            self._linear,
            x.data_ptr(),
            x.stride(0),
            packed.weight.data_ptr(),
            0 if packed.bias is None else packed.bias.data_ptr(),
            y.data_ptr(),
            num_rows,
            depth,
            num_panels,
            width,
            block_rows,
            block_panels,
        )
        return y if y.shape[1] == packed.num_outputs else y[:, : packed.num_outputs].contiguous()

    def argmax(self, x: torch.Tensor, packed: PackedLinear) -> MostLikely:
        """``[T, in] -> [T]``."""
        return most_likely(self.linear(x, packed).float())

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Root-mean-square norm over the last axis."""
        return self._normalize(x, 0, weight, eps)

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """``residual += x`` in place; return ``rms_norm(residual)``."""
        return self._normalize(x, residual.data_ptr(), weight, eps)

    def rope_and_write_kv(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cos_sin: tuple[torch.Tensor, torch.Tensor],
        batch: ForwardBatch,
        kv: torch.Tensor,
    ) -> None:
        """Rotate queries in place and write rotated keys, and values, to the pages."""
        num_rows, num_heads, head_size = q.shape
        self.threads.run(
            self._rotate,
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            q.stride(0),
            k.stride(0),
            v.stride(0),
            cos_sin[0].data_ptr(),
            cos_sin[1].data_ptr(),
            batch.positions.data_ptr(),
            batch.kv_slots.data_ptr(),
            kv.data_ptr(),
            num_rows,
            num_heads,
            k.shape[1],
            head_size,
            kv.shape[3],
            kv.stride(0) * kv.element_size(),
            self._is_half,
            self._scratch_address(2 * head_size),
            parallel=num_rows * (num_heads + 2 * k.shape[1]) * head_size > _SERIAL_NUMBERS,
        )

    def attention(
        self, q: torch.Tensor, kv: torch.Tensor, batch: ForwardBatch, scale: float, window: int | None
    ) -> torch.Tensor:
        """Causal attention of every row over its request's pages."""
        num_rows, num_heads, head_size = q.shape
        _, _, num_kv_heads, page_size, _ = kv.shape
        if not attention.supports(head_size):
            return self._reference.attention(q, kv, batch, scale, window)
        group = num_heads // num_kv_heads
        runs = self._runs
        if runs is None or runs.batch is not batch:
            runs = self._runs = _make_runs(batch, attention.tokens_per_run(group))
        out = torch.empty(num_rows, num_heads * head_size, dtype=q.dtype)  # [T, H * d]
        num_floats = attention.scratch_floats(group, head_size, page_size)
        self.threads.run(
            self._attention,
            runs.items.ctypes.data,
            len(runs.items),
            num_kv_heads,
            self._scratch_address(num_floats),
            num_floats,
            q.data_ptr(),
            q.stride(0),
            out.data_ptr(),
            out.stride(0),
            group,
            head_size,
            page_size,
            kv.data_ptr(),
            kv.stride(0) * kv.element_size(),
            self._is_half,
            float_bits(scale),
            window or 0,
            attention.segment_tokens(page_size),
        )
        return out

    def gated_mlp(self, x: torch.Tensor, gate_up: PackedLinear, down: PackedLinear) -> torch.Tensor:
        """``[T, E] -> [T, E]``: ``down(silu(first half) * second half)`` of the product with ``gate_up``."""
        return self.linear(self.silu_mul(self.linear(x, gate_up)), down)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """``[T, 2 * I] -> [T, I]``: ``silu(first half) * second half``."""
        num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty(num_rows, width, dtype=gate_up.dtype)
        self.threads.run(
            self._silu_mul,
            gate_up.data_ptr(),
            out.data_ptr(),
            num_rows,
            width,
            self._is_half,
            self._scratch_address(3 * width),
            parallel=num_rows * width > _SERIAL_NUMBERS,
        )
        return out

    def draw(
        self,
        logits: torch.Tensor,
        best: torch.Tensor,
        drawn_rows: NDArray[np.int64],
        columns: NDArray[np.void],
        numbers: NDArray[np.float64],
    ) -> NDArray[np.int64]:
        """Implements :data:`~chairlift.execution.torch_backend.torch_draw.Draw`."""
        size = logits.shape[1]
        token_ids = np.empty(len(drawn_rows), np.int64)
        best_logits = best.numpy()[drawn_rows]
        with np.errstate(divide="ignore"):
            floor = np.log(columns["min_p"])
        temperature, top_k, top_p = (np.ascontiguousarray(columns[name]) for name in ("temperature", "top_k", "top_p"))
        self.threads.run(
            self._draw,
            logits.data_ptr(),
            size,
            drawn_rows.ctypes.data,
            len(drawn_rows),
            best_logits.ctypes.data,
            temperature.ctypes.data,
            floor.ctypes.data,
            top_k.ctypes.data,
            top_p.ctypes.data,
            numbers.ctypes.data,
            token_ids.ctypes.data,
            self._scratch_address(2 * size + draw.SCRATCH_EXTRA_FLOATS),
        )
        return token_ids

    def _normalize(self, x: torch.Tensor, residual_address: int, weight: torch.Tensor, eps: float) -> torch.Tensor:
        x = x.contiguous()  # heads of a token may lie apart from those of the next
        width = x.shape[-1]
        num_rows = x.numel() // width
        out = torch.empty_like(x)
        self.threads.run(
            self._norm,
            x.data_ptr(),
            residual_address,
            weight.data_ptr(),
            out.data_ptr(),
            num_rows,
            width,
            float_bits(eps),
            self._is_half,
            self._scratch_address(3 * width),
            parallel=num_rows * width > _SERIAL_NUMBERS,
        )
        return out

    def _scratch_address(self, floats_per_thread: int) -> int:
        needed = floats_per_thread * self.threads.num_threads
        if self._scratch.numel() < needed:
            self._scratch = torch.empty(needed)
        return self._scratch.data_ptr()


def _make_runs(batch: ForwardBatch, tokens_per_run: int) -> _Runs:
    """Cut the step's rows into runs of tokens that share a page table; long ones come first."""
    pages: list[np.ndarray] = []
    items: list[np.ndarray] = []
    for chunk in batch.prefills:
        table = chunk.pages.numpy().astype(np.int32)
        pages.append(table)
        starts = np.arange(0, chunk.length, tokens_per_run)
        runs = np.empty((len(starts), attention.ITEM_FIELDS), np.int64)
        runs[:, 0] = chunk.row_start + starts
        runs[:, 1] = np.minimum(tokens_per_run, chunk.length - starts)
        runs[:, 2] = chunk.context_length - chunk.length + starts
        runs[:, 3] = table.ctypes.data
        items.append(runs[::-1])
    table = np.ascontiguousarray(batch.decode_page_tables.numpy())
    pages.append(table)
    runs = np.empty((batch.num_decodes, attention.ITEM_FIELDS), np.int64)
    runs[:, 0] = np.arange(batch.num_decodes)
    runs[:, 1] = 1
    runs[:, 2] = batch.decode_context_lengths.numpy() - 1
    runs[:, 3] = table.ctypes.data + runs[:, 0] * table.strides[0]
    items.append(runs)
    return _Runs(batch, np.concatenate(items), pages)
