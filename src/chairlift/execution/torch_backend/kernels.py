"""The few operations that models call; each device brings one set of them, passed in, never global.

Knows nothing of model architectures. ``x`` is always ``[T, E]``-like: rows first, contiguous.
"""

from typing import Any, Protocol

import torch

from chairlift.execution.torch_backend.forward import ForwardBatch
from chairlift.execution.torch_backend.most_likely import MostLikely
from chairlift.execution.torch_backend.weights.blocks import BlockWeight


class Kernels(Protocol):
    """Operations of one device. Results are new tensors unless said otherwise.

    Operations may be computed later, in the order of the calls: until :meth:`finish` nothing but shapes and views of a
    result may be used, and what was passed in must live, unless it is a result itself.
    """

    def pack_linear(self, weight: torch.Tensor | BlockWeight, bias: torch.Tensor | None = None) -> Any:
        """Prepare ``weight [out, in]`` once for :meth:`linear`; the caller drops its own reference."""
        ...

    def pack_embedding(self, weight: torch.Tensor | BlockWeight, head: Any = None) -> Any:
        """Prepare a table ``[V, E]`` for :meth:`embed`; ``head`` is the same one packed for :meth:`linear`, if tied."""
        ...

    def embed(self, token_ids: torch.Tensor, table: Any) -> torch.Tensor:
        """``[T] -> [T, E]``, int64 ids below ``V``."""
        ...

    def take_rows(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """``x[rows]``, for int64 rows."""
        ...

    def finish(self) -> None:
        """Compute whatever is still due; results and memory that operations wrote to can be read."""
        ...

    def linear(self, x: torch.Tensor, packed: Any) -> torch.Tensor:
        """``[T, in] -> [T, out]``."""
        ...

    def argmax(self, x: torch.Tensor, packed: Any) -> MostLikely:
        """``[T, in] -> [T]``: the highest output of :meth:`linear` and which one it is, computed at once."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Root-mean-square norm over the last axis, accumulated in float32.

        ``x`` is ``[T, E]``, or heads ``[T, H, d]`` whose tokens may lie apart.
        """
        ...

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """``residual += x`` in place; return ``rms_norm(residual)``."""
        ...

    def rope_and_write_kv(
        self,
        # [T, H, d], rotated in place (keys perhaps too); rows of q, k and v may lie apart, each one is contiguous
        q: torch.Tensor,
        k: torch.Tensor,  # [T, G, d]
        v: torch.Tensor,  # [T, G, d]
        cos_sin: tuple[torch.Tensor, torch.Tensor],  # float32 [max positions, d / 2] each
        batch: ForwardBatch,
        kv: torch.Tensor,  # this layer's pages, [2, P, G, p, d]; index 0 keys, 1 values
    ) -> None:
        """Rotate queries and keys by halves (``x1 cos - x2 sin | x2 cos + x1 sin``), write keys and values to pages."""
        ...

    def attention(
        self,
        q: torch.Tensor,  # [T, H, d]
        kv: torch.Tensor,  # [2, P, G, p, d]
        batch: ForwardBatch,
        scale: float,
        window: int | None,
    ) -> torch.Tensor:  # [T, H * d]
        """Causal attention of every row over its request's pages; ``window`` keeps only the last that many tokens."""
        ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """``[T, 2 * I] -> [T, I]``: ``silu(first half) * second half``."""
        ...

    def gated_mlp(self, x: torch.Tensor, gate_up: Any, down: Any) -> torch.Tensor:
        """``linear(silu_mul(linear(x, gate_up)), down)``."""
        ...
