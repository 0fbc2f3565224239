"""``--swap-space`` becomes pages of the host tier, modes that need one say so, and the engine uses it."""

import pytest

from chairlift import LLM, SamplingParams
from chairlift.engine.fake_model import KV_BYTES_PER_TOKEN
from chairlift.errors import ConfigurationError

PAGE_BYTES = 16 * KV_BYTES_PER_TOKEN
LONG = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)


def make(**settings: object) -> LLM:
    return LLM(None, executor="fake", **settings)


@pytest.mark.parametrize(("space", "num_pages"), [("0", 0), (str(PAGE_BYTES - 1), 0), (str(5 * PAGE_BYTES + 7), 5)])
def test_swap_space_in_pages(space: str, num_pages: int) -> None:
    with make(swap_space=space) as llm:
        stats = llm._built.runner.stats().scheduler
    assert (stats.num_host_pages, stats.num_free_host_pages) == (num_pages, num_pages)


def test_swapping_without_space_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"--preemption-mode swap needs --swap-space: 1KiB holds no page"):
        make(preemption_mode="swap", swap_space="1KiB")


def test_more_than_the_toy_model_takes_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="--swap-space is 1PiB"):
        make(swap_space="1PiB")


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("mode", ["recompute", "swap", "tail", "auto"])
@pytest.mark.parametrize("policy", ["last-admitted", "cheapest"])
def test_every_mode_gives_what_an_undisturbed_run_gives(mode: str, policy: str, depth: int) -> None:
    prompts = [f"a prompt of some length, number {i}" for i in range(8)]
    with make() as llm:
        undisturbed = llm.generate(prompts, LONG, use_tqdm=False)
    with make(
        kv_cache_memory=str(16 * PAGE_BYTES),
        swap_space=str(64 * PAGE_BYTES),
        preemption_mode=mode,
        preemption_policy=policy,
        pipeline_depth=depth,
    ) as llm:
        pressed = llm.generate(prompts, LONG, use_tqdm=False)
        stats = llm._built.runner.stats().scheduler
        assert llm._built.runner.find_violations() == []
    assert [result.outputs[0].token_ids for result in pressed] == [r.outputs[0].token_ids for r in undisturbed]
    assert stats.preemptions_total > 0
    assert stats.num_free_host_pages == stats.num_host_pages
    if mode == "swap":
        assert stats.swapped_in_pages_total > 0
        assert stats.recomputed_tokens_total == 0
