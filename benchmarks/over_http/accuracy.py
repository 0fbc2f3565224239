"""The simulator against the real engine over HTTP: the same workloads, three real runs of each, one simulation.

    python -m benchmarks.over_http.accuracy                # calibrates, serves, simulates: about half an hour
    python -m benchmarks.over_http.accuracy --runs 1 --workloads calm

Each workload is served by a fresh server, so that nothing is cached, and between these runs requests of the same kind
are served to calibrate by. What a request spends outside the engine until its first token is measured there too, and
added. The client sends token ids and counts what comes: time to first token from sending to the first piece, gaps
between pieces (one per step that brought a token), tokens from the answer's usage. Wanted: throughput within 5 %,
medians and 99th percentiles of time to first token and of the gaps within 15 %, or within the spread of the real runs
where that is larger. Nothing else should run meanwhile.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.over_http.served import Server, duration_s, serve, ttft_s
from chairlift.benchmark.clock import NS_PER_S
from chairlift.benchmark.prompts import MadePrompts
from chairlift.benchmark.runner import FinishedRun
from chairlift.config.load import load_settings
from chairlift.report.statistics import Distribution, describe
from chairlift.simulator.latency.catalogue import find_latency_model
from chairlift.simulator.latency.model import LatencyModel
from chairlift.simulator.setup import machine_defaults, set_up
from chairlift.simulator.simulation import Simulation
from chairlift.simulator.summary import summarize
from chairlift.workload.distributions import Fixed, Lognormal
from chairlift.workload.lengths import VOCAB_SIZE
from chairlift.workload.streams import Stream, Workload

NUM_SLOTS = 16
SETTINGS: dict[str, object] = {"max_num_seqs": NUM_SLOTS, "max_model_len": 2048, "kv_cache_memory": "128MiB"}
"""So little memory that all of it has been used once within seconds: first use costs steps unforeseeably much."""
_NUM_ALONE = 12
"""Requests by which the time outside the engine is measured."""
_WITHIN = {"output tok/s": 0.05}
_WITHIN_OTHERS = 0.15


def workloads(num_requests: int) -> dict[str, Workload]:
    """A calm one, one whose arrivals come in bursts, and one that is there within seconds and fills every slot.

    The calm one keeps a small machine half busy. With fewer requests a second about one gap in a hundred has somebody
    else's prompt in it, and the 99th percentile of the gaps lies where they go from 7 ms to 40: a tenth more time per
    step moves it by a fifth there, and a tenth by a tenth here.
    """
    prompts, outputs = Lognormal(96, 0.9, 1024), Lognormal(48, 0.8, 256)

    def of(name: str, **arrivals: Any) -> Workload:
        stream = Stream(name=name, prompt_tokens=prompts, output_tokens=outputs, num_requests=num_requests, **arrivals)
        return Workload((stream,), 7)

    return {
        "calm": of("calm", rate_per_s=2.0),
        "bursts": of("bursts", rate_per_s=1.5, burstiness_cv=2.5),
        "saturated": of("saturated", rate_per_s=20.0),
    }


def figures(finished: FinishedRun) -> dict[str, float]:
    """The five numbers that are compared."""
    gaps = [pause / NS_PER_S for record in finished.records for pause in record.pauses_ns()]
    num_tokens = sum(record.tally.num_tokens for record in finished.records)
    ttft = [ttft_s(record) for record in finished.records]
    return compare_figures(num_tokens / duration_s(finished), describe(ttft, 1e3), describe(gaps, 1e3))


def compare_figures(tokens_per_s: float, ttft: Distribution | None, itl: Distribution | None) -> dict[str, float]:
    """Name the numbers."""
    if ttft is None or itl is None:
        raise RuntimeError("nothing was served")
    return {
        "output tok/s": tokens_per_s,
        "TTFT p50, ms": ttft.at(50),
        "TTFT p99, ms": ttft.at(99),
        "ITL p50, ms": itl.at(50),
        "ITL p99, ms": itl.at(99),
    }


def simulate(workload: Workload, latency: LatencyModel, outside_ms: float) -> dict[str, float]:
    """The same on simulated time, ``outside_ms`` of which pass outside the engine before a first token is read."""
    settings = load_settings(machine_defaults(latency.facts, SETTINGS), env={})
    engine = set_up(settings, latency, longest_tokens=2048, tenants=workload.tenants())
    summary = summarize(Simulation(engine, workload).run(), engine, workload, label="simulated", wall_s=0.0)
    latencies = summary.total.latencies
    found = compare_figures(summary.total.output_tokens_per_s, latencies.ttft_ms, latencies.itl_ms)
    return {name: value + outside_ms * name.startswith("TTFT") for name, value in found.items()}


class Calibration:
    """Serves requests like those that are compared, drawn anew each time, and learns from them what serving costs.

    A machine that others use too is faster at one time than at another. So the runs that are learnt from lie between
    those that are compared.
    """

    def __init__(self, folder: Path, workload: Workload) -> None:
        self._folder = folder
        self._workload = workload
        self._logs: list[Path] = []
        self._outside_s: list[float] = []

    def run(self) -> None:
        """Serve once: a few short prompts alone, then the workload with other lengths and times."""
        log = self._folder / f"decisions-{len(self._logs)}.jsonl"
        workload = Workload(self._workload.streams, 99 + len(self._logs))
        with Server(SETTINGS, ["--decision-log", str(log)]) as server:
            makers = [MadePrompts(vocab_size=VOCAB_SIZE, salt=1 + i) for i in range(_NUM_ALONE)]
            alone = [asyncio.run(serve(server.url, _one(16 + i), maker=one)) for i, one in enumerate(makers)]
            asyncio.run(serve(server.url, workload))
        self._logs.append(log)
        commits = (entry for entry in _entries(log) if entry["kind"] == "commit")
        for served, commit in zip(alone, commits, strict=False):
            self._outside_s.append(ttft_s(served.records[0]) - commit["ns"] / NS_PER_S)

    def outside_ms(self) -> float:
        """Median time that a request spends outside the engine until its first token is read."""
        return median(self._outside_s) * 1e3

    def fit(self) -> LatencyModel:
        """Fit a latency model to all steps so far."""
        log, model = self._folder / "all.jsonl", self._folder / "served.json"
        log.write_text("".join(part.read_text(encoding="utf-8") for part in self._logs), encoding="utf-8")
        command = [sys.executable, "-m", "chairlift", "calibrate", "--from-log", str(log), "--output", str(model)]
        subprocess.run(command, check=True)
        return find_latency_model(str(model))


def _one(num_tokens: int) -> Workload:
    """A prompt alone, and one token as its answer."""
    return Workload((Stream(name="one", num_requests=1, prompt_tokens=Fixed(num_tokens), output_tokens=Fixed(1)),), 0)


def _entries(log: Path) -> Iterator[dict[str, Any]]:
    with log.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def judge(name: str, real: list[dict[str, float]], simulated: dict[str, float]) -> Table:
    """One table per workload: each figure, how far off the simulation is, and how far it may be."""
    table = Table(title=name)
    for column in ("figure", "real runs", "simulated", "off", "allowed", ""):
        table.add_column(column, justify="right")
    for figure, value in simulated.items():
        runs = [run[figure] for run in real]
        middle = mean(runs)
        spread = (max(runs) - min(runs)) / middle
        allowed = max(_WITHIN.get(figure, _WITHIN_OTHERS), 0.0 if figure in _WITHIN else spread)
        off = abs(value - middle) / middle
        shown = ", ".join(f"{run:.1f}" for run in runs)
        verdict = "holds" if off <= allowed else "MISSED"
        table.add_row(figure, shown, f"{value:.1f}", f"{off:.1%}", f"{allowed:.1%}", verdict)
    return table


def main() -> None:
    """Calibrate if need be, serve, simulate, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=["calm", "bursts", "saturated"])
    parser.add_argument("--num-requests", type=int, default=150)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    record: dict[str, object] = {}
    for name in options.workloads:
        workload = workloads(options.num_requests)[name]
        real: list[dict[str, float]] = []
        with tempfile.TemporaryDirectory() as folder:
            calibration = Calibration(Path(folder), workload)
            for number in range(options.runs):
                if number > 0 or options.runs == 1:
                    calibration.run()
                with Server(SETTINGS) as server:
                    real.append(figures(asyncio.run(serve(server.url, workload))))
            simulated = simulate(workload, calibration.fit(), calibration.outside_ms())
        record[name] = {"real": real, "simulated": simulated, "outside_ms": calibration.outside_ms()}
        Console().print(judge(name, real, simulated))
        if options.json:
            options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
