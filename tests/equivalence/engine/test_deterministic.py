"""With ``--deterministic`` a request's tokens are the same, bit for bit, whatever is computed beside it.

In the numbers that are the default for the embedded model: weights of four bits, KV in int8.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.llm import LLM

QUESTIONS = Path(__file__).parents[2] / "data" / "mt_bench_first_turns.jsonl"
SETTINGS: dict[str, Any] = {"deterministic": True, "max_model_len": 1024}
DRAWN = SamplingParams(temperature=1.0, seed=11, max_tokens=24, logprobs=0, ignore_eos=True)
"""Drawn, so that the last bit of any probability has a say; and with their logprobs, where the last bit shows."""
KV_BYTES_PER_TOKEN = 30 * 2 * 3 * (64 + 4)
"""Layers, keys and values, heads, head size and a scale in int8."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Said = list[tuple[tuple[int, ...], list[float]]]


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    lines = QUESTIONS.read_text(encoding="utf-8").split("\n")[:5]
    return [json.loads(line)["prompt"] * (1 + index % 3) for index, line in enumerate(lines)]


def said(llm: LLM, prompts: list[str]) -> Said:
    return [
        (
            tuple(output.token_ids),
            [step[token].logprob for step, token in zip(output.logprobs or [], output.token_ids, strict=True)],
        )
        for output in (result.outputs[0] for result in llm.generate(prompts, DRAWN, use_tqdm=False))
    ]


@pytest.fixture(scope="module")
def alone(prompts: list[str]) -> Said:
    with LLM(**SETTINGS, kv_cache_memory="100MB", enable_prefix_caching=False) as llm:
        return [said(llm, [prompt])[0] for prompt in prompts]


def test_in_company_and_from_a_warm_cache(prompts: list[str], alone: Said) -> None:
    with LLM(**SETTINGS, kv_cache_memory="100MB", max_num_seqs=8) as llm:
        assert said(llm, prompts) == alone
        assert said(llm, prompts[::-1]) == alone[::-1]


def test_in_small_chunks(prompts: list[str], alone: Said) -> None:
    with LLM(**SETTINGS, kv_cache_memory="100MB", max_num_seqs=5, max_num_batched_tokens=21) as llm:
        assert said(llm, prompts) == alone


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_under_preemption(prompts: list[str], alone: Said, mode: str) -> None:
    memory = str(300 * KV_BYTES_PER_TOKEN)
    with LLM(**SETTINGS, kv_cache_memory=memory, max_num_seqs=8, preemption_mode=mode, swap_space="100MB") as llm:
        assert said(llm, prompts) == alone
        assert llm.last_run_stats is not None
        assert llm.last_run_stats.num_preemptions > 0
