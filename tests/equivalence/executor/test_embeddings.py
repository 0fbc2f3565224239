"""Vectors of the real executor are those that transformers' hidden states make, however a prompt is computed."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from chairlift.config.model_source import ModelSource
from chairlift.core.events import Preempted
from chairlift.core.outcome import RequestUpdate
from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.execution.torch_backend.pooling import PooledRows, RunningPools
from tests.equivalence.executor.run import Run
from tests.equivalence.tiny_models import load_reference, random_tokens, save_tiny_model
from tests.harness import EventLog

CLOSE = 2e-5
LENGTHS = (1, 2, 16, 33, 50, 120)


class PooledRun(Run):
    """Keeps vectors too, and who was preempted."""

    def __init__(self, source: ModelSource, **options: Any) -> None:
        super().__init__(source, **options)
        self.vectors: dict[int, NDArray[np.float32]] = {}
        self.log = EventLog()
        self.engine.state._events = self.log

    def _take(self, update: RequestUpdate) -> None:
        super()._take(update)
        if update.embedding is not None:
            self.vectors[update.request_id] = np.frombuffer(update.embedding, "<f4")

    def step(self) -> None:
        outcome = self.stepper.step(0)
        for update in outcome.updates if outcome is not None else ():
            self._take(update)

    @property
    def victims(self) -> set[int]:
        return {event.request_id for event in self.log.of(Preempted)}


def expected(model: PreTrainedModel, token_ids: list[int], pooling: str) -> NDArray[np.float32]:
    """What transformers makes of a prompt: hidden states behind the last norm."""
    with torch.no_grad():
        hidden = model.model(torch.tensor([token_ids])).last_hidden_state[0].float()
    return (hidden[-1] if pooling == "last" else hidden.mean(0)).numpy()


def assert_close(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> None:
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, atol=CLOSE * float(np.abs(wanted).max() + 1), rtol=0)


WAYS: list[dict[str, Any]] = [
    {"max_num_batched_tokens": 64},
    {"max_num_batched_tokens": 64, "enable_chunked_prefill": True, "long_prefill_token_threshold": 7, "depth": 2},
    {"max_num_seqs": 2, "batching": "static"},
]


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_vectors_are_those_of_transformers(
    source: ModelSource, reference: PreTrainedModel, pooling: str, way: dict[str, Any]
) -> None:
    prompts = [random_tokens(length, seed=length) for length in LENGTHS]
    with PooledRun(source, **way) as run:
        ids = [run.add(prompt, pooling=pooling) for prompt in prompts]
        company = [run.add(random_tokens(length, seed=200 + length), prompt_logprobs=1) for length in (3, 40)]
        run.run()
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert_close(run.vectors[request_id], expected(reference, prompt, pooling))
        assert run.tokens[request_id] == []
    for request_id in company:
        assert len(run.tokens[request_id]) == 8
        assert run.prompt[request_id]


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("mode", ["recompute", "swap", "tail"])
def test_a_preemption_changes_no_vector(
    source: ModelSource, reference: PreTrainedModel, pooling: str, mode: str
) -> None:
    prompts = [random_tokens(150, seed=seed) for seed in range(4)]
    options = {"num_pages": 13, "preemption_mode": mode, "admission": "optimistic", "max_num_batched_tokens": 32}
    with PooledRun(source, **options) as run:
        ids = [run.add(prompt, pooling=pooling) for prompt in prompts]
        for _ in range(3):
            run.step()
        # Somebody more urgent takes pages from whoever runs.
        urgent = Request(99, random_tokens(130, seed=9), SamplingParams(pooling="last"), priority=-1)
        run.tokens[99] = []
        run.engine.add(urgent, 0)
        run.run()
        assert run.victims & set(ids)
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert_close(run.vectors[request_id], expected(reference, prompt, pooling))


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "mistral"])
def test_every_architecture_has_its_last_norm_behind_it(
    architecture: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config: dict[str, Any] = {"sliding_window": 20} if architecture == "mistral" else {}
    own = save_tiny_model(tmp_path_factory.mktemp(architecture), architecture, **config)
    model, prompt = load_reference(own), random_tokens(50)
    with PooledRun(own) as run:
        ids = {pooling: run.add(prompt, pooling=pooling) for pooling in ("last", "mean")}
        run.run()
    for pooling, request_id in ids.items():
        assert_close(run.vectors[request_id], expected(model, prompt, pooling))


def test_what_is_not_finite_or_not_known_whole_is_no_vector() -> None:
    pools = RunningPools()
    rows = torch.ones(4, 3)
    rows[2, 1] = float("nan")

    def one(request_id: int, first: int, last: int, *, is_first: bool = True) -> PooledRows:
        return PooledRows(request_id, "mean", range(first, last), 2, is_first=is_first, is_last=True)

    found = pools.take(rows, [one(0, 0, 2), one(1, 2, 3), one(2, 3, 4, is_first=False)])
    assert list(found) == [0]
    assert np.frombuffer(found[0], "<f4").tolist() == [1.0, 1.0, 1.0]
