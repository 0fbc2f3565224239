"""What a run came to: throughput, latencies, goodput, fairness and errors, as a whole, by stream and by tenant.

Knows nothing of how it is shown. ``docs/benchmarking.md`` has the definitions.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chairlift.benchmark.clock import NS_PER_S
from chairlift.benchmark.fairness import Shares, shares_of
from chairlift.benchmark.own_delay import OwnDelay
from chairlift.benchmark.records import INTERRUPTED, CallRecord, TokenCounts
from chairlift.benchmark.runner import FinishedRun
from chairlift.report.statistics import PERCENTS, Distribution, curve, curve_weighted, describe, describe_weighted
from chairlift.workload.slo import Slo
from chairlift.workload.streams import Stream

_MS_PER_NS = 1e-6

LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "pause_ms", "client_queue_ms")
"""Distributions of every group, in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """Requests that failed in one way, and what the first of them was told."""

    count: int
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """Some requests of a run: all, those of a stream, or those of a tenant. Times are in milliseconds."""

    name: str
    num_requests: int
    num_ok: int
    num_failed: int
    num_interrupted: int
    """Given up by the tool; neither good nor bad."""
    errors: Mapping[str, ErrorKind]
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    latencies: Mapping[str, Distribution | None]
    """By the names in :data:`LATENCIES`."""
    slo_attainment: float | None
    """Part of the requests that met their objective; failed ones did not. ``None`` if there is none."""
    goodput_per_s: float | None
    """Requests per second that met it."""
    curves: Mapping[str, tuple[float, ...]]
    """Quantiles at :data:`~chairlift.report.statistics.CURVE_CHANCES`, for plots."""

    def to_json(self) -> dict[str, object]:
        """Return everything but the curves, by name."""
        errors = {kind: {"count": error.count, "example": error.example} for kind, error in self.errors.items()}
        return {
            "name": self.name,
            "num_requests": self.num_requests,
            "num_ok": self.num_ok,
            "num_failed": self.num_failed,
            "num_interrupted": self.num_interrupted,
            "errors": errors,
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_cached_tokens": self.num_cached_tokens,
            "num_output_tokens": self.num_output_tokens,
            "requests_per_s": round(self.requests_per_s, 6),
            "output_tokens_per_s": round(self.output_tokens_per_s, 4),
            "total_tokens_per_s": round(self.total_tokens_per_s, 4),
            **{name: None if value is None else value.to_json() for name, value in self.latencies.items()},
            "slo_attainment": self.slo_attainment,
            "goodput_per_s": self.goodput_per_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRun:
    """One run. ``duration_s`` is from its start to the end of its last answer."""

    is_interrupted: bool
    duration_s: float
    total: GroupSummary
    streams: tuple[GroupSummary, ...]
    tenants: tuple[GroupSummary, ...]
    shares: Shares
    token_counts: Mapping[str, int]
    """Answers by how their tokens were counted."""
    num_short: int
    """Answers with fewer tokens than were asked for."""
    own: OwnDelay
    warnings: tuple[str, ...]
    start_ns: int
    records: Sequence[CallRecord]

    def to_json(self, *, detailed: bool = False) -> dict[str, object]:
        """Return everything by name; the total stands at the top. ``detailed`` adds each request."""
        total = self.total.to_json()
        del total["name"]
        record: dict[str, object] = {
            "is_interrupted": self.is_interrupted,
            "duration_s": round(self.duration_s, 6),
            **total,
            "jain_index": self.shares.jain_index,
            "contended_s": round(self.shares.contended_s, 6),
            "contended_tokens": dict(self.shares.tokens),
            "token_counts": dict(self.token_counts),
            "num_short": self.num_short,
            "own_delay": self.own.to_json(),
            "warnings": list(self.warnings),
            "streams": [stream.to_json() for stream in self.streams],
            "tenants": [tenant.to_json() for tenant in self.tenants],
        }
        if detailed:
            ordered = sorted(self.records, key=lambda one: one.number)
            record["requests"] = [request_json(one, self.start_ns) for one in ordered]
        return record


def summarize(run: FinishedRun, streams: Sequence[Stream], percents: tuple[float, ...] = PERCENTS) -> BenchRun:
    """Put a finished run into numbers."""
    seconds = max((run.end_ns - run.start_ns) / NS_PER_S, 1e-9)
    grouping = _Grouping([stream.slo for stream in streams], seconds, percents)
    by_stream: dict[int, list[CallRecord]] = defaultdict(list)
    by_tenant: dict[str, list[CallRecord]] = defaultdict(list)
    for record in run.records:
        by_stream[record.stream].append(record)
        by_tenant[record.tenant].append(record)
    total = grouping.summarize("all", run.records)
    answered = [record for record in run.records if record.is_ok]
    weights = {stream.tenant: stream.weight for stream in streams if stream.weight is not None}
    token_counts = Counter(record.tally.basis.value for record in answered)
    return BenchRun(
        is_interrupted=run.is_interrupted,
        duration_s=seconds,
        total=total,
        streams=tuple(grouping.summarize(stream.name, by_stream[place]) for place, stream in enumerate(streams)),
        tenants=tuple(grouping.summarize(name, mine) for name, mine in sorted(by_tenant.items())),
        shares=shares_of(run.records, weights),
        token_counts=token_counts,
        num_short=sum((record.num_wanted_tokens or 0) > record.tally.num_tokens for record in answered),
        own=run.own,
        warnings=tuple(_warnings(run, total, token_counts)),
        start_ns=run.start_ns,
        records=run.records,
    )


def _warnings(run: FinishedRun, total: GroupSummary, token_counts: Mapping[str, int]) -> list[str]:
    found = run.own.warnings(total.latencies["ttft_ms"], total.latencies["itl_ms"])
    estimated = token_counts.get(TokenCounts.ESTIMATED.value, 0)
    if estimated:
        found.append(f"tokens of {estimated} answers are estimated as one per chunk: the server sent no usage")
    return found


@dataclass(frozen=True, slots=True)
class _Grouping:
    slos: Sequence[Slo | None]
    seconds: float
    percents: tuple[float, ...]

    def summarize(self, name: str, records: Sequence[CallRecord]) -> GroupSummary:
        answered = [record for record in records if record.is_ok]
        num_interrupted = sum(record.error == INTERRUPTED for record in records)
        num_output = sum(record.tally.num_tokens for record in answered)
        num_prompt = sum(record.tally.num_prompt_tokens or 0 for record in answered)
        judged = [record for record in records if self.slos[record.stream] is not None and record.error != INTERRUPTED]
        num_good = sum(self._is_good(record) for record in judged)
        latencies, curves = self._latencies(answered)
        return GroupSummary(
            name=name,
            num_requests=len(records),
            num_ok=len(answered),
            num_failed=len(records) - len(answered) - num_interrupted,
            num_interrupted=num_interrupted,
            errors=_errors(records),
            num_prompt_tokens=num_prompt,
            num_cached_tokens=sum(record.tally.num_cached_tokens or 0 for record in answered),
            num_output_tokens=num_output,
            requests_per_s=len(answered) / self.seconds,
            output_tokens_per_s=num_output / self.seconds,
            total_tokens_per_s=(num_output + num_prompt) / self.seconds,
            latencies=latencies,
            slo_attainment=num_good / len(judged) if judged else None,
            goodput_per_s=num_good / self.seconds if judged else None,
            curves=curves,
        )

    def _is_good(self, record: CallRecord) -> bool:
        slo = self.slos[record.stream]
        return record.is_ok and slo is not None and slo.is_met(record.ttft_ns, record.tpot_ns, record.e2e_ns)

    def _latencies(
        self, answered: Sequence[CallRecord]
    ) -> tuple[dict[str, Distribution | None], dict[str, tuple[float, ...]]]:
        gaps: list[float] = []
        counts: list[int] = []
        for record in answered:
            own_gaps, own_counts = record.gaps_ns()
            gaps += own_gaps
            counts += own_counts
        plain: dict[str, list[float]] = {
            "ttft_ms": [record.ttft_ns for record in answered],
            "tpot_ms": [tpot for record in answered if (tpot := record.tpot_ns) is not None],
            "e2e_ms": [record.e2e_ns for record in answered],
            "pause_ms": [pause for record in answered for pause in record.pauses_ns()],
            "client_queue_ms": [record.ready_ns - record.due_ns for record in answered],
        }
        found = {name: describe(values, _MS_PER_NS, self.percents) for name, values in plain.items()}
        found["itl_ms"] = describe_weighted(gaps, counts, _MS_PER_NS, self.percents)
        curves = {name: curve(plain[name], _MS_PER_NS) for name in ("ttft_ms", "tpot_ms", "e2e_ms")}
        curves["itl_ms"] = curve_weighted(gaps, counts, _MS_PER_NS)
        return {name: found[name] for name in LATENCIES}, curves


def _errors(records: Sequence[CallRecord]) -> dict[str, ErrorKind]:
    examples: dict[str, str] = {}
    for record in records:
        if record.error is not None and record.error != INTERRUPTED:
            examples.setdefault(record.error, record.message)
    counts = Counter(record.error for record in records)
    return {kind: ErrorKind(counts[kind], example) for kind, example in sorted(examples.items())}


def request_json(record: CallRecord, start_ns: int) -> dict[str, object]:
    """Return one request; its moments are in seconds from the start of the run."""

    def moment(at_ns: int) -> float:
        return round((at_ns - start_ns) / NS_PER_S, 9)

    has_tokens = bool(record.tally.times_ns)
    return {
        "number": record.number,
        "stream": record.stream,
        "tier": record.tier,
        "tenant": record.tenant,
        "turn": record.turn,
        "due_s": moment(record.due_ns),
        "sent_s": moment(record.sent_ns) if record.sent_ns else None,
        "end_s": moment(record.end_ns) if record.sent_ns else None,
        "error": record.error,
        "message": record.message,
        "num_prompt_tokens": record.tally.num_prompt_tokens,
        "num_output_tokens": record.tally.num_tokens,
        "ttft_ms": round(record.ttft_ns * _MS_PER_NS, 4) if has_tokens else None,
        "chunk_s": [moment(at_ns) for at_ns in record.tally.times_ns],
        "chunk_tokens": list(record.tally.counts),
    }
