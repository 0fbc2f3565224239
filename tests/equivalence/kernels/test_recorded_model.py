"""A forward pass that was written down once says what the model itself says, whatever a step holds."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from chairlift.execution.torch_backend.forward import ForwardBatch
from chairlift.execution.torch_backend.kernels_cpu.threads import WorkerThreads
from chairlift.execution.torch_backend.kernels_native.kernels import NativeKernels
from chairlift.execution.torch_backend.kernels_native.library import LibraryError, open_library
from chairlift.execution.torch_backend.kernels_native.recorded_model import RecordedModel
from chairlift.execution.torch_backend.models import Llama, load_model
from tests.equivalence.paged_runner import PagedRequest, PagedRunner
from tests.equivalence.tiny_models import random_tokens, reference_logits, save_tiny_model, tiny_model

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "mistral-window": ("mistral", {"sliding_window": 20}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 32}),
}


class EveryRow:
    """A model that is asked for all rows of each step, and remembers whether it computed any step itself."""

    def __init__(self, model: Llama, recorded: RecordedModel) -> None:
        self.config = model.config
        self.dtype = model.dtype
        self._recorded = recorded

    def forward(self, batch: ForwardBatch, kv_pages: list[torch.Tensor]) -> torch.Tensor:
        rows = torch.arange(len(batch.token_ids))
        return self._recorded.forward(dataclasses.replace(batch, sample_rows=rows), kv_pages)

    def logits(self, hidden_rows: torch.Tensor) -> torch.Tensor:
        return self._recorded.logits(hidden_rows)


@pytest.fixture(scope="module")
def kernels() -> Iterator[NativeKernels]:
    try:
        library = open_library()
    except LibraryError as error:
        pytest.skip(str(error))
    threads = WorkerThreads(2)
    yield NativeKernels(library, threads)
    threads.close()


def run_steps(model: Any) -> list[torch.Tensor]:
    """Prompts whole, in chunks and token by token, alone and together; more rows than fit once."""
    runner = PagedRunner(model, num_pages=200)
    first, second, third = (PagedRequest(random_tokens(60, seed=seed)) for seed in range(3))
    results = [runner.step((first, 40)), runner.step((first, 1), (second, 17)), runner.step((first, 1))]
    results.append(runner.step((first, 1), (second, 1), (third, 50)))
    results += [runner.step((first, 1), (second, 1), (third, 1)) for _ in range(5)]
    return [logits for step in results for logits in step]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("quantization", ["none", "int8", "q4"])
def test_the_program_says_what_the_model_says(
    kernels: NativeKernels, variant: str, quantization: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    architecture, config = VARIANTS[variant]
    source = save_tiny_model(tmp_path, architecture, **config)
    model = load_model(source, torch.float32, kernels, quantization=quantization)
    expected = run_steps(model)
    own_steps: list[int] = []
    monkeypatch.setattr(
        Llama,
        "forward",
        lambda self, batch, kv_pages, forward=Llama.forward: (
            own_steps.append(len(batch.token_ids)) or forward(self, batch, kv_pages)
        ),
    )
    actual = run_steps(EveryRow(model, RecordedModel(model, kernels, 48)))
    assert own_steps == [48, 52]  # written down once; one step was too large
    for ours, theirs in zip(actual, expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_program_says_what_transformers_says(kernels: NativeKernels, variant: str, tmp_path: Path) -> None:
    architecture, config = VARIANTS[variant]
    source = save_tiny_model(tmp_path, architecture, **config)
    model = load_model(source, torch.float32, kernels)
    tokens = random_tokens(90)
    logits = PagedRunner(EveryRow(model, RecordedModel(model, kernels, 64))).run(tokens, 33, 40)
    expected = reference_logits(tiny_model(architecture, **config), tokens)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_in_bfloat16_say_about_what_transformers_says(variant: str, tmp_path: Path) -> None:
    """Products in tiles, everything else in float32, a row alone and among others."""
    architecture, config = VARIANTS[variant]
    source = save_tiny_model(tmp_path, architecture, **config)
    try:
        library = open_library("tiles")
    except LibraryError as error:
        pytest.skip(str(error))
    threads = WorkerThreads(2)
    native = NativeKernels(library, threads)
    model = load_model(source, torch.float32, native, product_dtype=torch.bfloat16)
    tokens = random_tokens(90)
    logits = PagedRunner(EveryRow(model, RecordedModel(model, native, 64))).run(tokens, 33, 40)
    alone = PagedRunner(EveryRow(model, RecordedModel(model, native, 64))).run(tokens, *[1] * 89)
    threads.close()
    expected = reference_logits(tiny_model(architecture, **config), tokens)
    torch.testing.assert_close(logits, expected, atol=0.05 * expected.abs().max().item(), rtol=0)
    assert torch.equal(logits, alone)


def test_a_model_whose_outputs_do_not_fill_panels_computes_its_steps_itself(
    kernels: NativeKernels, tmp_path: Path
) -> None:
    source = save_tiny_model(tmp_path, "llama", intermediate_size=90, hidden_size=72, head_dim=16)
    model = load_model(source, torch.float32, kernels)
    expected = run_steps(model)
    for ours, theirs in zip(run_steps(EveryRow(model, RecordedModel(model, kernels, 48))), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_steps_without_sampling_rows(kernels: NativeKernels, tmp_path: Path) -> None:
    model = load_model(save_tiny_model(tmp_path, "llama"), torch.float32, kernels)
    recorded = RecordedModel(model, kernels, 48)
    batches: list[ForwardBatch] = []

    class Kept(EveryRow):
        def forward(self, batch: ForwardBatch, kv_pages: list[torch.Tensor]) -> torch.Tensor:
            batches.append(batch)
            nothing = dataclasses.replace(batch, sample_rows=torch.empty(0, dtype=torch.int64))
            assert len(recorded.forward(nothing, kv_pages)) == 0
            return super().forward(batch, kv_pages)

    tokens = random_tokens(60)
    logits = PagedRunner(Kept(model, recorded)).run(tokens, 30)
    torch.testing.assert_close(logits, PagedRunner(model).run(tokens, 30), atol=0, rtol=0)
