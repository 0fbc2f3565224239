"""Every model operation in plain torch, for any device and dtype: the truth that faster kernels are tested against.

Knows nothing of speed: attention gathers each request's pages one request at a time.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional

from chairlift.execution.torch_backend.forward import ForwardBatch
from chairlift.execution.torch_backend.most_likely import MostLikely, most_likely
from chairlift.execution.torch_backend.weights.blocks import BlockWeight


@dataclass(frozen=True, slots=True)
class PlainLinear:
    """A linear layer's weights as they were given."""

    weight: torch.Tensor  # [out, in]
    bias: torch.Tensor | None


class ReferenceKernels:
    """Implements :class:`~chairlift.execution.torch_backend.kernels.Kernels`; sums and softmax run in float32."""

    def pack_linear(self, weight: torch.Tensor | BlockWeight, bias: torch.Tensor | None = None) -> PlainLinear:
        """Keep the weights as they are, but for blocks, which become float32."""
        return PlainLinear(weight if isinstance(weight, torch.Tensor) else weight.dequantized(), bias)

    def pack_embedding(self, weight: torch.Tensor | BlockWeight, head: PlainLinear | None = None) -> torch.Tensor:
        """Keep the table as it is, or a tied head's."""
        if head is not None:
            return head.weight
        return weight if isinstance(weight, torch.Tensor) else weight.dequantized()

    def embed(self, token_ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """``[T] -> [T, E]``."""
        return functional.embedding(token_ids, table)

    def take_rows(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """``x[rows]``."""
        return x[rows]

    def finish(self) -> None:
        """Nothing is ever due."""

    def linear(self, x: torch.Tensor, packed: PlainLinear) -> torch.Tensor:
        """``[T, in] -> [T, out]``."""
        return functional.linear(x, packed.weight, packed.bias)

    def argmax(self, x: torch.Tensor, packed: PlainLinear) -> MostLikely:
        """``[T, in] -> [T]``."""
        return most_likely(self.linear(x, packed).float().cpu())

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Root-mean-square norm over the last axis; rounded once, at the end."""
        wide = _widened(x)
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
        return (wide * scale * weight).to(x.dtype)

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """``residual += x`` in place; return ``rms_norm(residual)``."""
        residual += x
        return self.rms_norm(residual, weight, eps)

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
        cos, sin = (table[batch.positions].unsqueeze(1) for table in cos_sin)  # [T, 1, d / 2]
        q.copy_(_rotated(q, cos, sin))
        page_size = kv.shape[3]
        pages = batch.kv_slots // page_size  # [T]
        offsets = batch.kv_slots % page_size  # [T]
        kv[0][pages, :, offsets] = _rotated(k, cos, sin)  # [T, G, d]
        kv[1][pages, :, offsets] = v

    def attention(
        self, q: torch.Tensor, kv: torch.Tensor, batch: ForwardBatch, scale: float, window: int | None
    ) -> torch.Tensor:
        """Causal attention of every row over its request's pages, one request after the other."""
        out = torch.empty_like(q)  # [T, H, d]
        page_size = kv.shape[3]
        for row, context_length in enumerate(batch.decode_context_lengths.tolist()):
            pages = batch.decode_page_tables[row, : -(-context_length // page_size)].long()
            out[row : row + 1] = _attend(q[row : row + 1], kv, pages, context_length, scale, window)
        for chunk in batch.prefills:
            rows = slice(chunk.row_start, chunk.row_start + chunk.length)
            out[rows] = _attend(q[rows], kv, chunk.pages, chunk.context_length, scale, window)
        return out.flatten(1)  # [T, H * d]

    def gated_mlp(self, x: torch.Tensor, gate_up: PlainLinear, down: PlainLinear) -> torch.Tensor:
        """``[T, E] -> [T, E]``: ``down(silu(first half) * second half)`` of the product with ``gate_up``."""
        return self.linear(self.silu_mul(self.linear(x, gate_up)), down)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """``[T, 2 * I] -> [T, I]``: ``silu(first half) * second half``."""
        gate, up = _widened(gate_up).chunk(2, dim=-1)
        return (functional.silu(gate) * up).to(gate_up.dtype)


def _widened(x: torch.Tensor) -> torch.Tensor:
    """``x`` in float32, or as it is if that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = _widened(x).chunk(2, dim=-1)  # [T, heads, d / 2] each
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def _attend(
    q: torch.Tensor, kv: torch.Tensor, pages: torch.Tensor, context_length: int, scale: float, window: int | None
) -> torch.Tensor:
    """Attention of the last rows of one request's context::

    context  0 ............ context_length - rows ..... context_length
             |              | row 0, row 1, ... see up to themselves
    """
    rows, num_heads, _ = q.shape
    gathered = _widened(kv[:, pages]).transpose(1, 2).flatten(2, 3)[:, :, :context_length]  # [2, G, context, d]
    keys, values = gathered.repeat_interleave(num_heads // gathered.shape[1], dim=1)  # [H, context, d] each
    scores = _widened(q).transpose(0, 1) @ keys.transpose(1, 2) * scale  # [H, rows, context]
    key_positions = torch.arange(context_length, device=q.device)
    row_positions = torch.arange(context_length - rows, context_length, device=q.device).unsqueeze(1)
    hidden = key_positions > row_positions  # [rows, context]
    if window is not None:
        hidden |= key_positions <= row_positions - window
    weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    return (weights @ values).transpose(0, 1).to(q.dtype)  # [rows, H, d]
