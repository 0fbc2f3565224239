"""GGUF files give the model that their numbers mean: every supported type, architecture and rope variant."""

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quantization
from transformers import PreTrainedModel

from chairlift.config.model_source import ModelSource, resolve_model_source
from chairlift.errors import ModelLoadError
from chairlift.execution.torch_backend.models import load_model
from chairlift.execution.torch_backend.reference_kernels import ReferenceKernels
from chairlift.execution.torch_backend.weights.gguf_file import SUPPORTED_TYPES, GgufCheckpoint
from tests.equivalence.paged_runner import PagedRunner
from tests.equivalence.tiny_gguf import GGUF_SHAPE, quantized, write_tiny_gguf
from tests.equivalence.tiny_models import random_tokens, reference_logits, tiny_model

TOKENS = random_tokens(90)


def assert_same_logits(source: ModelSource, reference: Any, tokens: list[int] = TOKENS, atol: float = 1e-4) -> None:
    model = load_model(source, torch.float32, ReferenceKernels())
    logits = PagedRunner(model).run(tokens, len(tokens) - 2)
    torch.testing.assert_close(logits, reference_logits(reference, tokens), atol=atol, rtol=0)


@pytest.mark.parametrize("quantization", SUPPORTED_TYPES, ids=lambda quantization: quantization.name)
def test_each_quantization(quantization: Quantization, tmp_path: Path) -> None:
    model = tiny_model("llama", **GGUF_SHAPE)
    assert_same_logits(write_tiny_gguf(tmp_path / "tiny.gguf", model, quantization), model)


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("mistral", {"sliding_window": None, "head_dim": 48}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    ],
)
def test_each_architecture(architecture: str, config: dict[str, Any], tmp_path: Path) -> None:
    model = tiny_model(architecture, **GGUF_SHAPE, **config)
    source = write_tiny_gguf(tmp_path / "tiny.gguf", model, Quantization.F16)
    assert_same_logits(source, model)


def test_rope_frequency_tensor_is_llama3_scaling(tmp_path: Path) -> None:
    plain = tiny_model("llama", **GGUF_SHAPE)
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    stretched = tiny_model("llama", **GGUF_SHAPE, rope_parameters=rope)
    divisors = plain.model.rotary_emb.inv_freq / stretched.model.rotary_emb.inv_freq
    assert divisors.max() > 7.9
    source = write_tiny_gguf(
        tmp_path / "tiny.gguf",
        stretched,
        Quantization.Q8_0,
        extra_tensors={"rope_freqs.weight": divisors.numpy()},
    )
    assert_same_logits(source, stretched)


@pytest.mark.parametrize(
    ("rope", "metadata"),
    [
        (
            {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
            {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        ),
        ({"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}, {"rope.scale_linear": 2.0}),
        (
            {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 128},
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 128,
            },
        ),
    ],
    ids=["linear", "linear-old", "yarn"],
)
def test_rope_scaling(rope: dict[str, Any], metadata: dict[str, Any], tmp_path: Path) -> None:
    model = tiny_model("qwen2", **GGUF_SHAPE, rope_parameters=rope)
    assert_same_logits(write_tiny_gguf(tmp_path / "t.gguf", model, Quantization.F32, metadata=metadata), model)


def test_large_tensors_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chairlift.execution.torch_backend.weights.gguf_file._VALUES_AT_ONCE", 1000)
    model = tiny_model("llama", **GGUF_SHAPE)
    assert_same_logits(write_tiny_gguf(tmp_path / "tiny.gguf", model, Quantization.Q4_0), model)


def test_a_vocabulary_is_passed_over_on_the_way_to_the_tensors(tmp_path: Path) -> None:
    model = tiny_model("llama", **GGUF_SHAPE)
    metadata = {"tokens": ["", "a", "ü" * 300, "\x00"] * 50, "scores": [0.5] * 7, "name": "tiny"}
    source = write_tiny_gguf(tmp_path / "tiny.gguf", model, Quantization.Q8_0, metadata=metadata)
    assert_same_logits(source, model)
    path = tmp_path / "tiny.gguf"
    content = path.read_bytes()
    for length in (2**20, 2**62):  # of the vocabulary's first entry
        header = struct.pack("<IQ", gguf.GGUFValueType.STRING, 200)
        damaged = content.replace(header + struct.pack("<Q", 0), header + struct.pack("<Q", length), 1)
        assert damaged != content
        path.write_bytes(damaged)
        with pytest.raises(ModelLoadError, match="cannot read this GGUF file"):
            GgufCheckpoint(path, {})


@pytest.mark.slow
def test_embedded_model_is_what_transformers_reads_from_the_same_file(embedded_reference: PreTrainedModel) -> None:
    tokens = random_tokens(40, vocab_size=49152)
    assert_same_logits(resolve_model_source(None), embedded_reference, tokens, atol=1e-3)


@pytest.mark.parametrize("quantization", [Quantization.Q4_K, Quantization.Q6_K], ids=["Q4_K", "Q6_K"])
def test_k_quants_mean_what_their_description_says(quantization: Quantization) -> None:
    block = quantized(np.zeros((1, 256), np.float32), quantization, seed=7)[0]
    decode = decode_q4_k if quantization == Quantization.Q4_K else decode_q6_k
    np.testing.assert_allclose(gguf.dequantize(block, quantization), decode(block.tobytes()), rtol=1e-5, atol=1e-7)


def decode_q4_k(block: bytes) -> list[float]:
    """8 groups of 32: ``d * scale * nibble - dmin * minimum``; scales and minima have 6 bits in 12 packed bytes."""
    d, dmin = (float(value) for value in np.frombuffer(block[:4], np.float16))
    packed, nibbles = block[4:16], block[16:]
    values: list[float] = []
    for group in range(8):
        if group < 4:
            scale, minimum = packed[group] & 63, packed[group + 4] & 63
        else:
            scale = (packed[group + 4] & 15) | (packed[group - 4] >> 6 << 4)
            minimum = (packed[group + 4] >> 4) | (packed[group] >> 6 << 4)
        part = nibbles[group // 2 * 32 : group // 2 * 32 + 32]
        quants = [byte >> 4 if group % 2 else byte & 15 for byte in part]
        values.extend(d * scale * quant - dmin * minimum for quant in quants)
    return values


def decode_q6_k(block: bytes) -> list[float]:
    """2 halves of 128: 4 low bits and 2 high bits less 32, times ``d`` and a signed scale for each 16 values."""
    low, high = block[:128], block[128:192]
    scales = np.frombuffer(block[192:208], np.int8)
    d = float(np.frombuffer(block[208:210], np.float16)[0])
    values: list[float] = []
    for at in range(256):
        half, within = divmod(at, 128)
        quarter, column = divmod(within, 32)
        nibbles = low[64 * half + 32 * (quarter % 2) + column]
        low_bits = nibbles >> 4 if quarter >= 2 else nibbles & 15
        high_bits = high[32 * half + column] >> (2 * quarter) & 3
        values.append(d * float(scales[at // 16]) * ((low_bits | high_bits << 4) - 32))
    return values
