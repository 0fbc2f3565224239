"""What is simulated: settings and a machine become the configuration of a scheduler.

Knows nothing of workloads. What a setting does not say, the machine does: slots, budget, model length, KV memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from chairlift.config.load import coerce
from chairlift.config.resolve import MemoryFacts, resolve_configs
from chairlift.config.resolved import CacheConfig, SchedulerConfig, TenantTable
from chairlift.config.settings import Settings, settings_by_name
from chairlift.config.sizes import format_bytes, parse_bytes
from chairlift.errors import ConfigurationError
from chairlift.simulator.latency.model import LatencyModel, MachineFacts

_MAX_PAGES = 1 << 24


@dataclass(frozen=True, slots=True)
class SimulatedEngine:
    """A configured scheduler and the machine that it would run on."""

    scheduler: SchedulerConfig
    cache: CacheConfig
    latency: LatencyModel
    pipeline_depth: int = 1


def machine_defaults(facts: MachineFacts, given: Mapping[str, object]) -> dict[str, object]:
    """Return ``given``, completed by what the machine would be set up with."""
    values: dict[str, object] = {"max_num_seqs": facts.max_num_seqs}
    if facts.max_num_batched_tokens is not None:
        values["max_num_batched_tokens"] = facts.max_num_batched_tokens
    values.update(given)
    if "max_num_batched_tokens" not in given and facts.max_num_batched_tokens is not None:
        # Many slots on a budget that nobody chose must not be refused.
        known = settings_by_name()
        slots, page_size = (coerce(known[name], values.get(name, 16)) for name in ("max_num_seqs", "page_size"))
        values["max_num_batched_tokens"] = max(facts.max_num_batched_tokens, int(str(slots)) + int(str(page_size)))
    return values


def set_up(
    settings: Settings,
    latency: LatencyModel,
    *,
    longest_tokens: int,
    tenants: TenantTable | None = None,
) -> SimulatedEngine:
    """Resolve settings for a machine.

    Args:
        settings: with the machine's defaults already in them.
        latency: the machine.
        longest_tokens: the longest request expected, for a machine whose memory has no limit.
        tenants: what each tenant may have.

    Raises:
        ConfigurationError: the numbers cannot work together.
    """
    facts = latency.facts
    max_model_len = settings.model.max_model_len or facts.max_model_len
    memory = MemoryFacts(
        _num_pages(settings, facts, min(max_model_len, longest_tokens)),
        _num_host_pages(settings, facts),
        None if facts.kv_bytes_per_token is None else settings.cache.page_size * facts.kv_bytes_per_token,
    )
    scheduler, cache = resolve_configs(
        settings,
        max_model_len=max_model_len,
        memory=memory,
        tenants=tenants,
    )
    if scheduler.preemption_mode == "swap" and cache.num_host_pages == 0:
        raise ConfigurationError(
            f"--preemption-mode swap needs --swap-space: {settings.cache.swap_space} holds no page"
        )
    cache = replace(cache, host_bytes_per_s=facts.host_bytes_per_s)
    return SimulatedEngine(scheduler, cache, latency, settings.scheduler.pipeline_depth)


def _num_pages(settings: Settings, facts: MachineFacts, longest_tokens: int) -> int:
    page_size, memory = settings.cache.page_size, settings.cache.kv_cache_memory
    if memory is not None:
        page_bytes = page_size * _bytes_per_token(facts, "--kv-cache-memory")
        num_bytes = parse_bytes(memory, setting="--kv-cache-memory")
        if num_bytes < page_bytes:
            raise ConfigurationError(
                f"--kv-cache-memory is {memory}, but one page of {facts.name} has {format_bytes(page_bytes)}"
            )
        num_pages = num_bytes // page_bytes
    elif facts.num_kv_tokens is not None:
        num_pages = facts.num_kv_tokens // page_size
        if num_pages == 0:
            raise ConfigurationError(
                f"--page-size is {page_size}, but {facts.name} has memory for {facts.num_kv_tokens} tokens of KV"
            )
    else:
        num_pages = settings.scheduler.max_num_seqs * -(-longest_tokens // page_size)
    return max(1, min(num_pages, _MAX_PAGES))


def _num_host_pages(settings: Settings, facts: MachineFacts) -> int:
    num_bytes = parse_bytes(settings.cache.swap_space, setting="--swap-space")
    if num_bytes == 0:
        return 0
    return min(num_bytes // (settings.cache.page_size * _bytes_per_token(facts, "--swap-space")), _MAX_PAGES)


def _bytes_per_token(facts: MachineFacts, flag: str) -> int:
    if facts.kv_bytes_per_token is None:
        raise ConfigurationError(f"{flag} says bytes, but the latency model {facts.name!r} does not say what KV takes")
    return facts.kv_bytes_per_token
