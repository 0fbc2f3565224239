"""Log-probabilities against transformers, and that neither company nor pages nor chunks change them."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from chairlift.config.model_source import ModelSource
from chairlift.core.step_plan import TokenLogprobs
from chairlift.execution.torch_backend.logprobs import describe_tokens
from tests.equivalence.executor.run import CLOSE, Run
from tests.equivalence.tiny_models import random_tokens, reference_logits


def assert_is(found: TokenLogprobs, logits: torch.Tensor, token_id: int, num_top: int) -> None:
    """What transformers says of the same place."""
    expected = torch.log_softmax(logits.double(), -1)
    assert found.token_logprob == pytest.approx(float(expected[token_id]), abs=CLOSE)
    assert abs(found.rank - 1 - int((logits > logits[token_id]).sum())) <= 1
    best = expected.topk(num_top).values.tolist() if num_top else []
    assert [logprob for _, logprob in found.top] == pytest.approx(best, abs=CLOSE)
    for token, logprob in found.top:
        assert logprob == pytest.approx(float(expected[token]), abs=CLOSE)


COMPANIES: list[dict[str, Any]] = [
    {},
    {"depth": 2, "max_num_batched_tokens": 24},
    {"num_pages": 13},
    {"num_pages": 13, "preemption_mode": "swap", "depth": 2},
    {"num_pages": 13, "preemption_mode": "tail"},
]


@pytest.mark.parametrize("options", COMPANIES, ids=str)
def test_logprobs_are_those_of_the_model_whatever_happens_around_and_to_the_logits(
    source: ModelSource, reference: PreTrainedModel, options: dict[str, Any]
) -> None:
    # Bias, penalties and temperature change what is drawn, and nothing of what the model says of it.
    asked: dict[str, Any] = {
        "logprobs": 5, "prompt_logprobs": 3, "temperature": 1.3, "seed": 4, "repetition_penalty": 1.2,
        "logit_bias": {9: 3.0}, "max_tokens": 20, "top_k": 40,
    }  # fmt: skip
    prompts = [random_tokens(length, seed=length) for length in (1, 2, 16, 33, 50)]
    with Run(source, **options) as run:
        ids = [run.add(prompt, **asked) for prompt in prompts]
        for length in (5, 20, 40):
            run.add(random_tokens(length, seed=100 + length), max_tokens=20)
        run.run()
        if "num_pages" in options:
            assert run.engine.stats().preemptions_total > 0
    for request_id, prompt in zip(ids, prompts, strict=True):
        tokens, found = run.tokens[request_id], run.logprobs[request_id]
        logits = reference_logits(reference, prompt + tokens)
        assert len(found) == len(tokens) == 20
        for place, (token_id, logprobs) in enumerate(zip(tokens, found, strict=True), len(prompt) - 1):
            assert_is(logprobs, logits[place], token_id, 5)
        assert sorted(run.prompt[request_id]) == list(range(1, len(prompt)))
        for place, logprobs in run.prompt[request_id].items():
            assert_is(logprobs, logits[place - 1], prompt[place], 3)
    assert not any(run.logprobs[request_id] for request_id in run.tokens if request_id not in ids)


def test_b60_prompt_logprobs_are_the_same_with_a_cached_prefix(source: ModelSource, reference: PreTrainedModel) -> None:
    prompt = random_tokens(33, seed=3)
    overlapping = [*prompt[:20], *random_tokens(13, seed=8)]
    expected = torch.log_softmax(reference_logits(reference, prompt).double(), -1)
    with Run(source) as run:
        for before in ([], [prompt], [overlapping]):
            for other in before:
                run.add(other)
            run.run()
            request_id = run.add(prompt, prompt_logprobs=1)
            run.run()
            found = run.prompt[request_id]
            assert sorted(found) == list(range(1, 33))
            for place, logprobs in found.items():
                assert logprobs.token_logprob == pytest.approx(float(expected[place - 1, prompt[place]]), abs=CLOSE)
        # Others find in the cache what it computed.
        hits = run.engine.stats().prefix_hit_tokens_total
        run.add(prompt)
        assert run.run().engine.stats().prefix_hit_tokens_total == hits + 32


def test_a_row_gets_the_same_logprobs_alone_and_among_others(source: ModelSource) -> None:
    prompt = random_tokens(9)
    with Run(source) as run:
        alone = run.add(prompt, logprobs=4)
        run.run()
        together = run.add(prompt, logprobs=4)
        for count in (1, 7, 30):
            run.add(random_tokens(3 * count, seed=count), logprobs=count, max_tokens=12)
        run.run()
    assert run.tokens[together] == run.tokens[alone]
    for first, second in zip(run.logprobs[alone], run.logprobs[together], strict=True):
        assert first.token_logprob == pytest.approx(second.token_logprob, abs=1e-5)
        assert [token for token, _ in first.top] == [token for token, _ in second.top]


def test_edits_decide_for_their_own_row_alone(source: ModelSource) -> None:
    prompt = random_tokens(9)
    with Run(source) as run:
        plain = run.add(prompt)
        run.run()
        (best, second, *_) = run.tokens[plain]
        biased = run.add(prompt, logit_bias={11: 100.0, best: -100.0})
        allowed = run.add(prompt, allowed_token_ids=[40, 41, 42])
        banned = run.add(prompt, bad_token_ids=((best,),))
        sequence = run.add(prompt, bad_token_ids=((best, second), (best, second, 3), (5, 6)))
        nothing = run.add(prompt, allowed_token_ids=[40], bad_token_ids=((40,),))
        again = run.add(prompt)
        run.run()
    assert run.tokens[biased] == [11] * 8
    assert set(run.tokens[allowed]) <= {40, 41, 42}
    assert best not in run.tokens[banned]
    assert run.tokens[sequence][0] == best
    pairs = list(zip(run.tokens[sequence], run.tokens[sequence][1:], strict=False))
    assert (best, second) not in pairs
    assert run.tokens[again] == run.tokens[plain]
    assert (run.finished[nothing], run.tokens[nothing]) == ("error", [])


@pytest.mark.parametrize("vocab_size", [3, 64, 333, 1000])
def test_each_row_is_described_alone_and_equal_tokens_come_in_the_order_of_their_ids(vocab_size: int) -> None:
    # Few different numbers, so that many are equal.
    logits = torch.randn(6, vocab_size, generator=torch.Generator().manual_seed(1)).mul(2).round()
    token_ids = np.array([0, 1, 2, 2, vocab_size - 1, 1])
    num_top = np.array([0, 1, 2, 20, 70, vocab_size + 5])
    expected = torch.log_softmax(logits.double(), -1)
    found = describe_tokens(logits, token_ids, num_top)
    for row, described in enumerate(found):
        token_id, count = int(token_ids[row]), min(int(num_top[row]), vocab_size)
        assert described.token_logprob == pytest.approx(float(expected[row, token_id]), abs=1e-6)
        assert dict(described.top).get(token_id, described.token_logprob) == described.token_logprob
        assert described.rank == 1 + int((logits[row] > logits[row, token_id]).sum())
        order = sorted(range(vocab_size), key=lambda token: (-float(logits[row, token]), token))
        assert [token for token, _ in described.top] == order[:count]
        assert [logprob for _, logprob in described.top] == pytest.approx(
            expected[row, order[:count]].tolist(), abs=1e-6
        )
        assert describe_tokens(logits[row : row + 1], token_ids[row : row + 1], num_top[row : row + 1]) == [described]
