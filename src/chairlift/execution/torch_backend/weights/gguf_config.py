"""Reads a model's configuration from the metadata of a GGUF file.

Knows nothing of weights but which tensors exist: GGUF says by a tensor's presence what ``config.json`` says by a flag.
"""

from collections.abc import Collection, Mapping
from typing import Any

from chairlift.errors import ModelLoadError
from chairlift.execution.torch_backend.layers.rope import yarn_attention_factor
from chairlift.execution.torch_backend.model_config import ModelConfig, RopeConfig
from chairlift.execution.torch_backend.weights.fields import Fields

GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Mistral models are ``llama`` in GGUF; their sliding window, where they had one, is not recorded there."""

_UNSUPPORTED_KEYS = (
    "expert_count",
    "attention.sliding_window",
    "attention.scale",
    "attention.clamp_kqv",
    "attention.temperature_scale",
    "logit_scale",
    "residual_scale",
    "embedding_scale",
    "rope.scaling.yarn_log_multiplier",
    "rope.scaling.yarn_ext_factor",
)
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def read_gguf_config(
    metadata: Mapping[str, Any],
    tensor_names: Collection[str],
    vocab_size: int,
    frequency_divisors: tuple[float, ...] | None,
) -> ModelConfig:
    """Return what the metadata says.

    Args:
        metadata: the file's key-value header.
        tensor_names: names of the file's tensors.
        vocab_size: rows of the embedding.
        frequency_divisors: content of ``rope_freqs.weight``, if there is one.

    Raises:
        ModelLoadError: a key is missing, the architecture is unknown, or a variant is not supported.
    """
    architecture = str(metadata.get("general.architecture"))
    if architecture not in GGUF_ARCHITECTURES:
        raise ModelLoadError(
            f"general.architecture {architecture!r} is not supported; supported: {', '.join(GGUF_ARCHITECTURES)}"
        )
    fields = Fields(metadata, "the GGUF metadata", f"{architecture}.")
    for key in _UNSUPPORTED_KEYS:
        fields.refuse_unless(key, 0)
    num_layers = fields.whole("block_count")
    num_heads = _same_for_all_layers(fields, "attention.head_count")
    hidden_size = fields.whole("embedding_length")
    head_dim = fields.whole("attention.key_length", hidden_size // num_heads)
    fields.refuse_unless("attention.value_length", head_dim)
    fields.refuse_unless("rope.dimension_count", head_dim)
    return ModelConfig(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=_same_for_all_layers(fields, "feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_same_for_all_layers(fields, "attention.head_count_kv", num_heads),
        head_dim=head_dim,
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=fields.whole("context_length"),
        rope=_read_rope(fields, frequency_divisors),
        windows=(None,) * num_layers,
        tie_word_embeddings="output.weight" not in tensor_names,
        qkv_bias="blk.0.attn_q.bias" in tensor_names,
        attention_output_bias="blk.0.attn_output.bias" in tensor_names,
        mlp_bias="blk.0.ffn_down.bias" in tensor_names,
        eos_token_ids=frozenset(
            int(metadata[key]) for key in (f"tokenizer.ggml.{name}" for name in _END_KEYS) if key in metadata
        ),
    )


def _read_rope(fields: Fields, frequency_divisors: tuple[float, ...] | None) -> RopeConfig:
    kind = str(fields.value("rope.scaling.type") or "none")
    factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 1.0))
    theta = fields.number("rope.freq_base", 10_000.0)
    if kind == "none" and "rope.scale_linear" in fields:
        kind = "linear"
    if kind in ("none", "linear"):
        linear = kind == "linear" and factor != 1.0
        return RopeConfig(
            kind="linear" if linear else "default",
            theta=theta,
            factor=factor if linear else 1.0,
            frequency_divisors=frequency_divisors,
        )
    if kind != "yarn":
        raise ModelLoadError(f"rope.scaling.type {kind!r} is not supported; supported: none, linear, yarn")
    return RopeConfig(
        kind="yarn",
        theta=theta,
        factor=factor,
        original_max_positions=fields.whole("rope.scaling.original_context_length", fields.whole("context_length")),
        attention_factor=fields.number("rope.scaling.attn_factor", 1.0) * yarn_attention_factor(factor),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
        frequency_divisors=frequency_divisors,
    )


def _same_for_all_layers(fields: Fields, key: str, default: int | None = None) -> int:
    """A number that GGUF allows to be a list with one entry per layer."""
    value = fields.value(key)
    if isinstance(value, list):
        if len(set(value)) != 1:
            raise ModelLoadError(f"{key} differs between layers ({value}), which is not supported")
        return int(value[0])
    return fields.whole(key, default)
