"""What each tier of each tenant was given: the series of one pair, bundled so that counting a token is an addition.

Knows nothing of keys or of who may ask for what; callers bring names, durations and the time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from chairlift.config.resolved import TenantTable
from chairlift.config.tenants import RESERVED_NAMES
from chairlift.core.fairness import VirtualCounters
from chairlift.observability.cells import CounterCell
from chairlift.observability.fairness_window import TenantService
from chairlift.observability.label_cap import OTHER, LabelCap
from chairlift.observability.metrics import MAX_OTHER_TENANTS, MAX_OTHER_TIERS, Metrics

_MS_PER_S = 1000.0

NAMELESS = "default"
"""Label of requests without a tenant."""

GOOD_ENDS = frozenset({"stop", "length"})
"""Reasons with which a request ended as it should."""


@dataclass(frozen=True, slots=True)
class Objectives:
    """What a request must keep to count as good: seconds from its arrival, ``None`` where there is no objective."""

    ttft_s: float | None = None
    total_s: float | None = None

    @classmethod
    def in_ms(cls, ttft_ms: float | None, total_ms: float | None) -> "Objectives":
        """The same from milliseconds."""
        return cls(*(None if limit_ms is None else limit_ms / _MS_PER_S for limit_ms in (ttft_ms, total_ms)))

    @property
    def exist(self) -> bool:
        """Whether there is any."""
        return self.ttft_s is not None or self.total_s is not None

    def are_met(self, ttft_s: float | None, total_s: float) -> bool:
        """Whether a request with these times kept them; ``None`` is a first token that never came."""
        is_first_in_time = self.ttft_s is None or (ttft_s is not None and ttft_s <= self.ttft_s)
        return is_first_in_time and (self.total_s is None or total_s <= self.total_s)


class Account:
    """The series of one tier of one tenant."""

    def __init__(self, metrics: Metrics, tier: str, tenant: str) -> None:
        self.tier, self.tenant = tier, tenant
        self.num_unfinished = 0
        self._metrics = metrics
        self._first_token = metrics.histogram("tenant_time_to_first_token_seconds").labels(tier, tenant)
        self._inter_token = metrics.histogram("tenant_inter_token_latency_seconds").labels(tier, tenant)
        self._prompt_tokens = self._series("tenant_prompt_tokens_total")
        self._generation_tokens = self._series("tenant_generation_tokens_total")
        self._good_requests = self._series("goodput_requests_total")
        self._good_tokens = self._series("goodput_tokens_total")

    @property
    def service_tokens(self) -> float:
        """Prompt tokens and weighted output tokens so far."""
        return self._prompt_tokens.value + VirtualCounters.OUTPUT_WEIGHT * self._generation_tokens.value

    def begin(self, num_choices: int) -> None:
        """A request came."""
        self.num_unfinished += num_choices

    def first_tokens(self, since_arrival_s: float, num_prompt_tokens: int, num_tokens: int) -> None:
        """Take the first token of a request, and those that came with it."""
        self._first_token.observe(since_arrival_s)
        self._prompt_tokens.value += num_prompt_tokens
        self._generation_tokens.value += num_tokens

    def next_tokens(self, since_last_s: float, num_tokens: int) -> None:
        """Take further tokens, which share the pause before them."""
        self._inter_token.observe(since_last_s / num_tokens, num_tokens)
        self._generation_tokens.value += num_tokens

    def end(self, reason: str, num_choices: int = 1) -> None:
        """Count ends, whatever became of the objectives."""
        self.num_unfinished -= num_choices
        self._series("tenant_requests_finished_total", reason).inc(num_choices)

    def judge(self, reason: str, *, is_met: bool, has_objectives: bool, num_tokens: int) -> None:
        """Count a request towards goodput and the objectives; one that the client ended counts as neither."""
        if reason == "abort":
            return
        is_good = is_met and reason in GOOD_ENDS
        if has_objectives:
            self._series("slo_requests_total", "met" if is_good else "missed").inc()
        if is_good:
            self._good_requests.inc()
            self._good_tokens.inc(num_tokens)

    def preempted(self, cause: str, mode: str, num_swapped_pages: int) -> None:
        """A request of this account gave way."""
        self._series("preemptions_by_cause_total", cause, mode).inc()
        if num_swapped_pages:
            self._series("swapped_pages_total", "out").inc(num_swapped_pages)

    def resumed(self, num_recomputed_tokens: int, num_swapped_pages: int) -> None:
        """It goes on."""
        self._series("recomputed_tokens_total").inc(num_recomputed_tokens)
        if num_swapped_pages:
            self._series("swapped_pages_total", "in").inc(num_swapped_pages)

    def _series(self, name: str, *more: str) -> CounterCell:
        return self._metrics.counter(name).labels(self.tier, self.tenant, *more)


class Accounts:
    """All accounts, few enough of them: see :class:`~chairlift.observability.label_cap.LabelCap`."""

    def __init__(self, metrics: Metrics, tenants: TenantTable) -> None:
        self._metrics = metrics
        self._accounts: dict[tuple[str, str], Account] = {}
        tiers = {"0", *(str(tenant.most_urgent_tier) for tenant in [tenants.default, *tenants.by_name.values()])}
        self._tiers = self._label_cap("tier", tiers, MAX_OTHER_TIERS)
        self._tenants = self._label_cap("tenant", {NAMELESS, *tenants.by_name}, MAX_OTHER_TENANTS)

    def add_tenants(self, tenants: TenantTable) -> None:
        """Tenants were configured at run time: they have their own labels from now on."""
        self._tenants.add_known(tenants.by_name)
        self._tiers.add_known(str(tenant.most_urgent_tier) for tenant in tenants.by_name.values())

    def find(self, tier: int, tenant: str, now_ns: int) -> Account:
        """The account of a request that arrives now."""
        labels = self._tiers.label(str(tier), now_ns), self._tenant_label(tenant, now_ns)
        account = self._accounts.get(labels)
        if account is None:
            account = self._accounts[labels] = Account(self._metrics, *labels)
        return account

    def _tenant_label(self, tenant: str, now_ns: int) -> str:
        # Clients whose names are trusted may call themselves like a label that has its own meaning.
        return OTHER if tenant in RESERVED_NAMES else self._tenants.label(tenant or NAMELESS, now_ns)

    def services(self, weights: TenantTable) -> Mapping[str, TenantService]:
        """What each tenant got, all its tiers together; those that share a label are not compared."""
        services: dict[str, TenantService] = {}
        for account in self._accounts.values():
            if account.tenant == OTHER:
                continue
            before = services.get(account.tenant, TenantService(0.0, 0))
            weight = weights.find("" if account.tenant == NAMELESS else account.tenant).weight
            services[account.tenant] = TenantService(
                before.weighted_tokens + account.service_tokens / weight,
                before.num_unfinished + account.num_unfinished,
            )
        return services

    def _label_cap(self, label: Literal["tier", "tenant"], known: set[str], max_others: int) -> LabelCap:
        def having(value: str) -> list[Account]:
            return [account for account in self._accounts.values() if getattr(account, label) == value]

        def forget(value: str) -> None:
            self._metrics.forget(label, value)
            for account in having(value):
                del self._accounts[account.tier, account.tenant]

        def is_needed(value: str) -> bool:
            return any(account.num_unfinished for account in having(value))

        return LabelCap(known, max_others, is_needed=is_needed, on_removed=forget)
