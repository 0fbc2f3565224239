"""Makes the plan of a benchmark from the flags of :mod:`~.bench_options`.

Knows nothing of servers.
"""

import math
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chairlift.benchmark.datasets import read_exchanges
from chairlift.benchmark.plan import ConversationShape, LoadPlan, ramp_up
from chairlift.benchmark.prompts import SharedPrefixes
from chairlift.benchmark.runner import Limits
from chairlift.cli.bench_options import DEFAULT_REQUESTS, WRITTEN
from chairlift.errors import ConfigurationError
from chairlift.workload.streams import Stream, Workload
from chairlift.workload.traces import open_trace
from chairlift.workload.workload_file import parse_stream, parse_trace_option, read_workload

_GOODPUT = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2el": "e2e_ms"}
_ENDLESS = 10**9
"""Requests of a load that the time ends."""
_SALT_BITS = 48
_MAX_CONVERSATIONS = 2000
"""Different ones; after that they begin again."""

Flags = Mapping[str, Any]


def read_plan(flags: Flags, tenants: Sequence[str]) -> LoadPlan:
    """Make the plan that the flags ask for.

    Raises:
        ConfigurationError: flags contradict each other, or a file cannot be read.
    """
    exchanges = read_exchanges(_dataset_path(flags)) if _dataset(flags) in WRITTEN else []
    workload = _workload(flags, len(exchanges))
    for stream in workload.streams:
        if stream.trace is not None:
            open_trace(stream.trace)  # what cannot be read is said before a server is asked anything
    return LoadPlan(
        workload=workload,
        limits=_limits(flags),
        exchanges=exchanges,
        prefix=_prefix(flags),
        conversations=_conversations(flags, workload.streams),
        prefixes=_prefixes(flags),
        tenants=tenants,
        sends_tiers=flags["send_priority"] or flags["priority"] is not None,
        salt=0 if flags["same_prompts"] else secrets.randbits(_SALT_BITS),
    )


def is_chat_load(flags: Flags) -> bool:
    """Whether what is asked was written as chat, which is how it is sent if nobody says otherwise."""
    return _dataset(flags) in (*WRITTEN, "conversations")


def _dataset(flags: Flags) -> str:
    """Name of what is asked; ``trace`` also for flags that name streams of lengths."""
    if not flags["traces"] and flags["workload_path"] is None:
        return str(flags["dataset_name"])
    if flags["dataset_name"] != "random" or (flags["traces"] and flags["workload_path"] is not None):
        raise ConfigurationError("give only one of --dataset-name, --trace and --workload")
    return "trace"


def _dataset_path(flags: Flags) -> Path:
    path: Path | None = flags["dataset_path"]
    if path is None:
        raise ConfigurationError(f"--dataset-name {flags['dataset_name']} needs a --dataset-path")
    return path


def _workload(flags: Flags, num_exchanges: int) -> Workload:
    seed: int = flags["seed"]
    if flags["workload_path"] is not None:
        _refuse_beside_workload(flags)
        workload = read_workload(flags["workload_path"])
        return Workload(workload.streams, seed or workload.seed)
    dataset = _dataset(flags)
    count = _count(flags, num_exchanges)
    common = _common(flags, count, dataset)
    if dataset == "trace":
        names: list[str] = list(flags["traces"]) or [str(_dataset_path(flags))]
        streams = [parse_trace_option(text, number, common) for number, text in enumerate(names, start=1)]
        return Workload(tuple(streams), seed)
    prompt, output = _lengths(flags, dataset)
    table = {"name": dataset, "prompt_tokens": prompt, "output_tokens": output, **common}
    return Workload((parse_stream(table, Path(), f"--dataset-name {dataset}"),), seed)


def _refuse_beside_workload(flags: Flags) -> None:
    names = ("num_prompts", "request_rate", "burstiness", "ramp_up_strategy", "ramp", "priority", "think_s")
    given = [name for name in names if flags[name] is not None] + (["goodput"] if flags["goodput"] else [])
    if given:
        shown = ", ".join("--" + name.replace("_", "-") for name in given)
        raise ConfigurationError(f"{shown} cannot be given beside --workload, whose streams say it")


def _count(flags: Flags, num_exchanges: int) -> int:
    given: int | None = flags["num_prompts"]
    if given is not None:
        return given
    if flags["duration_s"] is not None:
        return _ENDLESS
    return num_exchanges or DEFAULT_REQUESTS


def _common(flags: Flags, count: int, dataset: str) -> dict[str, object]:
    """Return what all streams have unless they say otherwise, as a workload file would write it."""
    common = _arrivals(flags, count, dataset)
    if dataset != "trace" or count != _ENDLESS:  # a trace ends by itself
        common["num_requests"] = count
    if flags["priority"] is not None:
        common["tier"] = flags["priority"]
    if flags["think_s"] is not None:
        common["think_s"] = flags["think_s"]
    goodput = parse_goodput(flags["goodput"])
    if goodput:
        common["slo"] = goodput
    return common


