"""Old and new ways of writing a configuration mean the same."""

import json
from pathlib import Path
from typing import Any

import pytest

from chairlift.execution.torch_backend.model_config import ModelConfig
from chairlift.execution.torch_backend.weights.hf_config import read_hf_config

SHAPE = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 1000,
}


def read(folder: Path, model_type: str, **values: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(SHAPE | {"model_type": model_type} | values))
    return read_hf_config(folder)


def test_least_config(tmp_path: Path) -> None:
    config = read(tmp_path, "llama")
    assert (config.num_kv_heads, config.head_dim, config.rms_norm_eps) == (4, 16, 1e-6)
    assert (config.rope.kind, config.rope.theta, config.tie_word_embeddings) == ("default", 10_000.0, False)
    assert config.windows == (None,) * 4
    assert config.eos_token_ids == frozenset()
    assert config.kv_values_per_token == 2 * 4 * 4 * 16


def test_head_dim_of_qwen3_is_its_own(tmp_path: Path) -> None:
    assert read(tmp_path, "qwen3").head_dim == 128
    assert read(tmp_path, "qwen2").head_dim == 16


def test_rope_in_old_and_new_style(tmp_path: Path) -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 100}
    old = read(tmp_path, "llama", rope_theta=5e5, rope_scaling={"type": "llama3", **scaling})
    new = read(tmp_path, "llama", rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **scaling})
    assert old == new
    assert (old.rope.theta, old.rope.factor, old.rope.original_max_positions) == (5e5, 8.0, 100)
    assert read(tmp_path, "llama", rope_theta=5e5, rope_scaling=None).rope.theta == 5e5


def test_yarn_stretches_the_length(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1000}
    assert read(tmp_path, "qwen2", rope_scaling=yarn).max_position_embeddings == 4000
    assert read(tmp_path, "qwen2", rope_scaling=yarn, max_position_embeddings=5000).max_position_embeddings == 5000
    del yarn["original_max_position_embeddings"]
    assert read(tmp_path, "qwen2", rope_scaling=yarn).max_position_embeddings == 1000


@pytest.mark.parametrize(
    ("model_type", "values", "windows"),
    [
        ("llama", {"sliding_window": 8}, (None,) * 4),
        ("mistral", {"sliding_window": None}, (None,) * 4),
        ("mistral", {"sliding_window": 8}, (8,) * 4),
        ("mistral", {}, (4096,) * 4),
        ("qwen2", {"sliding_window": 8}, (None,) * 4),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": True}, (None,) * 4),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3}, (None, None, None, 8)),
        ("qwen2", {"sliding_window": None, "use_sliding_window": True, "max_window_layers": 0}, (None,) * 4),
        (
            "qwen3",
            {
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            (8, None, 8, None),
        ),
    ],
)
def test_windows(model_type: str, values: dict[str, Any], windows: tuple[int | None, ...], tmp_path: Path) -> None:
    assert read(tmp_path, model_type, **values).windows == windows


def test_all_end_tokens_count(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    assert read(tmp_path, "llama", eos_token_id=2).eos_token_ids == {2, 5, 6}
