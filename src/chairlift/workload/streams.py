"""Workloads: streams of requests, each with a source of lengths, arrivals, a tier, a tenant and an objective.

Knows nothing of files; :mod:`~.workload_file` reads those. Everything random comes from one seed.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice, takewhile
from pathlib import Path
from random import Random

from chairlift.config.quoting import quoted
from chairlift.config.resolved import TenantConfig, TenantTable
from chairlift.errors import ConfigurationError
from chairlift.workload.arrivals import NS_PER_S, RampPoint, all_at_once, ramp, renewals
from chairlift.workload.distributions import Fixed, Lengths
from chairlift.workload.items import MAX_OUTPUT_TOKENS, WorkRequest
from chairlift.workload.slo import Slo
from chairlift.workload.traces import open_trace
from chairlift.workload.traces.reading import Lap, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Requests of one kind. Lengths come from ``trace``, from ``output_lengths`` in turn, or from distributions.

    Requests arrive, by the first of these that is given: ``concurrency`` at a time, each ending one replaced by the
    next; along the ``ramp``; with gaps of ``burstiness_cv`` (1 is Poisson) at ``rate_per_s``; as the trace says,
    stretched to ``rate_per_s``; at ``rate_per_s`` as a Poisson process; all at the start.
    """

    name: str
    trace: Path | None = None
    output_lengths: tuple[int, ...] = ()
    prompt_tokens: Lengths = field(default_factory=lambda: Fixed(1))
    output_tokens: Lengths | None = None
    concurrency: int | None = None
    ramp: tuple[RampPoint, ...] = ()
    burstiness_cv: float | None = None
    rate_per_s: float | None = None
    start_s: float = 0.0
    """Where in the trace to begin."""
    duration_s: float | None = None
    """No request arrives later than this."""
    num_requests: int | None = None
    """Requests in all; a trace that has fewer is read again. One pass over trace or lengths if absent."""
    tier: int = 0
    tenant: str = ""
    weight: float | None = None
    """The tenant's weight, where tenants take turns; streams of one tenant must not name different ones."""
    max_kv_pages: int | None = None
    """KV pages that the tenant's running requests may hold together."""
    slo: Slo | None = None
    ttft_deadline_ms: float | None = None
    deadline_ms: float | None = None
    think_s: float = 0.0
    """Between the end of one call of a conversation and the next one, or of one request and its replacement."""

    def __post_init__(self) -> None:
        sources = (self.trace is not None) + bool(self.output_lengths) + (self.output_tokens is not None)
        if sources != 1:
            raise ConfigurationError(
                f"stream {self.name!r} needs exactly one of trace, output_lengths and output_tokens, and has {sources}"
            )
        if self.output_tokens is not None and self.num_requests is None and self.duration_s is None:
            raise ConfigurationError(f"stream {self.name!r} has no end; give it num_requests or duration_s")
        if self.concurrency is not None and (self.concurrency < 1 or self.ramp or self.rate_per_s is not None):
            raise ConfigurationError(
                f"stream {self.name!r} needs a concurrency of at least 1, and takes neither rate nor ramp beside it"
            )
        if min(self.output_lengths, default=1) < 1:
            raise ConfigurationError(f"stream {self.name!r} has an output length below 1: {min(self.output_lengths)}")
        if max(self.output_lengths, default=1) > MAX_OUTPUT_TOKENS:
            raise ConfigurationError(
                f"stream {self.name!r} has an output length of {quoted(max(self.output_lengths))} tokens, and one "
                f"request may have {MAX_OUTPUT_TOKENS}"
            )
        if self.rate_per_s is not None and self.rate_per_s <= 0:
            raise ConfigurationError(f"stream {self.name!r} needs a positive rate, got {self.rate_per_s}")
        if self.is_endless and self.num_requests is None:
            raise ConfigurationError(
                f"stream {self.name!r} would never end: duration_s ends only streams whose requests arrive over time"
            )

    @property
    def is_endless(self) -> bool:
        """Whether only a number of requests can end it."""
        has_clock = bool(self.ramp) or self.rate_per_s is not None or self.trace is not None
        return self.output_tokens is not None and not has_clock

    def requests(self, rng: Random, index: int) -> Iterator[WorkRequest]:
        """Draw the requests in the order of arrival, marked as those of stream ``index``.

        Raises:
            ConfigurationError: the trace cannot be read.
        """
        drawn = (request._replace(stream=index) for request in self._timed(rng))
        if self.duration_s is not None:
            end_ns = int(self.duration_s * NS_PER_S)
            drawn = takewhile(lambda request: request.arrival_ns <= end_ns, drawn)
        return drawn if self.num_requests is None else islice(drawn, self.num_requests)

    def _timed(self, rng: Random) -> Iterator[WorkRequest]:
        trace = None if self.trace is None else open_trace(self.trace)
        own = self._own_arrivals(Random(rng.random()), trace)
        source = Random(rng.random())
        requests = self._made(source) if trace is None else self._laps(trace, source)
        if own is None:
            yield from requests
            return
        for request, arrival_ns in zip(requests, own, strict=False):
            yield request._replace(arrival_ns=arrival_ns)

    def _own_arrivals(self, rng: Random, trace: Trace | None) -> Iterator[int] | None:
        """Arrival times that replace those of the trace; ``None`` if its own are to stay."""
        if self.concurrency is not None:
            return all_at_once()
        if self.ramp:
            return ramp(self.ramp, rng)
        if self.burstiness_cv is not None:
            if self.rate_per_s is None:
                raise ConfigurationError(f"stream {self.name!r} has burstiness_cv and needs rate_per_s with it")
            return renewals(self.rate_per_s, rng, burstiness_cv=self.burstiness_cv)
        if trace is not None and trace.has_arrivals:
            return None
        return all_at_once() if self.rate_per_s is None else renewals(self.rate_per_s, rng)

    def _made(self, rng: Random) -> Iterator[WorkRequest]:
        if self.output_tokens is not None:
            while True:
                yield WorkRequest(0, self.prompt_tokens.draw(rng), self.output_tokens.draw(rng))
        for _ in count() if self.num_requests is not None else range(1):
            for num_tokens in self.output_lengths:
                yield WorkRequest(0, self.prompt_tokens.draw(rng), num_tokens)

    def _laps(self, trace: Trace, rng: Random) -> Iterator[WorkRequest]:
        """Read the trace as often as the number of requests asks for, one pass behind the other."""
        offset_ns = 0
        for number in count():
            last_ns = num_read = 0
            for request in trace.requests(Lap(rng, self.rate_per_s, self.start_s, number)):
                last_ns, num_read = request.arrival_ns, num_read + 1
                yield request if offset_ns == 0 else request._replace(arrival_ns=request.arrival_ns + offset_ns)
            if num_read == 0:
                after = f" after {self.start_s:g} s" if self.start_s else ""
                raise ConfigurationError(f"trace {self.trace} has no request{after}")
            if self.num_requests is None:
                return
            offset_ns += last_ns + last_ns // num_read


