"""A benchmark from the first question to the last answer: finds out how a server is spoken to, warms it up, measures.

Knows nothing of what is made of the records.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from chairlift.benchmark.client import Client
from chairlift.benchmark.clock import Clock
from chairlift.benchmark.connections import Connections
from chairlift.benchmark.plan import LoadPlan
from chairlift.benchmark.probe import Dialect, Probe, find_model
from chairlift.benchmark.runner import FinishedRun, LoadRunner, Observer
from chairlift.benchmark.wire import UsageStyle, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server, and how it is asked.

    Args:
        base_url: its address, which may end in ``/v1``.
        is_chat: whether to use the chat endpoint.
        model: the model's name; the server's first one if absent.
        path: the endpoint's path, if it is an unusual one.
        keys: API keys by tenant; that of ``""`` is for all others.
        prompts: ``auto``, ``ids`` or ``text``.
        vocab_size: token ids are below this; found out if absent.
        usage: what to ask for about tokens; less is taken if the server refuses.
        timeout_s: the longest pause of an answer.
        fields: further arguments of :class:`~.wire.Wire`.
    """

    base_url: str
    is_chat: bool
    model: str | None = None
    path: str | None = None
    keys: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    prompts: str = "auto"
    vocab_size: int | None = None
    usage: UsageStyle = UsageStyle.EACH_CHUNK
    timeout_s: float = 600.0
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def keyed(self) -> frozenset[str]:
        """Tenants that their keys name."""
        return frozenset(name for name in self.keys if name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """How often to measure, and how many requests go before."""

    num_runs: int = 1
    num_warmups: int = 0


class Session:
    """Measures one load on one server.

    Args:
        target: the server.
        plan: the load.
        clock: what times are read from.
        watch: makes the observer of each run, given its number from 1.
        transport: what carries requests; the network if absent.
    """

    def __init__(
        self,
        target: Target,
        plan: LoadPlan,
        clock: Clock,
        *,
        watch: Callable[[int], Observer | None] = lambda _: None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._target = target
        self._plan = plan
        self._clock = clock
        self._watch = watch
        self._transport = transport
        self.is_measuring = False
        """Whether the first questions are answered: before that there is nothing to keep."""

    async def measure(self, rounds: Rounds, stop: asyncio.Event) -> tuple[Dialect, list[FinishedRun]]:
        """Do everything; ``stop`` ends the run that is on, and there is no other after it.

        Raises:
            ChairliftError: the server does not answer the first questions.
        """
        target = self._target
        async with Connections(target.base_url, timeout_s=target.timeout_s, transport=self._transport) as http:
            dialect = await self._find_dialect(http)
            self.is_measuring = True
            client = Client(http, dialect.wire, self._clock, target.keys)
            if rounds.num_warmups:
                warmup = self._plan.warmup(dialect, rounds.num_warmups, keyed=target.keyed)
                await LoadRunner(warmup, client, self._clock).run(stop)
            runs: list[FinishedRun] = []
            for number in range(1, rounds.num_runs + 1):
                if stop.is_set():
                    break
                load = self._plan.load(dialect, run=number, keyed=target.keyed)
                runner = LoadRunner(load, client, self._clock, limits=self._plan.limits, observer=self._watch(number))
                runs.append(await runner.run(stop))
        return dialect, runs

    async def _find_dialect(self, http: Connections) -> Dialect:
        target = self._target
        tenant = "" if "" in target.keys else next(iter(sorted(target.keyed)), "")
        key = target.keys.get(tenant)
        model = await find_model(http, target.model, key)
        wire = Wire(
            is_chat=target.is_chat,
            model=model,
            usage=target.usage,
            has_tiers=self._plan.has_tiers,
            path=target.path,
            **target.fields,
        )
        probe = Probe(http, self._clock, target.keys, tenant)
        return await probe.find_dialect(wire, prompts=target.prompts, vocab_size=target.vocab_size)
