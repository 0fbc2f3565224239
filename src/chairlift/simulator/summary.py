"""What a simulation came to: throughput, latencies, fairness and waste, as a whole and for each stream.

Knows nothing of how it is shown.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from chairlift.report.statistics import Distribution, curve, curve_weighted, describe, describe_weighted, jain_index
from chairlift.simulator.recorder import StreamRecord
from chairlift.simulator.series import SeriesPoint
from chairlift.simulator.setup import SimulatedEngine
from chairlift.simulator.simulation import Finished
from chairlift.workload.streams import Stream, Workload

_NS_PER_S = 1e9
_MS_PER_NS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Milliseconds; ``None`` where nothing finished."""

    ttft_ms: Distribution | None
    itl_ms: Distribution | None
    tpot_ms: Distribution | None
    e2e_ms: Distribution | None
    queue_ms: Distribution | None

    def to_json(self) -> dict[str, object]:
        """Return the distributions by name."""
        named = {name: getattr(self, name) for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "queue_ms")}
        return {name: None if value is None else value.to_json() for name, value in named.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSummary:
    """One stream of the workload, or all of them together."""

    name: str
    tier: int | None
    tenant: str | None
    num_arrived: int
    num_finished: int
    num_refused: int
    first_refusals: tuple[str, ...]
    """Why the first of them were, each reason once."""
    ends: dict[str, int]
    """Requests that ended otherwise, by reason."""
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    output_tokens_per_s: float
    requests_per_s: float
    num_preemptions: int
    num_recomputed_tokens: int
    latencies: Latencies
    slo_attainment: float | None
    """Part of the arrived requests that met the stream's objective; ``None`` if it has none."""
    goodput_per_s: float | None
    """Requests per second that met it."""
    ttft_curve_ms: tuple[float, ...]
    """Quantiles at :data:`~chairlift.report.statistics.CURVE_CHANCES`, for plots; not in the JSON."""
    itl_curve_ms: tuple[float, ...]

    def to_json(self) -> dict[str, object]:
        """Return everything by name."""
        return {
            "name": self.name,
            "tier": self.tier,
            "tenant": self.tenant,
            "num_arrived": self.num_arrived,
            "num_finished": self.num_finished,
            "num_refused": self.num_refused,
            "first_refusals": list(self.first_refusals),
            "ends": self.ends,
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_cached_tokens": self.num_cached_tokens,
            "num_output_tokens": self.num_output_tokens,
            "output_tokens_per_s": round(self.output_tokens_per_s, 3),
            "requests_per_s": round(self.requests_per_s, 4),
            "num_preemptions": self.num_preemptions,
            "num_recomputed_tokens": self.num_recomputed_tokens,
            **self.latencies.to_json(),
            "slo_attainment": self.slo_attainment,
            "goodput_per_s": self.goodput_per_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One simulation. ``simulated_s`` is when the last request ended, ``wall_s`` how long it took to find out."""

    label: str
    machine: str
    max_num_seqs: int
    max_num_batched_tokens: int
    num_pages: int
    page_size: int
    simulated_s: float
    wall_s: float
    num_steps: int
    num_jumped_steps: int
    slot_utilization: float
    """Slots that did something for a request that still lived, of all slots of all steps."""
    busy: float
    """Part of the time in which a step ran."""
    mean_batch: float
    """Decodes and chunks per step."""
    num_prefill_tokens: int
    num_padding_tokens: int
    num_swapped_pages: int
    jain_index: float | None
    """Of the tokens of the tenants, in steps while requests of every stream waited; ``None`` if there were none."""
    contended_tokens: dict[str, int]
    """Those tokens, by tenant."""
    total: StreamSummary
    streams: tuple[StreamSummary, ...]
    series: tuple[SeriesPoint, ...]

    def to_json(self) -> dict[str, object]:
        """Return everything but the series, by name; ``total`` stands at the top."""
        total = self.total.to_json()
        for name in ("name", "tier", "tenant"):
            del total[name]
        return {
            "label": self.label,
            "machine": self.machine,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "num_pages": self.num_pages,
            "page_size": self.page_size,
            "simulated_s": self.simulated_s,
            "wall_s": round(self.wall_s, 3),
            "num_steps": self.num_steps,
            "num_jumped_steps": self.num_jumped_steps,
            "slot_utilization": self.slot_utilization,
            "busy": round(self.busy, 4),
            "mean_batch": round(self.mean_batch, 3),
            "num_prefill_tokens": self.num_prefill_tokens,
            "num_padding_tokens": self.num_padding_tokens,
            "num_swapped_pages": self.num_swapped_pages,
            "jain_index": self.jain_index,
            "contended_tokens": self.contended_tokens,
            **total,
            "streams": [stream.to_json() for stream in self.streams],
        }


def summarize(
    finished: Finished, engine: SimulatedEngine, workload: Workload, *, label: str, wall_s: float
) -> RunSummary:
    """Put a finished simulation into numbers."""
    recorder = finished.recorder
    seconds = max(finished.end_ns / _NS_PER_S, 1e-9)
    slots, steps = engine.scheduler.max_num_seqs, max(recorder.num_steps, 1)
    streams = tuple(
        _summarize_stream(stream, [record], [stream], seconds)
        for stream, record in zip(workload.streams, recorder.streams, strict=True)
    )
    contended: dict[str, int] = defaultdict(int)
    for stream, record in zip(workload.streams, recorder.streams, strict=True):
        contended[stream.tenant] += record.num_contended_tokens
    shares = [tokens / engine.scheduler.tenant(name).weight for name, tokens in contended.items()]
    return RunSummary(
        label=label,
        machine=engine.latency.facts.name,
        max_num_seqs=slots,
        max_num_batched_tokens=engine.scheduler.max_num_batched_tokens,
        num_pages=engine.cache.num_pages,
        page_size=engine.cache.page_size,
        simulated_s=finished.end_ns / _NS_PER_S,
        wall_s=wall_s,
        num_steps=recorder.num_steps,
        num_jumped_steps=finished.num_jumped_steps,
        slot_utilization=recorder.num_useful_slots / (slots * steps),
        busy=recorder.busy_ns / max(finished.end_ns, 1),
        mean_batch=recorder.num_useful_slots / steps,
        num_prefill_tokens=recorder.num_prefill_tokens,
        num_padding_tokens=recorder.num_padding_tokens,
        num_swapped_pages=recorder.num_swapped_pages,
        jain_index=jain_index(shares) if len(shares) > 1 else None,
        contended_tokens=dict(contended),
        total=_summarize_stream(None, recorder.streams, workload.streams, seconds),
        streams=streams,
        series=tuple(recorder.series.points()),
    )


def _summarize_stream(
    stream: Stream | None, records: Sequence[StreamRecord], streams: Sequence[Stream], seconds: float
) -> StreamSummary:
    num_good, num_judged = 0, 0
    for record, source in zip(records, streams, strict=True):
        if source.slo is not None:
            num_judged += record.num_arrived
            pairs = zip(record.ttft_ns, record.tpot_ns, strict=True)
            num_good += sum(source.slo.is_met(ttft, None if tpot < 0 else tpot) for ttft, tpot in pairs)
    ends: dict[str, int] = {}
    for record in records:
        for reason, number in record.ends.items():
            ends[reason] = ends.get(reason, 0) + number

    def total(name: str) -> int:
        return sum(getattr(record, name) for record in records)

    return StreamSummary(
        name="all" if stream is None else stream.name,
        tier=None if stream is None else stream.tier,
        tenant=None if stream is None else stream.tenant,
        num_arrived=total("num_arrived"),
        num_finished=total("num_finished"),
        num_refused=total("num_refused"),
        first_refusals=tuple(dict.fromkeys(reason for record in records for reason in record.first_refusals)),
        ends=ends,
        num_prompt_tokens=total("num_prompt_tokens"),
        num_cached_tokens=total("num_cached_tokens"),
        num_output_tokens=total("num_output_tokens"),
        output_tokens_per_s=total("num_output_tokens") / seconds,
        requests_per_s=total("num_finished") / seconds,
        num_preemptions=total("num_preemptions"),
        num_recomputed_tokens=total("num_recomputed_tokens"),
        latencies=_latencies(records),
        slo_attainment=num_good / num_judged if num_judged else None,
        goodput_per_s=num_good / seconds if num_judged else None,
        ttft_curve_ms=curve(_joined(record.ttft_ns for record in records), _MS_PER_NS),
        itl_curve_ms=curve_weighted(*_gaps(records), _MS_PER_NS),
    )


def _latencies(records: Sequence[StreamRecord]) -> Latencies:
    gaps, counts = _gaps(records)
    return Latencies(
        ttft_ms=describe(_joined(record.ttft_ns for record in records), _MS_PER_NS),
        itl_ms=describe_weighted(gaps, counts, _MS_PER_NS),
        tpot_ms=describe((value for record in records for value in record.tpot_ns if value >= 0), _MS_PER_NS),
        e2e_ms=describe(_joined(record.e2e_ns for record in records), _MS_PER_NS),
        queue_ms=describe(_joined(record.queue_ns for record in records), _MS_PER_NS),
    )


def _gaps(records: Sequence[StreamRecord]) -> "tuple[array[int], array[int]]":
    gaps, counts = array("q"), array("q")
    for record in records:
        gaps.extend(record.gap_ns)
        counts.extend(record.gap_counts)
    return gaps, counts


def _joined(arrays: Iterable[Iterable[int]]) -> Iterable[int]:
    return chain.from_iterable(arrays)
