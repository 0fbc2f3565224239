"""Tiny GGUF files, written from a transformers model as llama.cpp's converter would write them.

Knows nothing of Chairlift but the shape of a model source. The model is changed to hold what the file's quantized
numbers mean, so that it stays the truth to compare with.
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Quantization
from transformers import PreTrainedModel

from chairlift.config.model_source import ModelSource

GGUF_SHAPE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
"""K-quants come in blocks of 256 values."""

_SCALE_BYTES = {Quantization.Q4_K: (0, 2), Quantization.Q5_K: (0, 2), Quantization.Q6_K: (208,)}


def write_tiny_gguf(
    path: Path,
    model: PreTrainedModel,
    quantization: Quantization,
    *,
    metadata: dict[str, Any] | None = None,
    extra_tensors: dict[str, np.ndarray] | None = None,
) -> ModelSource:
    """Write ``model`` to ``path``, matrices quantized, vectors in float32.

    ``metadata`` is added (keys without the architecture's prefix); a value of ``None`` leaves a key out.
    """
    architecture = "llama" if model.config.model_type == "mistral" else model.config.model_type
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (_metadata(model) | (metadata or {})).items():
        _add(writer, f"{architecture}.{key}", value)
    writer.add_eos_token_id(2)
    for name, weight, heads in _gguf_tensors(model, architecture):
        values = _paired(weight.detach().numpy(), heads)
        if values.ndim == 1:
            writer.add_tensor(name, values)
            continue
        blocks = quantized(values, quantization, seed=sum(name.encode()))
        writer.add_tensor(name, blocks, raw_dtype=quantization)
        meant = torch.from_numpy(_halved(gguf.dequantize(blocks, quantization), heads).copy())
        with torch.no_grad():
            weight.copy_(meant)
    for name, tensor in (extra_tensors or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelSource("gguf", path, path.stem)


def quantized(values: np.ndarray, quantization: Quantization, *, seed: int = 0) -> np.ndarray:
    """Blocks for ``values``; random blocks of the same shape for K-quants, which the package cannot make."""
    if quantization not in _SCALE_BYTES:
        return gguf.quantize(values, quantization)
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[quantization]
    blocks = np.random.default_rng(seed).integers(0, 256, (values.size // block_size, block_bytes), dtype=np.uint8)
    for offset in _SCALE_BYTES[quantization]:
        scale = np.float16(2e-4 if quantization == Quantization.Q6_K else 3e-4)
        blocks[:, offset : offset + 2] = np.frombuffer(scale.tobytes(), np.uint8)
    return blocks.reshape(len(values), -1)


def _metadata(model: PreTrainedModel) -> dict[str, Any]:
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif value is not None:
        writer.add_float32(key, value)


def _gguf_tensors(model: PreTrainedModel, architecture: str) -> list[tuple[str, torch.Tensor, int]]:
    """Name in GGUF, weight, and how many heads of it have their rows in pairs (0: none)."""
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[architecture], model.config.num_hidden_layers)
    pairs = {".q_proj.": model.config.num_attention_heads, ".k_proj.": model.config.num_key_value_heads}
    tensors: list[tuple[str, torch.Tensor, int]] = []
    for name, weight in model.named_parameters():
        heads = [count for part, count in pairs.items() if part in name and architecture == "llama"]
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None
        tensors.append((stored, weight, sum(heads)))
    return tensors


def _paired(values: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to Llama's query and key rows."""
    if not heads:
        return values
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _halved(values: np.ndarray, heads: int) -> np.ndarray:
    if not heads:
        return values
    return values.reshape(heads, -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
