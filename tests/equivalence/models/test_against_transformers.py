"""Every architecture and variant computes what transformers computes, whole and in pieces over scattered pages."""

from pathlib import Path
from typing import Any

import pytest
import torch

from chairlift.config.model_source import ModelSource
from chairlift.execution.torch_backend.models import load_model
from chairlift.execution.torch_backend.reference_kernels import ReferenceKernels
from tests.equivalence.paged_runner import PagedRequest, PagedRunner
from tests.equivalence.tiny_models import random_tokens, reference_logits, save_tiny_model, tiny_model

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 128}
QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1}),
    "llama-all-kv-heads": ("llama", {"num_key_value_heads": 4}),
    "llama-head-dim": ("llama", {"head_dim": 24}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-llama3-rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama-linear-rope": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
    "llama-dynamic-rope": ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}}),
    "llama-yarn-mscale": ("llama", {"rope_parameters": YARN_ROPE | {"mscale": 1.5, "mscale_all_dim": 0.5}}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": 5}),
    "qwen2": ("qwen2", {}),
    "qwen2-yarn": ("qwen2", {"rope_parameters": YARN_ROPE}),
    "qwen2-window": ("qwen2", QWEN_WINDOW),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3-tied-bias": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True, "attention_bias": True}),
    "qwen3-yarn-factors": (
        "qwen3",
        {
            "head_dim": 32,
            "rope_parameters": YARN_ROPE
            | {"attention_factor": 1.3, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
        },
    ),
    "qwen3-window": ("qwen3", {"head_dim": 32} | QWEN_WINDOW),
}


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    architecture, config = VARIANTS[request.param]
    source = save_tiny_model(tmp_path_factory.mktemp(request.param), architecture, **config)
    model = load_model(source, torch.float32, ReferenceKernels())
    tokens = random_tokens(90)
    return model, tokens, reference_logits(tiny_model(architecture, **config), tokens)


def test_whole_prompt(variant: Any) -> None:
    model, tokens, expected = variant
    logits = PagedRunner(model).run(tokens, len(tokens))
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_chunks_then_decodes(variant: Any) -> None:
    model, tokens, expected = variant
    logits = PagedRunner(model, page_size=8, seed=3).run(tokens, 5, 16, 1, 30, 28)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_mixed_batch(variant: Any) -> None:
    model, tokens, expected = variant
    runner = PagedRunner(model, seed=4)
    requests = [PagedRequest(tokens) for _ in range(3)]
    runner.step((requests[0], 40), (requests[1], 13))
    decoded, chunk, fresh = runner.step((requests[0], 1), (requests[1], 20), (requests[2], 6))
    torch.testing.assert_close(decoded, expected[40:41], atol=1e-4, rtol=0)
    torch.testing.assert_close(chunk, expected[13:33], atol=1e-4, rtol=0)
    torch.testing.assert_close(fresh, expected[:6], atol=1e-4, rtol=0)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_bfloat16_is_as_close_to_float32_as_transformers_is(architecture: str, tmp_path: Path) -> None:
    source = save_tiny_model(tmp_path, architecture)
    tokens = random_tokens(60)
    exact = tiny_model(architecture)
    expected = reference_logits(exact, tokens)
    theirs = reference_logits(exact.bfloat16(), tokens)
    model = load_model(source, torch.bfloat16, ReferenceKernels())
    assert model.dtype == torch.bfloat16
    ours = PagedRunner(model).run(tokens, 30, 20)
    assert ours.dtype == torch.float32
    assert (ours - expected).abs().mean() <= 1.2 * (theirs - expected).abs().mean()


def test_sharded_folder_holds_the_same_model(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    tokens = random_tokens(20)
    loaded = load_model(ModelSource("folder", tmp_path, "tiny"), torch.float32, ReferenceKernels())
    torch.testing.assert_close(PagedRunner(loaded).run(tokens, 20), reference_logits(model, tokens), atol=1e-4, rtol=0)
