"""Runs scenarios in the simulator, and meters who is served what, step by step.

Knows nothing of what is claimed.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from chairlift.config.load import load_settings
from chairlift.core.step_plan import Chunk, StepPlan
from chairlift.report.statistics import Distribution
from chairlift.simulator.latency.catalogue import find_latency_model
from chairlift.simulator.latency.model import LatencyModel, StepShape, StepTime
from chairlift.simulator.setup import machine_defaults, set_up
from chairlift.simulator.simulation import Simulation
from chairlift.simulator.summary import RunSummary, StreamSummary, summarize
from chairlift.workload.streams import Stream, Workload

MACHINE = "llama-3.1-8b@h100"
_NS_PER_S = 1e9


@dataclass(slots=True)
class Step:
    """One step: when it began, how long it took, and the tokens it computed for each tenant."""

    start_ns: int
    duration_ns: int = 0
    prefill: dict[str, int] = field(default_factory=dict)
    """Tokens of prompts, computed for the first time."""
    output: dict[str, int] = field(default_factory=dict)
    """Output tokens that it brings."""
    num_recomputed: int = 0

    def served(self, tenant: str) -> int:
        """Tokens of the tenant that had not been computed before."""
        return self.prefill.get(tenant, 0) + self.output.get(tenant, 0)

    @property
    def num_useful(self) -> int:
        """The same of all tenants."""
        return sum(self.prefill.values()) + sum(self.output.values())


class Meter:
    """Sees every plan (as its observer) and every duration (as its latency model) of one simulation."""

    def __init__(self, latency: LatencyModel) -> None:
        self.facts = latency.facts
        self.steps: list[Step] = []
        self._latency = latency
        self._simulation: Simulation | None = None
        self._known: dict[int, tuple[str, int]] = {}
        """Tenant and prompt length of each request."""
        self._peaks: dict[int, int] = {}
        """Tokens of each request that were computed, preempted or not."""
        self._decoding: dict[int, str] = {}

    def watch(self, simulation: Simulation) -> None:
        """Say whose plans are seen."""
        self._simulation = simulation

    def planned(self, plan: StepPlan) -> None:
        """Note who is served in a step."""
        assert self._simulation is not None  # noqa: S101 - a caller's bug
        requests = self._simulation.scheduler.requests
        step = Step(self._simulation.now_ns)
        for request_id in (*plan.ended, *plan.decodes_left):
            self._decoding.pop(request_id, None)
        for new in plan.new:
            self._known[new.request_id] = (requests[new.request_id].tenant, new.num_prompt_tokens)
        for request_id in plan.decodes_joined:
            self._decoding[request_id] = self._known[request_id][0]
        for request_id, tenant in self._decoding.items():
            self._peaks[request_id] += 1
            step.output[tenant] = step.output.get(tenant, 0) + 1
        for chunk in plan.chunks:
            self._note_chunk(step, chunk)
        self.steps.append(step)

    def time(self, shape: StepShape, page_size: int) -> StepTime:
        """Note how long the step takes that was planned last."""
        taken = self._latency.time(shape, page_size)
        self.steps[-1].duration_ns = taken.duration_ns
        return taken

    def _note_chunk(self, step: Step, chunk: Chunk) -> None:
        tenant, num_prompt_tokens = self._known[chunk.request_id]
        peak = self._peaks.get(chunk.request_id, 0)
        end = chunk.start + chunk.length
        num_new = max(0, min(end, num_prompt_tokens) - max(chunk.start, peak))
        step.prefill[tenant] = step.prefill.get(tenant, 0) + num_new
        step.num_recomputed += max(0, min(end, peak) - chunk.start)
        self._peaks[chunk.request_id] = max(peak, end)
        if chunk.samples:
            step.output[tenant] = step.output.get(tenant, 0) + 1

    # ------------------------------------------------------------------------------------------- what was seen

    def between(self, start_s: float, end_s: float) -> list[Step]:
        """Return the steps that began within a window."""
        return [step for step in self.steps if start_s * _NS_PER_S <= step.start_ns < end_s * _NS_PER_S]

    def useful_per_s(self, start_s: float, end_s: float) -> float:
        """Useful tokens per second of a window; those of a step are spread evenly over the time it took."""
        start_ns, end_ns = start_s * _NS_PER_S, end_s * _NS_PER_S
        total = 0.0
        for step in self.steps:
            inside = min(step.start_ns + step.duration_ns, end_ns) - max(step.start_ns, start_ns)
            if inside > 0:
                total += step.num_useful * inside / step.duration_ns
        return total / (end_s - start_s)


@dataclass(frozen=True)
class Run:
    """A finished simulation, with what was metered."""

    summary: RunSummary
    meter: Meter

    def stream(self, name: str) -> StreamSummary:
        """Return the numbers of one stream."""
        return next(stream for stream in self.summary.streams if stream.name == name)

    def ttft_ms(self, name: str, percent: float = 99.0) -> float:
        """Percentile of a stream's time to first token."""
        return 1000 * seconds_at(self.stream(name).latencies.ttft_ms, percent)


def seconds_at(distribution: Distribution | None, percent: float) -> float:
    """Percentile of times in milliseconds; not a number where nothing finished."""
    return float("nan") if distribution is None else distribution.at(percent) / 1000


def simulate(label: str, streams: Sequence[Stream], *, machine: str = MACHINE, seed: int = 0, **settings: Any) -> Run:
    """Serve streams with these settings; those that are not given are what the machine would be set up with."""
    latency = find_latency_model(machine)
    meter = Meter(latency)
    workload = Workload(tuple(streams), seed)
    chosen = load_settings(machine_defaults(latency.facts, settings), env={})
    engine = set_up(chosen, meter, longest_tokens=latency.facts.max_model_len, tenants=workload.tenants())
    # Jumped steps have no plan that could be metered.
    simulation = Simulation(engine, workload, jumps=False, observer=meter)
    meter.watch(simulation)
    finished = simulation.run()
    return Run(summarize(finished, engine, workload, label=label, wall_s=0.0), meter)


def parse_options(description: str | None, **defaults: int) -> argparse.Namespace:
    """Read ``--json`` and whole numbers that a scenario can be made smaller or larger with."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    for name, default in defaults.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=default)
    return parser.parse_args()


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    Console(width=140).print(table)


def write_json(path: Path | None, figures: object) -> None:
    """Write figures to a file, if one was asked for."""
    if path is not None:
        path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
