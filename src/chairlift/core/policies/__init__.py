"""Policies by name: ordering, admission, chunking, eviction, preemption. Values, not mechanisms.

Knows nothing of the scheduler that asks them; each one sees read-only views and returns a decision.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from chairlift.config.resolved import SchedulerConfig
from chairlift.core.policies.admission import AdmissionPolicy, ReservePrompt
from chairlift.core.policies.chunking import ChunkingPolicy, ShortestFirst, WholePrompts
from chairlift.core.policies.eviction import EvictionPolicy, Lru
from chairlift.core.policies.ordering import Fcfs, OrderingPolicy
from chairlift.core.policies.preemption import LastAdmitted, PreemptionPolicy
from chairlift.errors import ConfigurationError

ORDERING: Mapping[str, Callable[[SchedulerConfig], OrderingPolicy]] = {"fcfs": lambda config: Fcfs()}
ADMISSION: Mapping[str, Callable[[SchedulerConfig], AdmissionPolicy]] = {
    "reserve-prompt": lambda config: ReservePrompt()
}
CHUNKING: Mapping[str, Callable[[SchedulerConfig], ChunkingPolicy]] = {
    "shortest-first": lambda config: ShortestFirst(config.long_prefill_token_threshold),
}
PREEMPTION: Mapping[str, Callable[[SchedulerConfig], PreemptionPolicy]] = {
    "last-admitted": lambda config: LastAdmitted(),
}
EVICTION: Mapping[str, Callable[[], EvictionPolicy]] = {"lru": Lru}

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies that one scheduler decides by."""

    ordering: OrderingPolicy
    admission: AdmissionPolicy
    chunking: ChunkingPolicy
    preemption: PreemptionPolicy


def build_policies(config: SchedulerConfig) -> Policies:
    """Look up every policy that the configuration names.

    Raises:
        ConfigurationError: no policy has that name; the message lists those there are.
    """
    chunking = _find(CHUNKING, config.chunking_policy, "--chunking-policy")(config)
    return Policies(
        ordering=_find(ORDERING, config.scheduling_policy, "--scheduling-policy")(config),
        admission=_find(ADMISSION, config.admission, "--admission")(config),
        chunking=chunking if config.enable_chunked_prefill else WholePrompts(),
        preemption=_find(PREEMPTION, config.preemption_policy, "--preemption-policy")(config),
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
