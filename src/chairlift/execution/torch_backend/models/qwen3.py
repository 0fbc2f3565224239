"""Qwen 3 (dense): Llama with a norm over each query and key head, and a head size of its own.

Knows nothing of devices, requests or where weights come from.
"""

import torch

from chairlift.execution.torch_backend.kernels import Kernels
from chairlift.execution.torch_backend.model_config import ModelConfig
from chairlift.execution.torch_backend.models.llama import Llama, LlamaAttention, LlamaLayer, Shapes
from chairlift.execution.torch_backend.weights.checkpoint import WeightReader


class Qwen3Attention(LlamaAttention):
    """Norms each head of queries and keys before it is rotated."""

    def __init__(self, config: ModelConfig, layer: int, weights: WeightReader, kernels: Kernels) -> None:
        super().__init__(config, layer, weights, kernels)
        self._q_norm = weights.read(f"model.layers.{layer}.self_attn.q_norm.weight")
        self._k_norm = weights.read(f"model.layers.{layer}.self_attn.k_norm.weight")

    @staticmethod
    def weight_shapes(config: ModelConfig, name: str) -> Shapes:
        """Llama's, and the two norms."""
        norms: Shapes = {f"{name}.{part}_norm.weight": (config.head_dim,) for part in "qk"}
        return LlamaAttention.weight_shapes(config, name) | norms

    def heads(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries ``[T, H, d]`` and keys ``[T, G, d]`` with norm, values as they are."""
        q, k, v = super().heads(x)
        return self._normed(q, self._q_norm), self._normed(k, self._k_norm), v

    def _normed(self, heads: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._kernels.rms_norm(heads, weight, self._config.rms_norm_eps)


class Qwen3Layer(LlamaLayer):
    """A Llama layer with this attention."""

    attention_type = Qwen3Attention


class Qwen3(Llama):
    """A whole model."""

    layer_type = Qwen3Layer
