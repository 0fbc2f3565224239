"""What the sampler may do to a row, and that no row does anything to another."""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.core.sampling_params import SamplingParams
from chairlift.core.step_plan import NewRequest
from chairlift.execution.torch_backend.batch import SamplingRows
from chairlift.execution.torch_backend.kernels_cpu.kernels import CpuKernels
from chairlift.execution.torch_backend.most_likely import most_likely
from chairlift.execution.torch_backend.request_table import RequestTable
from chairlift.execution.torch_backend.sampler import is_greedy, sample, sample_greedily
from chairlift.execution.torch_backend.torch_draw import Draw, draw_tokens

VOCAB_SIZE = 1000


@pytest.fixture(scope="module", params=["torch", "compiled"], autouse=True)
def draw(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test runs with both ways to draw."""
    kernels = CpuKernels(torch.float32, 2)
    choice: Any = kernels.draw if request.param == "compiled" else draw_tokens
    with mock.patch.object(Rows, "draw", staticmethod(choice), create=True):
        yield
    kernels.close()


class Rows:
    """Requests with their parameters and history, to be sampled together or one by one."""

    draw: Draw

    def __init__(self) -> None:
        self.requests: list[NewRequest] = []

    def add(
        self, *, history: tuple[int, ...] = (7,), prompt: int = 1, seed: int = 0, stop: tuple[int, ...] = (), **params
    ):
        sampling = SamplingParams(**params)
        self.requests.append(NewRequest(len(self.requests), history, prompt, 0, (0,), sampling, seed, frozenset(stop)))
        return self

    def sample(self, logits: torch.Tensor, order: list[int] | None = None) -> list[int]:
        order = list(range(len(self.requests))) if order is None else order
        table = RequestTable(2, 4, 4)
        for index in order:
            table.add(self.requests[index])
        rows = SamplingRows(
            np.array([table.row(index) for index in order], np.int64),
            np.array([len(self.requests[index].token_ids) for index in order], np.int64),
            torch.arange(len(order)),
        )
        sampled = sample(logits[order].clone(), table, rows, self.draw)
        assert sampled.failed_rows == ()
        if is_greedy(table, rows):
            assert sample_greedily(most_likely(logits[order])).token_ids.tolist() == sampled.token_ids.tolist()
        return sampled.token_ids.tolist()


def draw_many(logits: torch.Tensor, num_draws: int, **params) -> np.ndarray:
    """How often each token came in independent draws from one row of logits."""
    rows = Rows()
    for seed in range(num_draws):
        rows.add(seed=seed, **params)
    tokens = rows.sample(logits.expand(num_draws, -1))
    return np.bincount(tokens, minlength=len(logits))


def misfit(counts: np.ndarray, probabilities: torch.Tensor) -> float:
    """Pearson's chi-square in standard deviations above its mean: a few at most if the counts fit."""
    expected = probabilities.double().numpy() * counts.sum()
    likely = expected >= 5
    assert counts[expected == 0].sum() == 0
    degrees = likely.sum() - 1
    statistic = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    return float((statistic - degrees) / np.sqrt(2 * degrees))


def reference_probabilities(
    logits: torch.Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> torch.Tensor:
    """The definition, one step after the other, in float64."""
    probabilities = torch.softmax(logits.double() / temperature, dim=-1)
    probabilities[probabilities < min_p * probabilities.max()] = 0
    if top_k:
        probabilities[probabilities < probabilities.topk(top_k).values[-1]] = 0
    probabilities /= probabilities.sum()
    if top_p < 1:
        values, order = probabilities.sort(descending=True)
        dropped = order[values.cumsum(0) - values >= top_p]
        probabilities[dropped] = 0
    return probabilities / probabilities.sum()


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0, "top_k": 5},
        {"top_p": 0.7},
        {"temperature": 2.0, "top_p": 0.95},
        {"min_p": 0.2},
        {"temperature": 1.5, "top_k": 20, "top_p": 0.8, "min_p": 0.02},
        {"top_k": 700},
        {"top_k": 700, "top_p": 0.999, "temperature": 4.0},
    ],
)
def test_draws_follow_the_distribution(params: dict[str, Any]) -> None:
    logits = torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(1)) * 2
    counts = draw_many(logits, 6000, **params)
    assert misfit(counts, reference_probabilities(logits, **params)) < 4


def test_a_wrong_distribution_would_be_noticed() -> None:
    logits = torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(1)) * 2
    counts = draw_many(logits, 6000, temperature=1.2)
    assert misfit(counts, reference_probabilities(logits)) > 10


def test_temperature_zero_and_top_k_one_take_the_first_best_token() -> None:
    logits = torch.zeros(3, VOCAB_SIZE)
    logits[:, [40, 30]] = 5.0
    rows = Rows().add(temperature=0.0).add(temperature=1.0, top_k=1).add(temperature=0.0, top_p=0.1)
    assert rows.sample(logits) == [30, 30, 30]


