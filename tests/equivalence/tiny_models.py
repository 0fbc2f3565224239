"""Tiny random models in Hugging Face's layout, saved by transformers, for any test that needs real weights.

Knows nothing of Chairlift but the shape of a model source.
"""

import functools
from pathlib import Path
from typing import Any
from unittest import mock

import gguf
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.llama import LlamaConfig, LlamaForCausalLM
from transformers.models.mistral import MistralConfig, MistralForCausalLM
from transformers.models.qwen2 import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen3 import Qwen3Config, Qwen3ForCausalLM

from chairlift.config.model_source import ModelSource

ARCHITECTURES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}

TINY_SHAPE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny_model(architecture: str, *, seed: int = 0, **config: Any) -> PreTrainedModel:
    """A random model in float32; every weight matters, also those that transformers would start at 0 or 1."""
    config_type, model_type = ARCHITECTURES[architecture]
    model = model_type(config_type(**(TINY_SHAPE | config))).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.3 * noise if "norm" in name else noise * (0.3 if weight.ndim == 1 else 0.15))
    return model


def save_tiny_model(folder: Path, architecture: str, *, seed: int = 0, **config: Any) -> ModelSource:
    """Save :func:`tiny_model` into ``folder`` and return where it is."""
    tiny_model(architecture, seed=seed, **config).save_pretrained(folder)
    return ModelSource("folder", folder, f"tiny-{architecture}")


def reference_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """What transformers computes for the whole sequence, float32 ``[tokens, V]``."""
    with torch.no_grad():
        return model(torch.tensor([token_ids])).logits[0].float()


def load_reference(source: ModelSource) -> PreTrainedModel:
    """The same files, loaded by transformers in float32. Slow for GGUF: share the result."""
    if source.kind == "folder":
        return AutoModelForCausalLM.from_pretrained(source.path, dtype=torch.float32).eval()
    # transformers makes the map of names once per module of the model; one is enough, and saves half the time.
    name_map = functools.cache(gguf.get_tensor_name_map)
    with mock.patch.object(gguf, "get_tensor_name_map", name_map):
        return AutoModelForCausalLM.from_pretrained(
            source.path.parent, gguf_file=source.path.name, dtype=torch.float32
        ).eval()


def random_tokens(count: int, *, seed: int = 1, vocab_size: int = TINY_SHAPE["vocab_size"]) -> list[int]:
    """Token ids without meaning."""
    return torch.randint(vocab_size, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