def _arrivals(flags: Flags, count: int, dataset: str) -> dict[str, object]:
    rate: float | None = flags["request_rate"]
    burstiness: float | None = flags["burstiness"]
    ramp = _ramp(flags, count)
    finite = rate is not None and rate < math.inf
    if ramp is not None:
        if rate is not None or burstiness is not None:
            raise ConfigurationError("a ramp takes no --request-rate and no --burstiness beside it")
        return {"ramp": ramp}
    if burstiness is not None and not finite:
        raise ConfigurationError("--burstiness needs a --request-rate that is not inf")
    if finite:
        shape = {} if burstiness is None else {"burstiness_cv": 1 / math.sqrt(burstiness)}
        return {"rate": rate, **shape}
    if dataset == "trace" and rate is None:
        return {}
    concurrency: int | None = flags["max_concurrency"]
    if concurrency is None and count == _ENDLESS:
        raise ConfigurationError("--duration needs a rate, a ramp or --max-concurrency: all at once would be endless")
    return {"concurrency": min(count, concurrency or count)}


def _ramp(flags: Flags, count: int) -> object | None:
    strategy: str | None = flags["ramp_up_strategy"]
    ends = (flags["ramp_up_start_rps"], flags["ramp_up_end_rps"])
    if strategy is None and ends == (None, None):
        return flags["ramp"]
    if strategy is None or None in ends or flags["ramp"] is not None:
        raise ConfigurationError(
            "--ramp-up-strategy, --ramp-up-start-rps and --ramp-up-end-rps need each other, and exclude --ramp"
        )
    if count == _ENDLESS:
        raise ConfigurationError("--ramp-up-strategy needs --num-prompts, over which the rate grows; or use --ramp")
    return [(point.at_s, point.rate_per_s) for point in ramp_up(strategy, *ends, count)]


def _lengths(flags: Flags, dataset: str) -> tuple[object, object]:
    if dataset in WRITTEN:
        return 1, flags["output_len"]
    if dataset == "prefix_repetition":
        return flags["prefix_repetition_suffix_len"], flags["prefix_repetition_output_len"]
    ratio: float = flags["random_range_ratio"]
    return _around(flags["random_input_len"], ratio), _around(flags["random_output_len"], ratio)


def _around(length: int, ratio: float) -> object:
    low, high = max(1, math.floor(length * (1 - ratio))), math.ceil(length * (1 + ratio))
    return length if low == high else {"low": low, "high": high}


def _limits(flags: Flags) -> Limits:
    """Closed loops keep to the concurrency by themselves; only clocked arrivals are held back by it."""
    rate: float | None = flags["request_rate"]
    is_clocked = _dataset(flags) == "trace" if rate is None else rate < math.inf
    is_clocked = is_clocked or flags["ramp"] or flags["ramp_up_strategy"]
    return Limits(max_concurrency=flags["max_concurrency"] if is_clocked else None, duration_s=flags["duration_s"])


def _prefix(flags: Flags) -> str:
    path: Path | None = flags["prefix_file"]
    if path is None:
        return ""
    if _dataset(flags) not in WRITTEN:
        raise ConfigurationError("--prefix-file needs prompts that are text: --dataset-name mt-bench or custom")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--prefix-file {path} cannot be read: {error}") from None


def _conversations(flags: Flags, streams: Sequence[Stream]) -> ConversationShape | None:
    if _dataset(flags) != "conversations":
        return None
    count = min(streams[0].num_requests or DEFAULT_REQUESTS, _MAX_CONVERSATIONS)
    return ConversationShape(count, flags["num_turns"], flags["random_input_len"])


def _prefixes(flags: Flags) -> SharedPrefixes | None:
    dataset = _dataset(flags)
    if dataset == "prefix_repetition":
        return SharedPrefixes(flags["prefix_repetition_num_prefixes"], flags["prefix_repetition_prefix_len"])
    if dataset == "random" and flags["random_prefix_len"]:
        return SharedPrefixes(1, flags["random_prefix_len"])
    return None


def parse_goodput(texts: Sequence[str]) -> dict[str, float]:
    """Read an objective as a workload file writes it out of ``ttft:500 tpot:50``, in one text or in several.

    Raises:
        ConfigurationError: it is not of that form.
    """
    limits: dict[str, float] = {}
    for part in " ".join(texts).replace(",", " ").split():
        name, _, text = part.partition(":")
        try:
            limit = float(text)
        except ValueError:
            limit = math.nan
        if name not in _GOODPUT or not 0 <= limit < math.inf:
            raise ConfigurationError(
                f"--goodput takes {', '.join(_GOODPUT)} with milliseconds, as ttft:500; got {part!r}"
            )
        limits[_GOODPUT[name]] = limit
    return limits
