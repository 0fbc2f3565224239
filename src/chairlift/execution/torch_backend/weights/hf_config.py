"""Reads a Hugging Face ``config.json``, in the older and the newer way of writing rope and layer types.

Knows nothing of weights. What a key means follows transformers; what is not understood is refused, not ignored.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chairlift.errors import ModelLoadError
from chairlift.execution.torch_backend.layers.rope import yarn_attention_factor
from chairlift.execution.torch_backend.model_config import ModelConfig, RopeConfig
from chairlift.execution.torch_backend.weights.fields import Fields


@dataclass(frozen=True, slots=True)
class _Traits:
    """Where architectures differ in what they call the same thing."""

    windows: tuple[int | None, ...]
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    default_head_dim: int | None = None


def _llama_traits(fields: Fields, num_layers: int) -> _Traits:
    bias = fields.flag("attention_bias", False)
    return _Traits((None,) * num_layers, bias, bias, fields.flag("mlp_bias", False))


def _mistral_traits(fields: Fields, num_layers: int) -> _Traits:
    if "layer_types" in fields:
        raise ModelLoadError("layer_types of a mistral model is not supported; its sliding_window holds for all layers")
    unlimited = fields.has_key("sliding_window") and "sliding_window" not in fields
    return _Traits((None if unlimited else fields.whole("sliding_window", 4096),) * num_layers)


def _qwen2_traits(fields: Fields, num_layers: int) -> _Traits:
    return _Traits(_windows_by_layer(fields, num_layers), qkv_bias=True)


def _qwen3_traits(fields: Fields, num_layers: int) -> _Traits:
    bias = fields.flag("attention_bias", False)
    return _Traits(_windows_by_layer(fields, num_layers), bias, bias, default_head_dim=128)


_TRAITS: Mapping[str, Callable[[Fields, int], _Traits]] = {
    "llama": _llama_traits,
    "mistral": _mistral_traits,
    "qwen2": _qwen2_traits,
    "qwen3": _qwen3_traits,
}


def read_hf_config(folder: Path) -> ModelConfig:
    """Return what ``config.json`` and ``generation_config.json`` say.

    Raises:
        ModelLoadError: no such file, an unknown architecture, or a variant that is not supported.
    """
    values = _read_json(folder / "config.json")
    fields = Fields(values, "config.json")
    architecture = str(fields.value("model_type"))
    if architecture not in _TRAITS:
        raise ModelLoadError(f"model_type {architecture!r} is not supported; supported: {', '.join(_TRAITS)}")
    _refuse_variants(fields)
    num_layers = fields.whole("num_hidden_layers")
    num_heads = fields.whole("num_attention_heads")
    hidden_size = fields.whole("hidden_size")
    traits = _TRAITS[architecture](fields, num_layers)
    rope = _read_rope(fields)
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.whole("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.whole("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.whole("num_key_value_heads", num_heads),
        head_dim=fields.whole("head_dim", traits.default_head_dim or hidden_size // num_heads),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        max_position_embeddings=_stretched_length(fields, rope),
        rope=rope,
        windows=traits.windows,
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        qkv_bias=traits.qkv_bias,
        attention_output_bias=traits.attention_output_bias,
        mlp_bias=traits.mlp_bias,
        eos_token_ids=_eos_token_ids(values) | _eos_token_ids(_read_json(folder / "generation_config.json", {})),
    )


def _refuse_variants(fields: Fields) -> None:
    fields.refuse_unless("hidden_act", "silu")
    fields.refuse_unless("partial_rotary_factor", 1.0)
    if "quantization_config" in fields:
        method = fields.value("quantization_config").get("quant_method")
        raise ModelLoadError(f"quantized safetensors (quant_method={method!r}) are not supported; use GGUF instead")
    classes = fields.value("architectures") or []
    if classes and not any(name.endswith("ForCausalLM") for name in classes):
        raise ModelLoadError(f"architectures={classes!r} does not generate text; supported: ...ForCausalLM")


def _windows_by_layer(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    """Qwen's rule: ``layer_types`` if given, else every layer from ``max_window_layers`` on has the window."""
    window = fields.whole("sliding_window", 4096) if fields.flag("use_sliding_window", False) else None
    if window is not None and fields.has_key("sliding_window") and "sliding_window" not in fields:
        window = None
    layer_types = fields.value("layer_types")
    if layer_types is None:
        first = fields.whole("max_window_layers", 28)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    unknown = set(layer_types) - {"full_attention", "sliding_attention"}
    if unknown or ("sliding_attention" in layer_types and window is None):
        raise ModelLoadError(
            f"layer_types {sorted(set(layer_types))} with sliding_window={window} is not supported; supported: "
            "full_attention, and sliding_attention with use_sliding_window and sliding_window"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in layer_types)


def _read_rope(fields: Fields) -> RopeConfig:
    """Rope settings from ``rope_scaling`` (older) or ``rope_parameters`` (newer), theta from there or the top."""
    given = fields.value("rope_scaling") or fields.value("rope_parameters") or {}
    if any(isinstance(value, dict) for value in given.values()):
        raise ModelLoadError("rope_parameters that differ between layer types are not supported")
    rope = Fields(given, "the rope parameters of config.json")
    rope.refuse_unless("partial_rotary_factor", 1.0)
    kind = str(rope.value("rope_type") or rope.value("type") or "default")
    original = fields.value("original_max_position_embeddings") or rope.value("original_max_position_embeddings")
    original = int(original) if original else fields.whole("max_position_embeddings")
    settings: dict[str, Any] = {
        "kind": kind,
        "theta": rope.number("rope_theta", fields.number("rope_theta", 10_000.0)),
        "original_max_positions": original,
    }
    if kind in ("linear", "llama3"):
        settings["factor"] = rope.number("factor")
    if kind == "llama3":
        settings["low_freq_factor"] = rope.number("low_freq_factor")
        settings["high_freq_factor"] = rope.number("high_freq_factor")
    if kind == "yarn":
        settings |= _read_yarn(rope, fields.whole("max_position_embeddings") / original)
    return RopeConfig(**settings)


def _read_yarn(rope: Fields, default_factor: float) -> dict[str, Any]:
    factor = rope.number("factor", default_factor)
    inferred = yarn_attention_factor(factor, rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0))
    return {
        "factor": factor,
        "attention_factor": rope.number("attention_factor", inferred),
        "beta_fast": rope.number("beta_fast", 32.0),
        "beta_slow": rope.number("beta_slow", 1.0),
        "truncate": rope.flag("truncate", True),
    }


def _stretched_length(fields: Fields, rope: RopeConfig) -> int:
    """``max_position_embeddings``; for YaRN, whose users often leave that as it was, times the factor."""
    length = fields.whole("max_position_embeddings")
    if rope.kind == "yarn" and rope.original_max_positions is not None:
        return max(length, int(rope.original_max_positions * rope.factor)) if _names_original(fields) else length
    return length


def _names_original(fields: Fields) -> bool:
    given = fields.value("rope_scaling") or fields.value("rope_parameters") or {}
    return "original_max_position_embeddings" in fields or "original_max_position_embeddings" in given


def _eos_token_ids(values: Mapping[str, Any]) -> frozenset[int]:
    given = values.get("eos_token_id")
    if given is None:
        return frozenset()
    return frozenset(given if isinstance(given, list) else [given])


def _read_json(path: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    if default is not None and not path.exists():
        return default
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"cannot read {path.name}: {error}") from error
    if not isinstance(values, dict):
        raise ModelLoadError(f"{path.name} must hold a JSON object")
    return values
