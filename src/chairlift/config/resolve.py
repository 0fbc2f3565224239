"""From settings and what is known about the model to the numbers that the scheduler runs by.

Knows nothing of how the model was loaded or how much memory there is.
"""

from typing import NamedTuple

from chairlift.config.resolved import CacheConfig, SchedulerConfig, TenantTable, check_step_budget
from chairlift.config.settings import Settings

SERVING_BUDGET_TOKENS = 256
"""Short steps keep the gap between two tokens of a stream short."""

OFFLINE_BUDGET_TOKENS = 512
"""Nobody watches the gaps, so prompts may take larger bites."""


class MemoryFacts(NamedTuple):
    """KV pages that there is memory for, on the device and in ``--swap-space``, and the KV bytes of one."""

    num_pages: int
    num_host_pages: int = 0
    page_bytes: int | None = None


def resolve_configs(
    settings: Settings,
    *,
    max_model_len: int,
    memory: MemoryFacts,
    tenants: TenantTable | None = None,
    is_offline: bool = False,
) -> tuple[SchedulerConfig, CacheConfig]:
    """Fill in what depends on the model and on how it is used, and check the numbers against each other.

    A default token budget grows with the slots and the page size; one that the user gave is taken as it is.

    Args:
        settings: what the user chose.
        max_model_len: prompt plus output tokens of one request at most, as the model allows.
        memory: what there is memory for.
        tenants: what each of them may have; nobody differs from the default one if absent.
        is_offline: whether throughput counts more than the gap between two tokens.

    Raises:
        ConfigurationError: the numbers cannot work together; the message names the settings to change.
    """
    chosen, policy = settings.scheduler, settings.policy
    tenants = tenants or TenantTable()
    cache = CacheConfig(
        num_pages=memory.num_pages,
        num_host_pages=memory.num_host_pages,
        page_bytes=memory.page_bytes,
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
        scheduling_policy=policy.scheduling_policy,
        tenant_order=policy.tenant_order,
        guaranteed_share=policy.guaranteed_share,
        quantum_tokens=policy.quantum_tokens,
        max_equal_wait_ms=policy.max_equal_wait_ms,
        admission=policy.admission,
        watermark=policy.watermark,
        chunking_policy=policy.chunking_policy,
        target_tpot_ms=policy.target_tpot_ms,
        preemption_policy=policy.preemption_policy,
        preemption_mode=policy.preemption_mode,
        max_preemptions=policy.max_preemptions,
        queue_timeout_s=settings.queue.queue_timeout,
        tenants=tenants.by_name,
        default_tenant=tenants.default,
    )
    check_step_budget(scheduler, cache)
    return scheduler, cache
