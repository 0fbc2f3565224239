"""Llama 2 and 3, SmolLM2 and their kin: the architecture that the others here are stated against.

Knows nothing of devices, requests or where weights come from.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from chairlift.execution.torch_backend.forward import ForwardBatch
from chairlift.execution.torch_backend.kernels import Kernels
from chairlift.execution.torch_backend.layers.rope import rope_tables
from chairlift.execution.torch_backend.model_config import ModelConfig
from chairlift.execution.torch_backend.most_likely import MostLikely
from chairlift.execution.torch_backend.weights.checkpoint import WeightReader

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class LayerInput:
    """What every layer of a step reads beside its activations."""

    batch: ForwardBatch
    cos_sin: tuple[torch.Tensor, torch.Tensor]  # [positions, d / 2] each


class LlamaAttention:
    """Grouped-query attention over KV pages, with rotary positions."""

    def __init__(self, config: ModelConfig, layer: int, weights: WeightReader, kernels: Kernels) -> None:
        name = f"model.layers.{layer}.self_attn"
        inputs = [f"{name}.{part}_proj" for part in "qkv"]
        self._kernels = kernels
        self._config = config
        self._window = config.windows[layer]
        self._qkv = kernels.pack_linear(
            weights.read_linear(*(f"{part}.weight" for part in inputs)),
            weights.read_if_any(*(f"{part}.bias" for part in inputs)),
        )
        self._output = kernels.pack_linear(
            weights.read_linear(f"{name}.o_proj.weight"), weights.read_if_any(f"{name}.o_proj.bias")
        )

    @staticmethod
    def weight_shapes(config: ModelConfig, name: str) -> Shapes:
        """Names and shapes of the weights under ``name``."""
        outputs = {"q": config.num_heads * config.head_dim} | dict.fromkeys("kv", config.num_kv_heads * config.head_dim)
        shapes: Shapes = {f"{name}.{part}_proj.weight": (size, config.hidden_size) for part, size in outputs.items()}
        shapes[f"{name}.o_proj.weight"] = (config.hidden_size, outputs["q"])
        if config.qkv_bias:
            shapes |= {f"{name}.{part}_proj.bias": (size,) for part, size in outputs.items()}
        if config.attention_output_bias:
            shapes[f"{name}.o_proj.bias"] = (config.hidden_size,)
        return shapes

    def __call__(
        self, x: torch.Tensor, step: LayerInput, kv: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """``[T, E] -> [T, E]``, or ``[S, E]`` for some ``rows``; writes keys and values of all rows to ``kv``."""
        q, k, v = self.heads(x)
        self._kernels.rope_and_write_kv(q, k, v, step.cos_sin, step.batch, kv)
        scale = self._config.head_dim**-0.5
        attended = self._kernels.attention(q, kv, step.batch, scale, self._window)  # [T, H * d]
        return self._kernels.linear(attended if rows is None else self._kernels.take_rows(attended, rows), self._output)

    def heads(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries ``[T, H, d]``, keys and values ``[T, G, d]``, not yet rotated; views of one tensor."""
        config = self._config
        qkv = self._kernels.linear(x, self._qkv).unflatten(1, (-1, config.head_dim))  # [T, H + 2 G, d]
        q, k, v = qkv.split((config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=1)
        return q, k, v


class LlamaMlp:
    """Gated MLP: ``down(silu(gate(x)) * up(x))``."""

    def __init__(self, layer: int, weights: WeightReader, kernels: Kernels) -> None:
        name = f"model.layers.{layer}.mlp"
        self._kernels = kernels
        self._gate_up = kernels.pack_linear(
            weights.read_linear(f"{name}.gate_proj.weight", f"{name}.up_proj.weight"),
            weights.read_if_any(f"{name}.gate_proj.bias", f"{name}.up_proj.bias"),
        )
        self._down = kernels.pack_linear(
            weights.read_linear(f"{name}.down_proj.weight"), weights.read_if_any(f"{name}.down_proj.bias")
        )

    @staticmethod
    def weight_shapes(config: ModelConfig, name: str) -> Shapes:
        """Names and shapes of the weights under ``name``."""
        hidden, inner = config.hidden_size, config.intermediate_size
        shapes: Shapes = {}
        for part, (outputs, inputs) in {
            "gate": (inner, hidden),
            "up": (inner, hidden),
            "down": (hidden, inner),
        }.items():
            shapes[f"{name}.{part}_proj.weight"] = (outputs, inputs)
            if config.mlp_bias:
                shapes[f"{name}.{part}_proj.bias"] = (outputs,)
        return shapes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, E] -> [T, E]``."""
        return self._kernels.gated_mlp(x, self._gate_up, self._down)


class LlamaLayer:
    """Attention, then MLP, each after a norm of the residual stream."""

    attention_type: ClassVar[type[LlamaAttention]] = LlamaAttention

    def __init__(self, config: ModelConfig, layer: int, weights: WeightReader, kernels: Kernels) -> None:
        self._kernels = kernels
        self._eps = config.rms_norm_eps
        self._input_norm = weights.read(f"model.layers.{layer}.input_layernorm.weight")
        self._attention = self.attention_type(config, layer, weights, kernels)
        self._mlp_norm = weights.read(f"model.layers.{layer}.post_attention_layernorm.weight")
        self._mlp = LlamaMlp(layer, weights, kernels)

    @classmethod
    def weight_shapes(cls, config: ModelConfig, name: str) -> Shapes:
        """Names and shapes of the weights under ``name``."""
        norms = ("input_layernorm", "post_attention_layernorm")
        return {
            **{f"{name}.{norm}.weight": (config.hidden_size,) for norm in norms},
            **cls.attention_type.weight_shapes(config, f"{name}.self_attn"),
            **LlamaMlp.weight_shapes(config, f"{name}.mlp"),
        }

    def __call__(
        self,
        update: torch.Tensor | None,
        residual: torch.Tensor,
        step: LayerInput,
        kv: torch.Tensor,
        rows: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add ``update`` of the layer before to ``residual`` in place; return this layer's update and the residual.

        Both are ``[T, E]``, or ``[S, E]`` if only some ``rows`` are wanted: keys and values are written for all.
        """
        if update is None:
            x = self._kernels.rms_norm(residual, self._input_norm, self._eps)
        else:
            x = self._kernels.add_rms_norm(update, residual, self._input_norm, self._eps)
        attended = self._attention(x, step, kv, rows)
        if rows is not None:
            residual = self._kernels.take_rows(residual, rows)
        return self._mlp(self._kernels.add_rms_norm(attended, residual, self._mlp_norm, self._eps)), residual


