"""What is sent: calls with the bodies of their requests, made from a workload's lengths or from prompts that are given.

Knows nothing of connections. A body that does not depend on answers is made before it is due.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Protocol

from chairlift.benchmark.wire import Message, Prompt, Wire
from chairlift.workload.items import WorkRequest
from chairlift.workload.streams import Stream, Workload

_READ_AHEAD_BYTES = 64 * 2**20
_READ_AHEAD_CALLS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request. It has a ``body``, or it is a ``turn`` of a conversation, whose body the answers before complete."""

    stream: int
    arrival_ns: int
    tier: int
    tenant: str
    max_tokens: int | None
    body: bytes | None = None
    turn: str = ""
    history: Sequence[Message] = ()
    """Messages before the first turn."""
    follow_up: "Call | None" = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """A prompt, or a conversation whose turns each wait for the answer to the one before."""

    turns: tuple[Prompt, ...]
    history: tuple[Message, ...] = ()
    max_tokens: int | None = None
    """Instead of the workload's."""


class PromptMaker(Protocol):
    """Gives each request of a workload what it asks."""

    def exchange(self, request: WorkRequest, number: int) -> Exchange:
        """Return what request ``number`` asks; follow-ups of the request are asked for on their own."""
        ...


@dataclass(frozen=True, slots=True)
class GivenPrompts:
    """Prompts that somebody wrote, in turn; ``prefix`` goes before the first text of each."""

    exchanges: Sequence[Exchange]
    prefix: str = ""

    def exchange(self, request: WorkRequest, number: int) -> Exchange:
        """Return the next one; after the last comes the first."""
        del request
        given = self.exchanges[number % len(self.exchanges)]
        first = given.turns[0]
        if not self.prefix or not isinstance(first, str):
            return given
        return replace(given, turns=(self.prefix + first, *given.turns[1:]))


@dataclass(frozen=True, slots=True)
class Load:
    """A workload in which every request knows what it asks.

    Args:
        workload: lengths, arrivals, tiers and tenants.
        maker: what is asked.
        wire: how the server wants to be asked.
        tenants: whose requests these are, in turn, where the streams do not say.
        keyed: tenants that are told by their API keys; others are named in the request.
    """

    workload: Workload
    maker: PromptMaker
    wire: Wire
    tenants: Sequence[str] = ()
    keyed: frozenset[str] = frozenset()
    _numbers: "count[int]" = field(default_factory=count, init=False, repr=False)

    @property
    def streams(self) -> Sequence[Stream]:
        """The workload's streams, by their place."""
        return self.workload.streams

    def arrivals(self) -> Iterator[Call]:
        """Calls that come by the clock, in the order of arrival."""
        return _read_ahead(map(self._call, self.workload.arrivals()))

    def closed_loops(self) -> Mapping[int, Iterator[Call]]:
        """Calls of the streams that keep a number of requests alive, by the stream's place."""
        return {place: _read_ahead(map(self._call, drawn)) for place, drawn in self.workload.closed_loops().items()}

    def body_of(self, call: Call, messages: Sequence[Message]) -> bytes:
        """Return the body of a call, whose conversation consists of ``messages`` by now."""
        return self._body(messages, call) if call.body is None else call.body

    def _call(self, request: WorkRequest) -> Call:
        number = next(self._numbers)
        stream = self.streams[request.stream]
        tenant = request.tenant or stream.tenant or (self.tenants[number % len(self.tenants)] if self.tenants else "")
        tier = stream.tier if request.tier is None else request.tier
        requests: list[WorkRequest] = []
        following: WorkRequest | None = request
        while following is not None:
            requests.append(following)
            following = following.follow_up
        call: Call | None = None
        for asked in reversed(requests):
            exchange = self.maker.exchange(asked, number)
            common = Call(
                stream=request.stream,
                arrival_ns=request.arrival_ns,
                tier=tier,
                tenant=tenant,
                max_tokens=exchange.max_tokens or asked.num_output_tokens,
            )
            call = self._linked(exchange, common, call)
        assert call is not None  # noqa: S101 - there is a request
        return call

    def _linked(self, exchange: Exchange, common: Call, after: Call | None) -> Call:
        """Return the first call of an exchange, whose last one ``after`` follows."""
        if len(exchange.turns) == 1:
            prompt = exchange.turns[0]
            asked: Prompt | Sequence[Message] = prompt
            if exchange.history and isinstance(prompt, str):
                asked = [*exchange.history, {"role": "user", "content": prompt}]
            return replace(common, body=self._body(asked, common), follow_up=after)
        call = after
        for place, turn in reversed(list(enumerate(exchange.turns))):
            history = exchange.history if place == 0 else ()
            call = replace(common, turn=str(turn), history=history, follow_up=call)
        assert call is not None  # noqa: S101 - an exchange has turns
        return call

    def _body(self, asked: "Prompt | Sequence[Message]", call: Call) -> bytes:
        user = None if call.tenant in self.keyed else call.tenant
        return self.wire.body(asked, call.max_tokens, tier=call.tier, user=user)


def _read_ahead(calls: Iterator[Call]) -> Iterator[Call]:
    """Make calls before the first one is sent, as many as is reasonable, so that making them delays nothing."""
    ready: list[Call] = []
    size = 0
    for call in calls:
        ready.append(call)
        following: Call | None = call
        while following is not None:
            size += len(following.body or b"")
            following = following.follow_up
        if size >= _READ_AHEAD_BYTES or len(ready) >= _READ_AHEAD_CALLS:
            break
    return chain(ready, calls)
