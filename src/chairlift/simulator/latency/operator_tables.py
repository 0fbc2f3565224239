"""A roofline with measured kernels in it: matrix products and attention as timed by others, operator by operator.

Knows nothing of schedulers. The tables come with the PyPI package aiconfigurator-core (NVIDIA, Apache-2.0), which is
not a dependency: it is large, and needs pyarrow to read them. What they do not say (small kernels, all-reduce, copies)
is the roofline's.
"""

import importlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources, util
from math import sqrt
from pathlib import Path
from typing import Any

from chairlift.errors import ConfigurationError
from chairlift.simulator.latency.model import StepShape, StepTime
from chairlift.simulator.latency.roofline import ModelSheet, RooflineLatency

PACKAGE = "aiconfigurator_core"
_FRAMEWORKS = ("vllm", "trtllm", "sglang")
_NS_PER_MS = 1e6

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Curve:
    """Nanoseconds against one size, on straight lines between the measured ones and on behind the last."""

    sizes: tuple[float, ...]
    times_ns: tuple[float, ...]

    def at(self, size: float) -> float:
        """Return the time at a size."""
        sizes, times = self.sizes, self.times_ns
        if size <= sizes[0] or len(sizes) == 1:
            return times[0]
        above = min(bisect_right(sizes, size), len(sizes) - 1)
        part = (size - sizes[above - 1]) / (sizes[above] - sizes[above - 1])
        return times[above - 1] + part * (times[above] - times[above - 1])


@dataclass(frozen=True, slots=True)
class OperatorTables:
    """Times of one model's operators on one device of its group."""

    linear: Curve
    """All linear layers, by rows."""
    head: Curve
    """The output head, by rows that sample."""
    prompt_attention: Curve
    """Attention of all layers over one whole prompt, by its length."""
    decode_attention: tuple[tuple[float, Curve], ...]
    """By decodes: attention of all layers, by their mean context."""

    def decode_attention_ns(self, num_decodes: int, context_tokens: float) -> float:
        """Return the time of decodes with so much context each."""
        batches = Curve(
            tuple(size for size, _ in self.decode_attention),
            tuple(curve.at(context_tokens) for _, curve in self.decode_attention),
        )
        return batches.at(num_decodes)


class OperatorTableLatency:
    """Implements :class:`~.model.LatencyModel`."""

    def __init__(self, roofline: RooflineLatency, tables: OperatorTables) -> None:
        self._roofline, self._tables = roofline, tables
        self.facts = replace(roofline.facts, name=roofline.facts.name.replace("roofline", "measured operators"))

    def time(self, shape: StepShape, page_size: int) -> StepTime:
        """Return how long a step takes."""
        tables = self._tables
        compute_ns = self._roofline.small_kernels_ns(shape.num_rows) + tables.linear.at(shape.num_rows)
        if shape.num_decodes:
            mean = shape.num_decode_context_tokens / shape.num_decodes
            compute_ns += tables.decode_attention_ns(shape.num_decodes, mean)
        if shape.num_chunks:
            # A chunk behind a part of its prompt takes as long as a whole prompt with as many pairs.
            pairs = shape.num_chunk_pairs / shape.num_chunks
            compute_ns += shape.num_chunks * tables.prompt_attention.at(sqrt(2 * pairs))
        if shape.num_sampled:
            compute_ns += tables.head.at(shape.num_sampled)
        return self._roofline.with_copies(compute_ns, shape, page_size)


def load_operator_tables(roofline: RooflineLatency, folder_name: str | None) -> OperatorTableLatency:
    """Find the tables of a device and put them into its roofline.

    Raises:
        ConfigurationError: the package is not installed, or has no tables for the device or the model.
    """
    if util.find_spec(PACKAGE) is None or util.find_spec("pyarrow") is None:
        raise ConfigurationError(
            "measured operators need the package aiconfigurator-core, which is not installed "
            "(pip install aiconfigurator-core); without +tables the roofline is used"
        )
    root = Path(str(resources.files(PACKAGE))) / "systems" / "data" / str(folder_name)
    found: list[list[Row]] = []
    for kind, name in (
        ("gemm", "gemm_perf"),
        ("attention", "context_attention_perf"),
        ("attention", "generation_attention_perf"),
    ):
        files = [
            path for framework in _FRAMEWORKS for path in sorted((root / kind / framework).glob(f"*/{name}.parquet"))
        ]
        if not files:
            raise ConfigurationError(f"aiconfigurator-core has no table {name} for {roofline.device.name}")
        found.append(_read_parquet(files[0]))
    tables = build_tables(found[0], found[1], found[2], roofline.model, roofline.num_devices)
    return OperatorTableLatency(roofline, tables)


