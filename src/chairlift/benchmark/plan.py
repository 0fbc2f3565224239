"""What a benchmark is to send, as it stands before the server has been asked how it wants to be asked.

Knows nothing of command lines and connections.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from chairlift.benchmark.calls import Exchange, GivenPrompts, Load, PromptMaker
from chairlift.benchmark.datasets import make_conversations
from chairlift.benchmark.probe import Dialect
from chairlift.benchmark.prompts import MadePrompts, SharedPrefixes
from chairlift.benchmark.runner import Limits
from chairlift.errors import ConfigurationError
from chairlift.workload.arrivals import RampPoint
from chairlift.workload.streams import Stream, Workload

_CURVE_POINTS = 32
_WARMUP_CONCURRENCY = 8
_WARMUP_SALT = 777
_MAX_SALTS = 1000


@dataclass(frozen=True, slots=True)
class ConversationShape:
    """Conversations of random words: how many, of how many turns, and how long each turn of the user is."""

    count: int
    num_turns: int
    num_turn_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """A load without its prompts, and what these are made of: ``exchanges``, ``conversations``, else random content.

    Args:
        workload: lengths, arrivals, tiers and tenants.
        limits: bounds of each run.
        exchanges: prompts that are given.
        prefix: text before each of them.
        conversations: conversations to make.
        prefixes: what random prompts share.
        tenants: in whose names requests are sent, in turn, where streams do not say.
        sends_tiers: whether to send tiers even if all streams are in the usual one.
        salt: random content of another salt is other content, whatever the workload's seed.
    """

    workload: Workload
    limits: Limits = field(default_factory=Limits)
    exchanges: Sequence[Exchange] = ()
    prefix: str = ""
    conversations: ConversationShape | None = None
    prefixes: SharedPrefixes | None = None
    tenants: Sequence[str] = ()
    sends_tiers: bool = False
    salt: int = 0

    @property
    def has_tiers(self) -> bool:
        """Whether requests name their tiers: if any stream is in another than the usual one."""
        return self.sends_tiers or any(stream.tier != 0 for stream in self.workload.streams)

    @property
    def has_ids(self) -> bool:
        """Whether a prompt that is given is one of token ids, which no chat can ask."""
        return any(not isinstance(turn, str) for exchange in self.exchanges for turn in exchange.turns)

    @property
    def num_requests(self) -> int | None:
        """How many requests a run sends, follow-ups not counted; ``None`` if only a trace or the time says."""
        counts = [stream.num_requests for stream in self.workload.streams]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) and self.limits.duration_s is None else None

    def describe(self) -> str:
        """How much a run sends, and when, in one line."""
        kind = "requests" if self.conversations is None else "conversations"
        much = kind if self.num_requests is None else f"{self.num_requests} {kind}"
        if self.limits.duration_s is not None:
            much += f" for {self.limits.duration_s:g} s"
        paces = [_pace(stream) for stream in self.workload.streams]
        if len(paces) > 1:
            paces = [f"{stream.name}: {pace}" for stream, pace in zip(self.workload.streams, paces, strict=True)]
        if self.limits.max_concurrency is not None:
            paces.append(f"{self.limits.max_concurrency} on their way at most")
        return ", ".join((much, *paces))

    def load(self, dialect: Dialect, *, run: int, keyed: frozenset[str] = frozenset()) -> Load:
        """Return the load of a run: the same lengths and arrivals each time, and random content of its own.

        Prompts that are given are the same in every run.
        """
        maker = self._maker(dialect, self.salt + self.workload.seed * _MAX_SALTS + run)
        return Load(workload=self.workload, maker=maker, wire=dialect.wire, tenants=self.tenants, keyed=keyed)

    def warmup(self, dialect: Dialect, count: int, *, keyed: frozenset[str] = frozenset()) -> Load:
        """Return some requests like those of the first stream, a few at a time."""
        stream = _at_once(self.workload.streams[0], count)
        workload = replace(self.workload, streams=(stream,))
        return replace(self, workload=workload).load(dialect, run=_WARMUP_SALT, keyed=keyed)

    def _maker(self, dialect: Dialect, salt: int) -> PromptMaker:
        if self.exchanges:
            return GivenPrompts(self.exchanges, self.prefix)
        shape = self.conversations
        if shape is not None:
            rng = Random(salt)
            turns = make_conversations(shape.count, shape.num_turns, shape.num_turn_tokens, dialect.scale, rng)
            return GivenPrompts(turns)
        return MadePrompts(vocab_size=dialect.vocab_size, scale=dialect.scale, prefixes=self.prefixes, salt=salt)


def _pace(stream: Stream) -> str:
    if stream.concurrency is not None and stream.concurrency != stream.num_requests:
        return f"{stream.concurrency} at a time"
    if stream.ramp:
        return f"{stream.ramp[0].rate_per_s:g} to {stream.ramp[-1].rate_per_s:g} per second"
    if stream.rate_per_s is not None:
        return f"{stream.rate_per_s:g} per second"
    return "when the trace says" if stream.trace is not None and stream.concurrency is None else "all at once"


def _at_once(stream: Stream, count: int) -> Stream:
    return replace(
        stream,
        num_requests=count,
        concurrency=min(count, _WARMUP_CONCURRENCY),
        ramp=(),
        rate_per_s=None,
        burstiness_cv=None,
        duration_s=None,
        think_s=0.0,
    )


def ramp_up(strategy: str, start_per_s: float, end_per_s: float, num_requests: int) -> tuple[RampPoint, ...]:
    """Return the points of a ramp on which so many requests are expected.

    A linear ramp of N requests from rate a to b lasts 2 N / (a + b) seconds; an exponential one, whose rate grows by
    the same factor each second, N ln(b / a) / (b - a).

    Raises:
        ConfigurationError: a rate is impossible.
    """
    least = 0.0 if strategy == "linear" else math.ulp(0.0)
    if not (least <= start_per_s < math.inf and 0 < end_per_s < math.inf):
        raise ConfigurationError(
            f"a {strategy} ramp needs rates above 0, got --ramp-up-start-rps {start_per_s:g} and "
            f"--ramp-up-end-rps {end_per_s:g}"
        )
    if start_per_s == end_per_s:
        return (RampPoint(0.0, start_per_s),)
    if strategy == "linear":
        return RampPoint(0.0, start_per_s), RampPoint(2 * num_requests / (start_per_s + end_per_s), end_per_s)
    growth = math.log(end_per_s / start_per_s)
    seconds = num_requests * growth / (end_per_s - start_per_s)
    parts = [place / _CURVE_POINTS for place in range(_CURVE_POINTS + 1)]
    return tuple(RampPoint(seconds * part, start_per_s * math.exp(growth * part)) for part in parts)
