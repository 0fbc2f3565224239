"""Policies by name: ordering, admission, chunking, eviction, preemption. Values, not mechanisms.

Knows nothing of the scheduler that asks them; each one sees read-only views and returns a decision.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from chairlift.config.resolved import SchedulerConfig
from chairlift.core.fairness import VirtualCounters
from chairlift.core.length_predictor import LengthPredictor
from chairlift.core.policies.admission import AdmissionPolicy, Optimistic, ReserveFull, ReservePrompt
from chairlift.core.policies.chunking import ChunkingPolicy, ShortestFirst, WholePrompts
from chairlift.core.policies.eviction import EvictionPolicy, Lru
from chairlift.core.policies.ordering import Deadline, Fcfs, LongestPrefix, LongestWaiting, OrderingPolicy, Shortest
from chairlift.core.policies.preemption import Cheapest, LastAdmitted, PreemptionPolicy
from chairlift.core.step_latency import StepLatencyModel
from chairlift.core.work_estimate import WorkEstimate
from chairlift.errors import ConfigurationError


def _deadline(estimate: WorkEstimate) -> OrderingPolicy:
    return Deadline(
        first_token_ns=lambda request: estimate.prefill_ns(request.num_tokens, request.num_computed_tokens),
        last_token_ns=lambda request: estimate.to_last_token_ns(request, request.num_computed_tokens),
    )


ORDERING: Mapping[str, Callable[[WorkEstimate], OrderingPolicy]] = {
    "fcfs": lambda estimate: Fcfs(),
    "priority": lambda estimate: Fcfs(),
    "deadline": _deadline,
    "shortest": lambda estimate: Shortest(estimate.remaining_outputs, VirtualCounters.OUTPUT_WEIGHT),
    "lpm": lambda estimate: LongestPrefix(),
    "preemptive": lambda estimate: LongestWaiting(),
}
ADMISSION: Mapping[str, Callable[[], AdmissionPolicy]] = {
    "optimistic": Optimistic,
    "reserve-prompt": ReservePrompt,
    "reserve-full": ReserveFull,
}
CHUNKING: Mapping[str, Callable[[SchedulerConfig], ChunkingPolicy]] = {
    "shortest-first": lambda config: ShortestFirst(config.long_prefill_token_threshold),
}
PREEMPTION: Mapping[str, Callable[[], PreemptionPolicy]] = {"last-admitted": LastAdmitted, "cheapest": Cheapest}
EVICTION: Mapping[str, Callable[[], EvictionPolicy]] = {"lru": Lru}

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies that one scheduler decides by."""

    ordering: OrderingPolicy
    admission: AdmissionPolicy
    chunking: ChunkingPolicy
    preemption: PreemptionPolicy


def build_policies(config: SchedulerConfig, estimate: WorkEstimate | None = None) -> Policies:
    """Look up every policy that the configuration names.

    ``estimate`` is what orders by work or time decide by; if absent, one that has learnt nothing yet.

    Raises:
        ConfigurationError: no policy has that name; the message lists those there are.
    """
    estimate = estimate or WorkEstimate(LengthPredictor(), StepLatencyModel())
    chunking = _find(CHUNKING, config.chunking_policy, "--chunking-policy")(config)
    return Policies(
        ordering=_find(ORDERING, config.scheduling_policy, "--scheduling-policy")(estimate),
        admission=_find(ADMISSION, config.admission, "--admission")(),
        chunking=chunking if config.enable_chunked_prefill else WholePrompts(),
        preemption=_find(PREEMPTION, config.preemption_policy, "--preemption-policy")(),
    )


def build_eviction(name: str) -> EvictionPolicy:
    """Look up the eviction policy.

    Raises:
        ConfigurationError: no policy has that name; the message lists those there are.
    """
    return _find(EVICTION, name, "--eviction-policy")()


def _find(table: Mapping[str, P], name: str, flag: str) -> P:
    if name not in table:
        raise ConfigurationError(f"{flag} {name!r} is unknown; there are: {', '.join(sorted(table))}")
    return table[name]