def build_tables(
    gemm: Iterable[Row], prompts: Iterable[Row], decodes: Iterable[Row], model: ModelSheet, num_devices: int
) -> OperatorTables:
    """Pick a model's operators out of the tables' rows.

    Raises:
        ConfigurationError: the tables do not have its shapes.
    """
    times: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for row in gemm:
        if row["gemm_dtype"] == "bfloat16":
            sizes = times[int(row["n"]), int(row["k"])]
            sizes[int(row["m"])] = min(sizes.get(int(row["m"]), float("inf")), float(row["latency"]) * _NS_PER_MS)
    heads, kv_heads = model.num_heads // num_devices, max(1, model.num_kv_heads // num_devices)
    width, hidden, inner = model.head_size, model.hidden_size, model.intermediate_size // num_devices
    layer = [
        _product(times, (heads + 2 * kv_heads) * width, hidden),
        _product(times, hidden, heads * width),
        _product(times, 2 * inner, hidden),
        _product(times, hidden, inner),
    ]
    rows = sorted({size for curve in layer for size in curve.sizes})
    linear = Curve(tuple(rows), tuple(model.num_layers * sum(curve.at(size) for curve in layer) for size in rows))

    def is_ours(row: Row) -> bool:
        shape = (int(row["num_heads"]), int(row["num_key_value_heads"]), int(row["head_dim"]))
        kind = (row["attn_dtype"], row["kv_cache_dtype"], int(row.get("window_size") or 0))
        return shape == (heads, kv_heads, width) and kind == ("bfloat16", "bfloat16", 0)

    by_length = {
        float(row["isl"]): float(row["latency"]) for row in prompts if is_ours(row) and int(row["batch_size"]) == 1
    }
    by_batch: dict[float, dict[float, float]] = defaultdict(dict)
    for row in decodes:
        if is_ours(row):
            by_batch[float(row["batch_size"])][float(row["isl"]) + float(row["step"])] = float(row["latency"])
    if not by_length or not by_batch:
        raise ConfigurationError(f"the tables have no attention of {heads} heads, {kv_heads} of KV, each of {width}")
    per_layer = model.num_layers * _NS_PER_MS
    return OperatorTables(
        linear=linear,
        head=_product(times, model.vocab_size // num_devices, hidden),
        prompt_attention=_curve(by_length, per_layer),
        decode_attention=tuple((batch, _curve(by_batch[batch], per_layer)) for batch in sorted(by_batch)),
    )


def _product(times: Mapping[tuple[int, int], Mapping[int, float]], n: int, k: int) -> Curve:
    """Time of a product with an ``n`` by ``k`` matrix, between the matrices that were measured."""
    ks = sorted({known for _, known in times})
    ns = sorted({known for known, _ in times})
    if not ks or not ns:
        raise ConfigurationError("the tables have no products in bfloat16")
    parts = [(low_n, low_k, a * b) for low_n, a in _around(ns, n) for low_k, b in _around(ks, k)]
    known = [times[low_n, low_k] for low_n, low_k, _ in parts if times.get((low_n, low_k))]
    if len(known) < len(parts):
        raise ConfigurationError(f"the tables have no product close to {n} x {k}")
    sizes = sorted(size for size in known[0] if all(size in entry for entry in known))
    return Curve(
        tuple(float(size) for size in sizes),
        tuple(sum(part * times[low_n, low_k][size] for low_n, low_k, part in parts) for size in sizes),
    )


def _around(known: Sequence[int], value: int) -> list[tuple[int, float]]:
    """The measured sizes around a value and their parts; behind the last one the part is more than 1."""
    if value in known:
        return [(value, 1.0)]
    if value < known[0]:
        return [(known[0], 1.0)]
    if value > known[-1]:
        return [(known[-1], value / known[-1])]
    above = bisect_right(known, value)
    low, high = known[above - 1], known[above]
    part = (value - low) / (high - low)
    return [(low, 1.0 - part), (high, part)]


def _curve(times: Mapping[float, float], factor: float) -> Curve:
    sizes = sorted(times)
    return Curve(tuple(sizes), tuple(times[size] * factor for size in sizes))


def _read_parquet(path: Path) -> list[Row]:
    parquet: Any = importlib.import_module("pyarrow.parquet")
    return parquet.read_table(path).to_pylist()
