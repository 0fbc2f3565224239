"""Reads workloads: a TOML file of streams, or a trace with options on the command line.

Knows nothing of what runs them.

::

    seed = 7

    [[stream]]
    name = "chat"
    trace = "azure_llm_2023_code.csv.gz"   # relative to this file
    rate = 4.0                             # requests per second
    tier = 0
    tenant = "chat"
    slo = { ttft_ms = 500, tpot_ms = 30 }

    [[stream]]
    name = "batch"
    prompt_tokens = { median = 1500, sigma = 0.8, max = 8000 }
    output_tokens = { low = 50, high = 400 }
    num_requests = 400
    tier = 1
"""

import contextlib
import difflib
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from chairlift.config.quoting import quoted
from chairlift.errors import ConfigurationError
from chairlift.workload.arrivals import RampPoint
from chairlift.workload.distributions import parse_lengths
from chairlift.workload.faults import in_words
from chairlift.workload.slo import parse_slo
from chairlift.workload.streams import Stream, Workload

_NUMBERS = {
    "concurrency": int, "burstiness_cv": float, "rate": float, "start_s": float, "duration_s": float,
    "num_requests": int, "tier": int, "ttft_deadline_ms": float, "deadline_ms": float, "think_s": float,
    "weight": float, "max_kv_pages": int,
}  # fmt: skip
_RANGES = {
    "burstiness_cv": (1e-3, 1e3), "rate": (1e-6, 1e9), "tier": (-(2**31), 2**31 - 1), "weight": (1e-6, 1e6),
    "max_kv_pages": (1, 2**53),
}  # fmt: skip
"""What simulated time and shares can hold; of other numbers, 0 to a milliard."""
KEYS = ("name", "trace", "output_lengths", "prompt_tokens", "output_tokens", "ramp", *_NUMBERS, "tenant", "slo")
"""What a stream may say."""


def read_workload(path: Path) -> Workload:
    """Read a workload file.

    Raises:
        ConfigurationError: it cannot be read, or says something that is not understood.
    """
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: also a number of too many digits
        raise ConfigurationError(f"workload {path} cannot be read: {in_words(error)}") from None
    streams: list[Any] | None = table.get("stream")
    if table.keys() - {"seed", "stream"} or not isinstance(streams, list) or not all(map(_is_table, streams)):
        raise ConfigurationError(
            f"workload {path} must have [[stream]] tables and may have a seed, and has: {', '.join(table) or 'nothing'}"
        )
    seed = table.get("seed", 0)
    if type(seed) is not int:
        raise ConfigurationError(f"seed of workload {path} must be a whole number, got {quoted(seed)}")
    parsed = [
        parse_stream(entry, path.parent, f"stream {number} of {path}") for number, entry in enumerate(streams, start=1)
    ]
    return Workload(tuple(parsed), seed)


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


def parse_stream(table: Mapping[str, object], folder: Path, what: str) -> Stream:
    """Make a stream of a table; paths in it are relative to ``folder``.

    Raises:
        ConfigurationError: a key is unknown or a value impossible; the message begins with ``what``.
    """
    for key in table:
        if key not in KEYS:
            nearest = difflib.get_close_matches(key, KEYS, n=1)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            raise ConfigurationError(f"{what} has no key {key}{hint}")
    fields: dict[str, Any] = {}
    for key, value in table.items():
        shown = f"{key} of {what}"
        if key in _NUMBERS:
            fields["rate_per_s" if key == "rate" else key] = _number(value, key, shown)
        elif key == "trace":
            fields[key] = folder / str(value)
        elif key in ("prompt_tokens", "output_tokens"):
            fields[key] = parse_lengths(value, shown)
        elif key == "slo":
            fields[key] = parse_slo(value, shown)
        elif key == "ramp":
            fields[key] = _ramp(value, shown)
        elif key == "output_lengths":
            fields[key] = _lengths(value, shown)
        else:
            fields[key] = str(value)
    fields.setdefault("name", fields["trace"].name.partition(".")[0] if "trace" in fields else what)
    return Stream(**fields)


def parse_trace_option(text: str, number: int, defaults: Mapping[str, object] | None = None) -> Stream:
    """Read ``FILE,key=value,...`` with the keys of a stream, as ``--trace`` takes it.

    ``defaults`` are for keys that are not given.

    Raises:
        ConfigurationError: an option is not understood.
    """
    parts = text.split(",")
    table: dict[str, object] = {**(defaults or {}), "trace": parts[0]}
    for part in parts[1:]:
        key, equals, value = part.partition("=")
        if not equals:
            raise ConfigurationError(f"--trace {text!r}: {part!r} is not of the form key=value")
        table[key.strip().replace("-", "_")] = value
    return parse_stream(table, Path(), f"--trace {number}")


def _number(value: object, key: str, shown: str) -> float:
    kind = _NUMBERS[key]
    number = math.nan
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            converted = kind(value)
            number = converted if math.isfinite(converted) else math.nan
    if not math.isfinite(number):
        raise ConfigurationError(f"{shown} must be a {'whole ' if kind is int else ''}number, got {quoted(value)}")
    least, greatest = _RANGES.get(key, (0, 10**9))
    if not least <= number <= greatest:
        raise ConfigurationError(f"{shown} must be in [{least:g}, {greatest:g}], got {number:g}")
    return number


def _ramp(value: object, shown: str) -> tuple[RampPoint, ...]:
    """Points as ``[[seconds, rate], ...]`` or as ``0:1/60:4``."""
    pairs: list[Any] = [pair.split(":") for pair in value.split("/")] if isinstance(value, str) else cast("Any", value)
    try:
        return tuple(RampPoint(float(at_s), float(rate)) for at_s, rate in pairs)
    except (TypeError, ValueError, OverflowError):
        raise ConfigurationError(f"{shown} must be [[seconds, rate], ...], got {quoted(value)}") from None


def _lengths(value: object, shown: str) -> tuple[int, ...]:
    items = value.replace("/", ",").split(",") if isinstance(value, str) else value
    try:
        lengths = tuple(int(item) for item in cast("Any", items) if not isinstance(item, float | bool))
        if len(lengths) == len(cast("Any", items)):
            return lengths
    except (TypeError, ValueError):
        pass
    raise ConfigurationError(f"{shown} must be whole numbers, got {quoted(value)}")
