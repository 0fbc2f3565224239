"""What the scheduler is told once everything is known: no ``None`` left, every number checked against the others.

Knows nothing of where the numbers came from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from chairlift.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantConfig:
    """What one tenant may have. Caps are ``None`` where there is none.

    Raises:
        ConfigurationError: the weight is not positive.
    """

    weight: float = 1.0
    """Its share of service against other tenants with work, under ``--tenant-order fair``."""
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    max_kv_pages: int | None = None
    """KV pages that its running requests may hold together."""
    most_urgent_tier: int = 0
    """Lowest number that ``priority`` of its requests may have; lower ones are raised to it."""

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise ConfigurationError(f"a tenant's weight must be positive, got {self.weight}")


DEFAULT_TENANT = TenantConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantTable:
    """Tenants by name, and what all others may have, each for itself."""

    by_name: Mapping[str, TenantConfig] = field(default_factory=dict[str, TenantConfig])
    default: TenantConfig = DEFAULT_TENANT

    def find(self, name: str) -> TenantConfig:
        """What the tenant of this name may have."""
        return self.by_name.get(name, self.default)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of one step, in tokens, slots and passes; see :class:`~chairlift.config.sections.SchedulerSettings`.

    Raises:
        ConfigurationError: the numbers cannot work together; the message names limit, value and setting.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 256
    max_model_len: int = 2048
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    max_lookahead: int = 8
    batching: str = "continuous"
    scheduling_policy: str = "fcfs"
    tenant_order: str = "none"
    guaranteed_share: float = 0.05
    quantum_tokens: int = 256
    max_equal_wait_ms: int = 1000
    admission: str = "reserve-prompt"
    watermark: float = 0.0
    chunking_policy: str = "shortest-first"
    target_tpot_ms: float | None = None
    preemption_policy: str = "last-admitted"
    preemption_mode: str = "recompute"
    max_preemptions: int = 3
    queue_timeout_s: float | None = None
    tenants: Mapping[str, TenantConfig] = field(default_factory=dict[str, TenantConfig])
    """Tenants that differ from the default one, by name."""
    default_tenant: TenantConfig = DEFAULT_TENANT
    """What every other tenant may have, each for itself."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if getattr(self, name) < 1:
                flag = "--" + name.replace("_", "-")
                raise ConfigurationError(f"{flag} must be at least 1, got {getattr(self, name)}")
        if self.max_lookahead < 0:
            raise ConfigurationError(f"--max-lookahead must be at least 0, got {self.max_lookahead}")
        if self.long_prefill_token_threshold < 0:
            raise ConfigurationError(
                f"--long-prefill-token-threshold must be at least 0, got {self.long_prefill_token_threshold}"
            )

    @property
    def has_quotas(self) -> bool:
        """Whether any tenant may hold only so many pages."""
        return any(tenant.max_kv_pages is not None for tenant in (self.default_tenant, *self.tenants.values()))

    def tenant(self, name: str) -> TenantConfig:
        """What the tenant of this name may have."""
        return self.tenants.get(name, self.default_tenant)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """KV memory in pages.

    Raises:
        ConfigurationError: a number is not positive.
    """

    num_pages: int
    page_size: int = 16
    num_host_pages: int = 0
    """Pages of the host tier, for the KV of preempted requests."""
    page_bytes: int | None = None
    """KV bytes of a page, if known: what a copy of one to the host tier should take."""
    host_bytes_per_s: float | None = None
    """Speed of the link to host memory, if known."""
    enable_prefix_caching: bool = True
    eviction_policy: str = "lru"

    def __post_init__(self) -> None:
        for name, flag in (("num_pages", "--kv-cache-memory"), ("page_size", "--page-size")):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{flag} must leave at least 1, got {name}={getattr(self, name)}")

    @property
    def num_token_slots(self) -> int:
        """Tokens whose KV fits in all pages together."""
        return self.num_pages * self.page_size


def check_step_budget(scheduler: SchedulerConfig, cache: CacheConfig) -> None:
    """Refuse a token budget with which prefill could stand still: decodes of all slots plus one page must fit.

    Raises:
        ConfigurationError: the budget is too small; the message names both settings that change it.
    """
    needed = scheduler.max_num_seqs + cache.page_size
    if scheduler.max_num_batched_tokens < needed:
        raise ConfigurationError(
            f"--max-num-batched-tokens is {scheduler.max_num_batched_tokens}, but {needed} are needed "
            f"(--max-num-seqs {scheduler.max_num_seqs} plus one page of --page-size {cache.page_size}), "
            "so that prompts advance while every slot decodes"
        )
