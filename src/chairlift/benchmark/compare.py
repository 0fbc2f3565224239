"""Compares results: ratios of medians, and whether they differ by more than runs of one and the same result do.

Knows nothing of tables.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, cast

from chairlift.benchmark.result import ReadResult

MORE, LESS = "more is better", "less is better"

QUANTITIES: Mapping[str, tuple[str, str]] = {
    "requests/s": ("requests_per_s", MORE),
    "output tok/s": ("output_tokens_per_s", MORE),
    "total tok/s": ("total_tokens_per_s", MORE),
    "goodput, requests/s": ("goodput_per_s", MORE),
    "SLO met": ("slo_attainment", MORE),
    "Jain index": ("jain_index", MORE),
    "failed": ("num_failed", LESS),
    **{
        f"{shown} {percent}, ms": (f"{name}.{percent}", LESS)
        for shown, name in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("ITL", "itl_ms"), ("E2E", "e2e_ms"))
        for percent in ("p50", "p90", "p95", "p99")
    },
}
"""Shown name -> where it is in a run, and which way is better."""

_NOT_THE_LOAD = frozenset({"num_runs", "num_warmups", "model", "endpoint", "api_key", "request_timeout"})
"""Settings that say how often and whom to ask, and not what."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A quantity over the runs of a result."""

    median: float
    least: float
    greatest: float


@dataclass(frozen=True, slots=True)
class Difference:
    """One quantity of two results. ``ratio`` is second over first; absent if the first is 0."""

    quantity: str
    first: Spread
    second: Spread
    ratio: float | None
    verdict: str
    """``better``, ``worse`` or ``within the spread``; empty if a result has one run, which says nothing of spreads."""


def compare(first: ReadResult, second: ReadResult) -> list[Difference]:
    """Compare two results in every quantity that both have."""
    return list(_differences(first.runs, second.runs))


def changed_settings(first: ReadResult, second: ReadResult) -> list[str]:
    """Name the settings of the load that differ: then it is not the same load that is compared."""
    names = sorted((first.settings.keys() | second.settings.keys()) - _NOT_THE_LOAD)
    return [
        f"{name}: {first.settings.get(name)} and {second.settings.get(name)}"
        for name in names
        if first.settings.get(name) != second.settings.get(name)
    ]


def _differences(first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]) -> Iterator[Difference]:
    for shown, (place, direction) in QUANTITIES.items():
        one, other = _spread(first, place), _spread(second, place)
        if one is None or other is None:
            continue
        ratio = other.median / one.median if one.median else None
        verdict = _verdict(one, other, direction) if len(first) > 1 and len(second) > 1 else ""
        yield Difference(shown, one, other, ratio, verdict)


def _spread(runs: Sequence[Mapping[str, Any]], place: str) -> Spread | None:
    values = [value for run in runs if (value := _value(run, place)) is not None]
    if len(values) < len(runs):
        return None
    return Spread(median(values), min(values), max(values))


def _value(run: Mapping[str, Any], place: str) -> float | None:
    found: Any = run
    for name in place.split("."):
        found = cast("dict[str, Any]", found).get(name) if isinstance(found, dict) else None
    return float(found) if isinstance(found, int | float) else None


def _verdict(first: Spread, second: Spread, direction: str) -> str:
    """Differences count if every run of one is beyond every run of the other."""
    if second.least <= first.greatest and first.least <= second.greatest:
        return "within the spread"
    is_more = second.least > first.greatest
    return "better" if is_more == (direction == MORE) else "worse"
