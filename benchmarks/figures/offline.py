"""Throughput without HTTP: W1 in each quantization, one stream, a long prompt, a shared prefix.

Knows nothing of servers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import click

from benchmarks.figures.figure import Figure, bounded
from benchmarks.peers.rounds import Contender, alternate, our_contender
from benchmarks.tasks import GSM8K_OUTPUT_TOKENS, PREFILL_TOKENS, MissingDataError, Requests, make_requests
from chairlift.cli.bench import offline

NUM_SLOTS = 64


@dataclass(frozen=True)
class Extent:
    """How much is measured.

    Args:
        num_runs: of everything; medians count.
        num_requests: of W1 and GSM8K.
        timeout_s: for one run.
        cache: folder of the model's other forms.
        traces: folder of public data.
    """

    num_runs: int
    num_requests: int
    timeout_s: float
    cache: Path
    traces: Path | None


def quantizations() -> list[str]:
    """Return the values of ``--quantization`` that differ from what is used if nobody says."""
    for option in offline.params:
        if option.name == "quantization" and isinstance(option.type, click.Choice):
            return [str(name) for name in option.type.choices if name not in ("auto", option.default)]
    return []


def throughput(extent: Extent) -> Iterator[Figure]:
    """W1 in the default configuration and in each other quantization, alternately; and twice as many requests."""
    requests = make_requests("w1", extent.num_requests)
    contenders = [our_contender("default", {}, extent.cache, NUM_SLOTS)]
    contenders += [our_contender(name, {"quantization": name}, extent.cache, NUM_SLOTS) for name in quantizations()]
    _run([(one, requests) for one in contenders], extent)
    for one in contenders:
        label = "" if one.configuration == "default" else f", --quantization {one.configuration}"
        flags = label.lstrip(", ")
        command = f"chairlift bench offline --workload w1 --num-requests {extent.num_requests} {flags}".strip()
        yield from _speed(one, f"w1_{one.configuration}", f"W1, {extent.num_requests} requests{label}", command)
    more = 2 * extent.num_requests
    twice = our_contender("default", {}, extent.cache, NUM_SLOTS)
    _run([(twice, make_requests("w1", more))], extent)
    command = f"chairlift bench offline --workload w1 --num-requests {more}"
    yield from _speed(twice, "w1_twice", f"W1, {more} requests", command)


def one_stream(extent: Extent) -> Iterator[Figure]:
    """Time per token of a request that is alone."""
    contender = our_contender("default", {}, extent.cache, NUM_SLOTS)
    _run([(contender, make_requests("stream"))], extent)
    times_ms = tuple(1000 / figure for figure in contender.figures)
    if times_ms:
        command = "python -m benchmarks.figures --sections stream"
        yield Figure("stream_tpot_ms", "One stream, time per token", median(times_ms), "ms", command, times_ms)


def long_prompt(extent: Extent) -> Iterator[Figure]:
    """Prompt tokens per second."""
    contender = our_contender("default", {}, extent.cache, NUM_SLOTS)
    _run([(contender, make_requests("prefill"))], extent)
    speeds = tuple(run.total_tok_s for run in contender.runs if run.total_tok_s is not None)
    if speeds:
        what, command = f"Prefill of {PREFILL_TOKENS:,} tokens", "python -m benchmarks.figures --sections prefill"
        yield Figure("prefill_tok_s", what, median(speeds), "tok/s", command, speeds)


def shared_prefix(extent: Extent) -> Iterator[Figure]:
    """Questions behind one prefix, with prefix caching and without, alternately."""
    try:
        requests = make_requests("gsm8k", extent.num_requests, extent.traces)
    except MissingDataError as error:
        print(f"shared prefix: {error}", flush=True)
        return
    caching = our_contender("prefix caching", {}, extent.cache, NUM_SLOTS)
    without = our_contender("no prefix caching", {}, extent.cache, NUM_SLOTS)
    _run([(caching, requests), (without, replace(requests, shares_prefix=False))], extent)
    command = "python -m benchmarks.figures --sections gsm8k"
    what = (
        f"GSM8K, 8 shots of {requests.num_prefix_tokens:,} tokens, {len(requests.items)} questions, "
        f"{GSM8K_OUTPUT_TOKENS} output tokens"
    )
    yield from _speed(caching, "gsm8k_caching", f"{what}, prefix caching", command)
    yield from _speed(without, "gsm8k_no_caching", f"{what}, none", command)
    if caching.output_tok_s and without.output_tok_s:
        ratio = caching.output_tok_s / without.output_tok_s
        figure = Figure("gsm8k_ratio", "GSM8K, with / without prefix caching", ratio, "times", command)
        yield bounded(figure, at_least=2.0)


def _run(pairs: list[tuple[Contender, Requests]], extent: Extent) -> None:
    for _ in alternate(pairs, extent.num_runs, extent.timeout_s):
        pass


def _speed(contender: Contender, key: str, what: str, command: str) -> Iterator[Figure]:
    speed = contender.output_tok_s
    if speed is None:
        print(f"{what}: {contender.runs[-1]}", flush=True)
        return
    yield Figure(key, what, speed, "output tok/s", command, tuple(contender.figures))
