"""Objectives for latency, and whether a request met them.

Knows nothing of how latencies came about. ``data/slos.toml`` has published objectives by name.
"""

import math
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any, cast

from chairlift.config.quoting import quoted
from chairlift.errors import ConfigurationError

_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Slo:
    """Time to first token, time per output token and time of the whole request at most; ``None`` sets no limit.

    ``percent``: the part of the requests that should meet them all.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    percent: float = 99.0
    e2e_ms: float | None = None

    def is_met(self, ttft_ns: int, tpot_ns: float | None, e2e_ns: int | None = None) -> bool:
        """Whether a finished request met it; ``tpot_ns`` is absent if it had one output token."""
        if self.ttft_ms is not None and ttft_ns > self.ttft_ms * _NS_PER_MS:
            return False
        if self.e2e_ms is not None and e2e_ns is not None and e2e_ns > self.e2e_ms * _NS_PER_MS:
            return False
        return self.tpot_ms is None or tpot_ns is None or tpot_ns <= self.tpot_ms * _NS_PER_MS


def named_slos() -> dict[str, Slo]:
    """Published objectives by name."""
    text = resources.files("chairlift.workload").joinpath("data/slos.toml").read_text(encoding="utf-8")
    table: dict[str, Any] = tomllib.loads(text)
    return {name: Slo(row["ttft_ms"], row["tpot_ms"], row["percent"]) for name, row in table["slo"].items()}


def parse_slo(value: object, what: str) -> Slo:
    """Read an objective: a published one's name, ``TTFT/TPOT`` in ms, or a table of these.

    Raises:
        ConfigurationError: it is none of these.
    """
    if isinstance(value, str):
        known = named_slos()
        if value in known:
            return known[value]
        ttft, _, tpot = value.partition("/")
        try:
            return Slo(_limit(ttft), _limit(tpot))
        except ValueError:
            names = ", ".join(sorted(known))
            raise ConfigurationError(
                f"{what} is {quoted(value)}, but must be TTFT/TPOT in ms or one of: {names}"
            ) from None
    if isinstance(value, dict):
        fields: dict[str, Any] = dict(value)  # pyright: ignore[reportUnknownArgumentType]
        if fields.keys() <= {"ttft_ms", "tpot_ms", "e2e_ms", "percent"} and all(map(_is_limit, fields.values())):
            return Slo(**{name: float(number) for name, number in fields.items()})
    raise ConfigurationError(
        f"{what} may have ttft_ms, tpot_ms, e2e_ms and percent, numbers from 0 on, got {quoted(cast('object', value))}"
    )


def _is_limit(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _limit(text: str) -> float | None:
    if not text:
        return None
    number = float(text)
    if not 0 <= number < math.inf:
        raise ValueError(text)
    return number