def test_a_tiny_top_p_or_full_min_p_is_greedy() -> None:
    logits = torch.randn(20, VOCAB_SIZE, generator=torch.Generator().manual_seed(3))
    rows = Rows()
    for seed in range(20):
        limits: dict[str, Any] = {"top_p": 1e-9} if seed % 2 else {"min_p": 1.0}
        rows.add(seed=seed, **limits)
    assert rows.sample(logits) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("vocab_size", [1, 2, 63, 64, 65, 257])
def test_small_vocabularies(vocab_size: int) -> None:
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(vocab_size))
    choices: list[dict[str, Any]] = [{}, {"top_p": 0.9}, {"top_k": 2}, {"min_p": 0.1}]
    for params in choices:
        counts = draw_many(logits, 300, **params)
        kept = reference_probabilities(
            logits, **{**params, **({"top_k": min(2, vocab_size)} if "top_k" in params else {})}
        )
        assert len(counts) == vocab_size
        assert counts[kept.numpy() == 0].sum() == 0


def test_penalties_change_logits_as_defined() -> None:
    # Tokens 1 and 2 are in the prompt; 2 and 3 in the output, 3 twice.
    history = (1, 2, 2, 3, 3)
    logits = torch.zeros(4, VOCAB_SIZE)
    logits[:, 1], logits[:, 2], logits[:, 3], logits[:, 4] = 4.0, 3.9, 3.8, 2.5
    rows = (
        Rows()
        .add(history=history, prompt=2, temperature=0.0, repetition_penalty=2.0)
        .add(history=history, prompt=2, temperature=0.0, presence_penalty=2.0)
        .add(history=history, prompt=2, temperature=0.0, frequency_penalty=1.0)
        .add(history=history, prompt=2, temperature=0.0)
    )
    assert rows.sample(logits) == [4, 1, 1, 1]
    logits[:, 1] = 0.0
    # 2 was written once and 3 twice: presence treats them alike, frequency does not.
    assert rows.sample(logits) == [4, 4, 2, 2]


def test_repetition_penalty_pushes_negative_logits_down() -> None:
    logits = torch.full((1, VOCAB_SIZE), -5.0)
    logits[0, 7], logits[0, 8] = -1.0, -1.5
    assert Rows().add(temperature=0.0, repetition_penalty=2.0).sample(logits) == [8]


def test_stop_tokens_are_not_sampled_before_min_tokens() -> None:
    logits = torch.zeros(3, VOCAB_SIZE)
    logits[:, 9], logits[:, 10], logits[:, 11] = 9.0, 8.0, 7.0
    rows = (
        Rows()
        .add(history=(1, 2), prompt=1, temperature=0.0, min_tokens=2, stop=(9, 10))
        .add(history=(1, 2, 3), prompt=1, temperature=0.0, min_tokens=2, stop=(9, 10))
        .add(history=(1, 2), prompt=1, temperature=0.0, stop=(9, 10))
    )
    assert rows.sample(logits) == [11, 9, 9]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_fails_alone(bad: float, temperature: float) -> None:
    logits = torch.randn(3, VOCAB_SIZE)
    rows = Rows().add(temperature=0.7).add(temperature=temperature, top_p=0.5).add(temperature=0.7, seed=3)
    good = rows.sample(logits)
    logits[1, 17] = bad
    table = RequestTable(4, 4, 4)
    for request in rows.requests:
        table.add(request)
    where = SamplingRows(np.array([table.row(i) for i in range(3)]), np.array([1, 1, 1]), torch.arange(3))
    sampled = sample(logits.clone(), table, where, Rows.draw)
    assert sampled.failed_rows == sampled.broken_rows == (1,)
    assert sampled.token_ids[[0, 2]].tolist() == [good[0], good[2]]


def test_a_row_without_any_possible_token_fails() -> None:
    table = RequestTable(1, 4, 4)
    table.add(NewRequest(0, (1,), 1, 0, (0,), SamplingParams(temperature=1.0), 0))
    rows = SamplingRows(np.array([table.row(0)]), np.array([1]), torch.arange(1))
    sampled = sample(torch.full((1, VOCAB_SIZE), -torch.inf), table, rows)
    assert (sampled.failed_rows, sampled.broken_rows) == ((0,), ())


