"""What cannot be served right is refused before serving, with words that say what and what would do."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quantization
from safetensors.torch import load_file, save_file

from chairlift.config.model_source import ModelSource
from chairlift.errors import ConfigurationError, ModelLoadError
from chairlift.execution.torch_backend.models import load_model
from chairlift.execution.torch_backend.reference_kernels import ReferenceKernels
from tests.equivalence.tiny_gguf import GGUF_SHAPE, write_tiny_gguf
from tests.equivalence.tiny_models import save_tiny_model, tiny_model


def load(source: ModelSource, max_model_len: int | None = None) -> Any:
    return load_model(source, torch.float32, ReferenceKernels(), max_model_len)


def change_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("llama", {"model_type": "gemma2"}, "model_type 'gemma2'.*supported: llama, mistral, qwen2, qwen3"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act='gelu'.*supported: 'silu'"),
        ("llama", {"rope_parameters": {"rope_type": "longrope"}}, "rope type 'longrope'.*default, linear"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "lacks factor"),
        ("llama", {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "differ between layer types"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quant_method='gptq'.*GGUF"),
        ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "does not generate text"),
        ("llama", {"hidden_size": "many"}, "hidden_size in config.json must be a whole number, got 'many'"),
        ("llama", {"hidden_size": None}, "config.json lacks hidden_size"),
        ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings.*must be true or false"),
        ("llama", {"num_key_value_heads": 3}, "4 query heads cannot share 3"),
        ("llama", {"num_hidden_layers": 0}, "num_layers must be at least 1"),
        ("llama", {"head_dim": 15}, "head size must be even"),
        ("mistral", {"layer_types": ["sliding_attention"] * 3}, "layer_types of a mistral"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 3}, "sliding_window=None is not supported"),
        ("qwen3", {"layer_types": ["chunked_attention"] * 3}, "chunked_attention"),
        ("qwen3", {"layer_types": ["full_attention"]}, "1 attention windows for 3 layers"),
    ],
)
def test_unsupported_configurations(architecture: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = save_tiny_model(tmp_path, architecture)
    change_config(tmp_path, **changes)
    with pytest.raises(ModelLoadError, match=message) as caught:
        load(source)
    assert str(tmp_path) in caught.value.message


def test_wrong_tensors_are_named(tmp_path: Path) -> None:
    source = save_tiny_model(tmp_path, "llama")
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.norm.weight"]
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError) as caught:
        load(source)
    assert "1 missing tensors: model.norm.weight;" in caught.value.message
    assert "1 unexpected tensors: model.layers.0.self_attn.q_proj.bias;" in caught.value.message
    assert "lm_head.weight is [319, 64] instead of [320, 64]" in caught.value.message


def test_what_other_formats_leave_behind_is_ignored(tmp_path: Path) -> None:
    source = save_tiny_model(tmp_path, "llama", tie_word_embeddings=True)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = torch.zeros(320, 64)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    save_file(tensors, tmp_path / "model.safetensors")
    assert load(source).config.tie_word_embeddings


def test_types_of_safetensors(tmp_path: Path) -> None:
    source = save_tiny_model(tmp_path, "llama")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"model.norm.weight has type F8_E4M3.*supported: F64, F32, F16, BF16"):
        load(source)


def test_pickles_are_never_read(tmp_path: Path) -> None:
    source = save_tiny_model(tmp_path, "llama")
    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"neither model.safetensors nor model.safetensors.index.json"):
        load(source)


@pytest.mark.parametrize("file_name", ["../model.safetensors", "pytorch_model.bin"])
def test_an_index_stays_in_its_folder(file_name: str, tmp_path: Path) -> None:
    source = save_tiny_model(tmp_path, "llama")
    (tmp_path / "model.safetensors").unlink()
    index = {"weight_map": {"model.norm.weight": file_name}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelLoadError, match="not a safetensors file of this folder"):
        load(source)


@pytest.mark.parametrize("file_name", ["model.safetensors", "config.json"])
def test_damaged_files(file_name: str, tmp_path: Path) -> None:
    source = save_tiny_model(tmp_path, "llama")
    content = (tmp_path / file_name).read_bytes()
    (tmp_path / file_name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelLoadError, match=f"cannot read {file_name}"):
        load(source)


def test_more_positions_than_the_model_has(tmp_path: Path) -> None:
    source = save_tiny_model(tmp_path, "llama")
    assert load(source, 100).max_model_len == 100
    with pytest.raises(ConfigurationError, match="--max-model-len is 513, but the model is made for 512"):
        load(source, 513)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"expert_count": 8}, "llama.expert_count=8 is not supported"),
        ({"attention.sliding_window": 512}, "sliding_window=512"),
        ({"rope.scaling.type": "longrope"}, "'longrope'.*supported: none, linear, yarn"),
        ({"rope.dimension_count": 32}, "rope.dimension_count=32 is not supported; supported: 64"),
        ({"attention.value_length": 32}, "attention.value_length=32"),
        ({"block_count": None}, "the GGUF metadata lacks llama.block_count"),
        ({"attention.head_count_kv": [2, 1]}, "attention.head_count_kv differs between layers"),
        ({"block_count": 3}, "9 missing tensors: blk.2.attn_norm.weight"),
        ({"feed_forward_length": 256}, r"blk.0.ffn_gate.weight is \[512, 256\] instead of \[256, 256\]"),
    ],
)
def test_unsupported_gguf_metadata(metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = tiny_model("llama", **GGUF_SHAPE)
    source = write_tiny_gguf(tmp_path / "tiny.gguf", model, Quantization.F16, metadata=metadata)
    with pytest.raises(ModelLoadError, match=message) as caught:
        load(source)
    assert caught.value.message.count(str(source.path)) == 1


def test_equal_gguf_lists_are_one_number(tmp_path: Path) -> None:
    model = tiny_model("llama", **GGUF_SHAPE)
    metadata = {"attention.head_count_kv": [2, 2], "feed_forward_length": [512, 512]}
    assert (
        load(write_tiny_gguf(tmp_path / "t.gguf", model, Quantization.F16, metadata=metadata)).config.num_kv_heads == 2
    )


def test_unsupported_gguf_type_names_the_tensor(tmp_path: Path) -> None:
    model = tiny_model("llama", **GGUF_SHAPE)
    source = write_tiny_gguf(tmp_path / "tiny.gguf", model, Quantization.TQ2_0)
    with pytest.raises(ModelLoadError, match=r"token_embd.weight has type TQ2_0.*supported: F32, F16, BF16, Q8_0"):
        load(source)


def test_unknown_gguf_architecture(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "gemma2")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match=r"general.architecture 'gemma2'.*supported: llama, qwen2, qwen3"):
        load(ModelSource("gguf", tmp_path / "tiny.gguf", "tiny"))


@pytest.mark.parametrize("kept", [3, 200, 0.5])
def test_damaged_gguf(kept: float, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    source = write_tiny_gguf(path, tiny_model("llama", **GGUF_SHAPE), Quantization.F16)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept if kept > 1 else len(content) * kept)])
    with pytest.raises(ModelLoadError, match="GGUF file"):
        load(source)
