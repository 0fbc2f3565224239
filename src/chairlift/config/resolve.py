"""From settings and what is known about the model to the numbers that the scheduler runs by.

Knows nothing of how the model was loaded or how much memory there is.
"""

from chairlift.config.resolved import CacheConfig, SchedulerConfig, check_step_budget
from chairlift.config.settings import Settings

SERVING_BUDGET_TOKENS = 256
"""Short steps keep the gap between two tokens of a stream short."""

OFFLINE_BUDGET_TOKENS = 512
"""Nobody watches the gaps, so prompts may take larger bites."""


def resolve_configs(
    settings: Settings, *, max_model_len: int, num_pages: int, is_offline: bool = False
) -> tuple[SchedulerConfig, CacheConfig]:
    """Fill in what depends on the model and on how it is used, and check the numbers against each other.

    A default token budget grows with the slots and the page size; one that the user gave is taken as it is.

    Args:
        settings: what the user chose.
        max_model_len: prompt plus output tokens of one request at most, as the model allows.
        num_pages: KV pages there is memory for.
        is_offline: whether throughput counts more than the gap between two tokens.

    Raises:
        ConfigurationError: the numbers cannot work together; the message names the settings to change.
    """
    chosen = settings.scheduler
    cache = CacheConfig(
        num_pages=num_pages,
        page_size=settings.cache.page_size,
        enable_prefix_caching=settings.cache.enable_prefix_caching,
        eviction_policy=settings.cache.eviction_policy,
    )
    budget_tokens = chosen.max_num_batched_tokens
    if budget_tokens is None:
        default_tokens = OFFLINE_BUDGET_TOKENS if is_offline else SERVING_BUDGET_TOKENS
        budget_tokens = max(default_tokens, chosen.max_num_seqs + cache.page_size)
    scheduler = SchedulerConfig(
        max_num_seqs=chosen.max_num_seqs,
        max_num_batched_tokens=budget_tokens,
        max_model_len=max_model_len,
        enable_chunked_prefill=chosen.enable_chunked_prefill,
        long_prefill_token_threshold=chosen.long_prefill_token_threshold,
        max_lookahead=chosen.max_lookahead,
        batching=chosen.batching,
        scheduling_policy=chosen.scheduling_policy,
        admission=chosen.admission,
        chunking_policy=chosen.chunking_policy,
        preemption_policy=chosen.preemption_policy,
    )
    check_step_budget(scheduler, cache)
    return scheduler, cache