params_strategy = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.1, 0.8, 1.0, 2.5]),
        "top_k": st.sampled_from([0, 1, 3, 40, 300, 5000]),
        "top_p": st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
        "min_p": st.sampled_from([0.0, 0.0, 0.01, 0.5]),
        "repetition_penalty": st.sampled_from([1.0, 1.0, 1.3, 0.8]),
        "presence_penalty": st.sampled_from([0.0, 0.0, 1.0, -0.5]),
        "frequency_penalty": st.sampled_from([0.0, 0.0, 0.7]),
        "min_tokens": st.sampled_from([0, 2]),
        "max_tokens": st.just(16),
        "seed": st.integers(0, 2**64 - 1),
        "history": st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=12).map(tuple),
        "stop": st.just((3, 5)),
    }
)


@settings(max_examples=60, deadline=None)
@given(st.lists(params_strategy, min_size=2, max_size=8), st.randoms(use_true_random=False), st.integers(0, 10))
def test_a_row_never_depends_on_its_batch_mates(params, random, logits_seed: int) -> None:
    """Public bug: a seeded request stopped being repeatable when a mate had no seed (vllm#51226)."""
    logits = torch.randn(len(params), VOCAB_SIZE, generator=torch.Generator().manual_seed(logits_seed)) * 3
    rows = Rows()
    for row in params:
        rows.add(**row)
    together = rows.sample(logits)
    order = list(range(len(params)))
    random.shuffle(order)
    shuffled = rows.sample(logits, order)
    assert [shuffled[order.index(index)] for index in range(len(params))] == together
    assert [rows.sample(logits, [index])[0] for index in range(len(params))] == together


@pytest.mark.parametrize("vocab_size", [49_152, 151_936])
def test_big_vocabularies_do_not_depend_on_batch_mates_either(vocab_size: int) -> None:
    """Long sums are where torch may split work over threads by the size of the batch."""
    logits = torch.randn(5, vocab_size, generator=torch.Generator().manual_seed(0)) * 2
    rows = Rows()
    for seed in range(5):
        rows.add(seed=seed, temperature=1.0, top_p=[1.0, 0.9, 0.99, 1.0, 0.5][seed], top_k=[0, 0, 1000, 50, 0][seed])
    together = rows.sample(logits)
    assert [rows.sample(logits, [index])[0] for index in range(5)] == together


def test_seeds_and_positions_give_different_draws() -> None:
    logits = torch.zeros(400, VOCAB_SIZE)
    by_seed = Rows()
    by_position = Rows()
    for index in range(400):
        by_seed.add(seed=index)
        by_position.add(seed=11, history=(1,) * (index + 1))
    for rows in (by_seed, by_position):
        assert len(set(rows.sample(logits))) > 250
        assert rows.sample(logits) == rows.sample(logits)


def test_both_ways_draw_the_same_tokens() -> None:
    """They round differently, so a draw may fall on the other side of a border; nearly none does."""
    logits = torch.randn(300, 5000, generator=torch.Generator().manual_seed(4)) * 3
    rows = Rows()
    for seed in range(300):
        rows.add(seed=seed, temperature=0.5 + seed % 4, top_p=[1.0, 0.9][seed % 2], top_k=[0, 0, 100][seed % 3])
    kernels = CpuKernels(torch.float32, 2)
    with mock.patch.object(Rows, "draw", staticmethod(draw_tokens)):
        plain = rows.sample(logits)
    with mock.patch.object(Rows, "draw", staticmethod(kernels.draw)):
        compiled = rows.sample(logits)
    kernels.close()
    assert sum(a != b for a, b in zip(plain, compiled, strict=True)) <= 2


def test_rows_that_want_more_than_their_most_likely_token_are_not_greedy() -> None:
    for sampling, greedy in (
        (SamplingParams(temperature=0.0), True),
        (SamplingParams(temperature=1.0, top_k=1), True),
        (SamplingParams(temperature=1.0), False),
        (SamplingParams(temperature=0.0, logprobs=0), False),
        (SamplingParams(temperature=0.0, frequency_penalty=0.5), False),
        (SamplingParams(temperature=0.0, logit_bias={3: 1.0}), False),
        (SamplingParams(temperature=0.0, min_tokens=3, max_tokens=4), False),
    ):
        table = RequestTable(2, 4, 4)
        for request_id, one in enumerate((SamplingParams(temperature=0.0), sampling)):
            table.add(NewRequest(request_id, (7,), 1, 0, (0,), one, 0, frozenset({5})))
        rows = SamplingRows(np.array([table.row(0), table.row(1)]), np.array([1, 1]), torch.arange(2))
        assert is_greedy(table, rows) == greedy, sampling


def test_greedy_rows_without_a_finite_highest_logit_fail() -> None:
    logits = torch.zeros(5, 8)
    logits[1, 3], logits[2, 4], logits[3], logits[4, 2] = torch.nan, torch.inf, -torch.inf, -torch.inf
    sampled = sample_greedily(most_likely(logits))
    assert (sampled.failed_rows, sampled.broken_rows) == ((1, 2, 3), (1, 2))
    assert sampled.token_ids[[0, 4]].tolist() == [0, 0]