@dataclass(frozen=True, slots=True)
class Workload:
    """Streams that run together. The same seed draws the same requests, whatever else is compared."""

    streams: tuple[Stream, ...]
    seed: int = 0
    has_tiers: bool = True
    """Whether tiers count, those of streams and those that a trace has itself."""

    def __post_init__(self) -> None:
        names = [stream.name for stream in self.streams]
        if not names or len(set(names)) != len(names):
            raise ConfigurationError(f"a workload needs streams with names of their own, got {names}")

    def without_tiers(self) -> "Workload":
        """Return the same workload with all requests in one tier."""
        return replace(self, streams=tuple(replace(stream, tier=0) for stream in self.streams), has_tiers=False)

    def tenants(self) -> TenantTable:
        """What the streams say about their tenants.

        Raises:
            ConfigurationError: two streams say different things about one.
        """
        by_name: dict[str, TenantConfig] = {}
        for stream in self.streams:
            if stream.weight is None and stream.max_kv_pages is None:
                continue
            weight = 1.0 if stream.weight is None else stream.weight
            tenant = TenantConfig(weight=weight, max_kv_pages=stream.max_kv_pages)
            if by_name.setdefault(stream.tenant, tenant) != tenant:
                raise ConfigurationError(f"streams say different things about tenant {stream.tenant!r}")
        return TenantTable(by_name=by_name)

    def arrivals(self) -> Iterator[WorkRequest]:
        """Requests of all streams that arrive by the clock, in the order of arrival."""
        drawn = [self._draw(i) for i, stream in enumerate(self.streams) if stream.concurrency is None]
        return chain.from_iterable(drawn) if len(drawn) < 2 else heapq.merge(*drawn, key=lambda item: item.arrival_ns)

    def closed_loops(self) -> dict[int, Iterator[WorkRequest]]:
        """Requests of the streams that keep a number of requests alive, by the stream's place."""
        return {i: self._draw(i) for i, stream in enumerate(self.streams) if stream.concurrency is not None}

    def _draw(self, index: int) -> Iterator[WorkRequest]:
        return self.streams[index].requests(Random(f"{self.seed}/{index}"), index)
