import pytest

from chairlift.config.load import load_settings
from chairlift.config.resolve import MemoryFacts, resolve_configs
from chairlift.config.resolved import CacheConfig, SchedulerConfig
from chairlift.errors import ConfigurationError


def resolve(*, is_offline: bool = False, **values: object) -> tuple[SchedulerConfig, CacheConfig]:
    return resolve_configs(
        load_settings(values, {}), max_model_len=2048, memory=MemoryFacts(100), is_offline=is_offline
    )


def test_serving_takes_short_steps_and_offline_work_long_ones() -> None:
    assert resolve()[0].max_num_batched_tokens == 256
    assert resolve(is_offline=True)[0].max_num_batched_tokens == 512


def test_model_facts_are_taken_over() -> None:
    scheduler, cache = resolve()
    assert scheduler.max_model_len == 2048
    assert cache.num_pages == 100
    assert cache.num_token_slots == 1600


def test_a_default_budget_grows_with_the_slots() -> None:
    assert resolve(max_num_seqs=300)[0].max_num_batched_tokens == 316
    assert resolve(max_num_seqs=300, page_size=32)[0].max_num_batched_tokens == 332


def test_a_given_budget_is_never_changed_but_refused_where_prompts_could_stand_still() -> None:
    assert resolve(max_num_batched_tokens=80)[0].max_num_batched_tokens == 80
    with pytest.raises(ConfigurationError, match=r"--max-num-batched-tokens is 79, but 80 are needed"):
        resolve(max_num_batched_tokens=79)


def test_every_scheduler_setting_reaches_the_scheduler() -> None:
    scheduler, cache = resolve(
        max_num_seqs=3,
        max_num_batched_tokens=99,
        enable_chunked_prefill=False,
        long_prefill_token_threshold=17,
        max_lookahead=5,
        batching="static",
        page_size=8,
        enable_prefix_caching=False,
    )
    assert scheduler == SchedulerConfig(
        max_num_seqs=3,
        max_num_batched_tokens=99,
        max_model_len=2048,
        enable_chunked_prefill=False,
        long_prefill_token_threshold=17,
        max_lookahead=5,
        batching="static",
    )
    assert cache == CacheConfig(num_pages=100, page_size=8, enable_prefix_caching=False)


def test_no_pages_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="num_pages=0"):
        resolve_configs(load_settings({}, {}), max_model_len=2048, memory=MemoryFacts(0))