class Llama:
    """A whole model: embedding, layers, norm, output head."""

    layer_type: ClassVar[type[LlamaLayer]] = LlamaLayer

    def __init__(self, config: ModelConfig, weights: WeightReader, kernels: Kernels, max_model_len: int) -> None:
        self.config = config
        self.max_model_len = max_model_len
        self.dtype = weights.dtype
        """Of activations."""
        self._kernels = kernels
        table = weights.read_linear("model.embed_tokens.weight", is_table=True)  # [V, E]
        self._layers = [self.layer_type(config, layer, weights, kernels) for layer in range(config.num_layers)]
        self._norm = weights.read("model.norm.weight")
        if config.tie_word_embeddings:
            self._head = kernels.pack_linear(table)
            self._embedding = kernels.pack_embedding(table, self._head)
        else:
            self._head = kernels.pack_linear(weights.read_linear("lm_head.weight", is_table=True))
            self._embedding = kernels.pack_embedding(table)
        self._cos_sin = rope_tables(config.rope, config.head_dim, max_model_len)

    @classmethod
    def weight_shapes(cls, config: ModelConfig) -> Shapes:
        """Names and shapes of all weights, as in Hugging Face's models."""
        shapes: Shapes = {"model.embed_tokens.weight": (config.vocab_size, config.hidden_size)}
        for layer in range(config.num_layers):
            shapes |= cls.layer_type.weight_shapes(config, f"model.layers.{layer}")
        shapes["model.norm.weight"] = (config.hidden_size,)
        if not config.tie_word_embeddings:
            shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
        return shapes

    def forward(self, batch: ForwardBatch, kv_pages: list[torch.Tensor]) -> torch.Tensor:
        """Compute a step, and return its sampling rows, ``[S, E]`` (all rows if the batch names none).

        Keys and values of all rows are written to the pages of each layer; behind the last layer's attention only
        sampling rows are computed.
        """
        step = LayerInput(batch, self._cos_sin)
        residual = self._kernels.embed(batch.token_ids, self._embedding)  # [T, E]
        update = None
        for layer, kv in zip(self._layers, kv_pages, strict=True):
            rows = batch.sample_rows if layer is self._layers[-1] else None
            update, residual = layer(update, residual, step, kv, rows)
        assert update is not None  # noqa: S101 - there is at least one layer
        hidden = self._kernels.add_rms_norm(update, residual, self._norm, self.config.rms_norm_eps)
        self._kernels.finish()
        return hidden

    def logits(self, hidden_rows: torch.Tensor) -> torch.Tensor:
        """``[S, E] -> [S, V]`` in float32, for the rows that need it."""
        logits = self._kernels.linear(hidden_rows, self._head)
        self._kernels.finish()
        return logits.float()

    def most_likely(self, hidden_rows: torch.Tensor) -> MostLikely:
        """Return the most likely token of each row ``[S, E]``."""
        return self._kernels.argmax(hidden_rows, self._head)
