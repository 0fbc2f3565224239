"""A latency model fitted to measured steps, as ``chairlift calibrate`` writes it.

Knows nothing of how the steps were measured; :mod:`~..calibration` does.

::

    t =   linear(rows)                 straight between measured numbers of rows: kernels gain by more rows in leaps
        + a * decodes  + b * KV tokens that decodes read
        + c * chunks   + d * pairs of a chunk's row and a token before it  + e * KV tokens that chunks read
        + f * rows that sample
        + g * pages copied
"""

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from chairlift.config.quoting import quoted
from chairlift.errors import ConfigurationError
from chairlift.simulator.latency.model import MachineFacts, StepShape, StepTime
from chairlift.workload.faults import in_words

FORMAT = "chairlift-latency-1"
_MOST = 1e15
_MOST_NS = 1e12
_NOTHING_KNOWN = MachineFacts(name="", max_model_len=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """Nanoseconds. ``knot_rows`` are the numbers of rows between which ``knot_ns`` is interpolated; the first is 1."""

    knot_rows: tuple[int, ...]
    knot_ns: tuple[float, ...]
    decode_ns: float = 0.0
    decode_context_ns: float = 0.0
    chunk_ns: float = 0.0
    chunk_pair_ns: float = 0.0
    chunk_context_ns: float = 0.0
    sampled_ns: float = 0.0
    copied_page_ns: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FitError:
    """Relative errors of a fit, on the steps it was fitted to and on steps that it was not."""

    num_steps: int
    mean: float
    p95: float
    held_out_mean: float
    held_out_p95: float
    three_term_mean: float
    """What ``t = c + a * tokens + b * context`` alone reaches on the same steps."""


class MeasuredLatency:
    """Implements :class:`~.model.LatencyModel`."""

    def __init__(self, facts: MachineFacts, coefficients: Coefficients, error: FitError | None = None) -> None:
        self.facts, self.coefficients, self.error = facts, coefficients, error
        self._rows, self._ns = coefficients.knot_rows, coefficients.knot_ns

    def time(self, shape: StepShape, page_size: int) -> StepTime:
        """Return how long a step takes."""
        del page_size
        c = self.coefficients
        compute_ns = (
            interpolate(shape.num_decodes + shape.num_chunk_rows, self._rows, self._ns)
            + c.decode_ns * shape.num_decodes
            + c.decode_context_ns * shape.num_decode_context_tokens
            + c.sampled_ns * shape.num_sampled
        )
        if shape.num_chunks:
            compute_ns += (
                c.chunk_ns * shape.num_chunks
                + c.chunk_pair_ns * shape.num_chunk_pairs
                + c.chunk_context_ns * shape.num_chunk_context_tokens
            )
        copy_ns = c.copied_page_ns * (shape.num_pages_out + shape.num_pages_in)
        # Behind the last knot, a line that falls would cross 0 one day.
        return StepTime(max(1, int(compute_ns + copy_ns)), int(copy_ns))

    def write(self, path: Path) -> None:
        """Write the model as JSON.

        Raises:
            ConfigurationError: the file cannot be written.
        """
        record = {
            "format": FORMAT,
            "machine": asdict(self.facts),
            "coefficients": asdict(self.coefficients),
            "fit_error": None if self.error is None else asdict(self.error),
        }
        try:
            path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None


def read_measured(path: Path) -> MeasuredLatency:
    """Read a model that :meth:`MeasuredLatency.write` wrote.

    Raises:
        ConfigurationError: the file is something else.
    """
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            raise ConfigurationError(f"latency model {path} is of format {record['format']!r}, not {FORMAT!r}")
        coefficients = {name: _frozen(value) for name, value in record["coefficients"].items()}
        error = record.get("fit_error")
        model = MeasuredLatency(
            MachineFacts(**_known(MachineFacts, record["machine"], "machine")),
            Coefficients(**_known(Coefficients, coefficients, "coefficients")),
            None if error is None else FitError(**_known(FitError, error, "fit_error")),
        )
        _check(model)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError(f"latency model {path} cannot be read: {in_words(error)}") from None
    return model


def _check(model: MeasuredLatency) -> None:
    """Refuse numbers that no measurement gives.

    Raises:
        ValueError: the message names the first one.
    """
    for name, value in asdict(model.facts).items():
        least = 0 if name.endswith("overhead_ns") else 1
        is_whole = type(value) is int or (name == "host_bytes_per_s" and isinstance(value, float))
        may_be_absent = getattr(_NOTHING_KNOWN, name) is None
        if name != "name" and not (may_be_absent and value is None) and not (is_whole and least <= value <= _MOST):
            raise ValueError(f"{name} must be a whole number in [{least}, {_MOST:g}], got {quoted(value)}")
    coefficients = asdict(model.coefficients)
    rows, heights = coefficients.pop("knot_rows"), coefficients.pop("knot_ns")
    if not rows or len(rows) != len(heights) or any(type(row) is not int for row in rows):
        raise ValueError(f"knot_rows must be whole numbers, one for each of knot_ns, got {quoted(rows)}")
    if rows[0] < 1 or any(low >= high for low, high in pairwise(rows)):
        raise ValueError(f"knot_rows must grow, from 1 on, got {quoted(rows)}")
    for value in (*heights, *coefficients.values()):
        if not isinstance(value, int | float) or not 0 <= value <= _MOST_NS:
            raise ValueError(f"coefficients must be nanoseconds in [0, {_MOST_NS:g}], got {quoted(value)}")


def interpolate(value: int, knots: Sequence[int], heights: Sequence[float]) -> float:
    """Return the height at ``value`` on straight lines between the knots, the last one drawn on behind them."""
    if value <= knots[0] or len(knots) == 1:
        return heights[0]
    above = min(bisect_right(knots, value), len(knots) - 1)
    low, high = knots[above - 1], knots[above]
    return heights[above - 1] + (value - low) / (high - low) * (heights[above] - heights[above - 1])


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _known(kind: type[Any], values: Mapping[str, Any], what: str) -> dict[str, Any]:
    known = {field.name for field in fields(kind)}
    if unknown := values.keys() - known:
        raise ConfigurationError(f"{what} of a latency model has unknown keys: {', '.join(sorted(unknown))}")
    missing = [field.name for field in fields(kind) if field.default is MISSING and field.name not in values]
    if missing:
        raise ValueError(f"{what} needs {', '.join(missing)}")
    return dict(values)
