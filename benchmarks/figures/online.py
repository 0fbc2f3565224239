"""Serving over HTTP: W1 at once against the same offline, its requests over time, the start, and the memory.

Knows nothing of other engines.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import gguf

from benchmarks.figures.figure import Figure, bounded
from benchmarks.figures.offline import NUM_SLOTS, Extent
from benchmarks.figures.process import cpu_s, resident_bytes
from benchmarks.over_http.served import Server, ServerProcess
from benchmarks.over_http.w1 import latencies_ms, output_tok_s, send
from benchmarks.peers.rounds import our_contender
from benchmarks.tasks import Requests, make_requests
from chairlift.benchmark.runner import FinishedRun
from chairlift.config.model_source import resolve_model_source
from chairlift.simulator.logged_steps import read_steps

RATES_PER_S = (2.0, 3.0)
SMALL_KV_BYTES = 128 * 2**20
"""So few that W1 fills all of them: pages that nobody has used yet take no memory."""
_NUM_STARTS = 3
_SETTINGS = {"max_num_seqs": NUM_SLOTS, "kv_cache_memory": "1GiB"}
_MIB = 2**20
_WEIGHT_BYTES = {"float32": 4, "bfloat16": 2}


def over_http(extent: Extent) -> Iterator[Figure]:
    """W1 over HTTP against offline, alternately; what the API process costs, and what passes between steps."""
    requests = make_requests("w1", extent.num_requests)
    offline = our_contender("default", {}, extent.cache, NUM_SLOTS)
    speeds: list[float] = []
    parts: list[float] = []
    gaps: list[float] = []
    for number in range(1, extent.num_runs + 1):
        print(f"round {number}: offline: {offline.run(requests, extent.timeout_s)}", flush=True)
        with TemporaryDirectory() as folder:
            log = Path(folder) / "decisions.jsonl"
            with _server(["--decision-log", str(log)]) as server:
                finished, cpu_part = _serve_all(server, requests)
            gaps.append(_gap_part(log))
        speeds.append(output_tok_s(finished))
        parts.append(cpu_part)
        print(f"round {number}: over HTTP: {speeds[-1]:.1f} output tok/s", flush=True)
    command = "python -m benchmarks.figures --sections online"
    yield Figure("online_tok_s", "W1 over HTTP, all at once", median(speeds), "output tok/s", command, tuple(speeds))
    if offline.output_tok_s is not None:
        ratio = Figure("online_ratio", "over HTTP / offline", median(speeds) / offline.output_tok_s, "times", command)
        yield bounded(ratio, at_least=0.85)
    cpu = Figure(
        "api_cpu", "API process, of one core", 100 * median(parts), "%", command, tuple(100 * x for x in parts)
    )
    yield bounded(cpu, at_most=15)
    gap = Figure("step_gap", "Between steps, of a step", 100 * median(gaps), "%", command, tuple(100 * x for x in gaps))
    yield bounded(gap, at_most=3)


def over_time(extent: Extent) -> Iterator[Figure]:
    """Latencies of W1 as a Poisson process."""
    requests = make_requests("w1", extent.num_requests)
    for rate in RATES_PER_S:
        command = f"python -m benchmarks.figures --sections latency  # {rate:g} requests/s"
        found: dict[str, list[float]] = {}
        for _ in range(extent.num_runs):
            with _server() as server:
                finished = send(server.url, requests, rate)
            for name, value in latencies_ms(finished).items():
                found.setdefault(name, []).append(value)
        for name, values in found.items():
            what = f"{name.upper().replace('_P', ' p')}, {rate:g} requests/s"
            yield Figure(f"{name}_ms_at_{rate:g}", what, median(values), "ms", command, tuple(values))


def start(extent: Extent) -> Iterator[Figure]:
    """How long commands take until they are of use."""
    del extent
    ready: list[float] = []
    for _ in range(1 + _NUM_STARTS):  # the first one may compile
        with _server() as server:
            ready.append(server.ready_s)
    figure = Figure("start_s", "Warm start", median(ready[1:]), "s", "chairlift serve", tuple(ready[1:]))
    yield bounded(figure, at_most=10)
    with TemporaryDirectory() as folder:
        yield from _short_starts(_with_bytecode(folder))


def _with_bytecode(folder: str) -> dict[str, str]:
    """An environment in which Python keeps compiled modules, as it does unless told not to."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": folder}


def _short_starts(env: dict[str, str]) -> Iterator[Figure]:
    helps = [_timed([sys.executable, "-m", "chairlift", "--help"], env) for _ in range(1 + _NUM_STARTS)][1:]
    figure = Figure("help_s", "Help", median(helps), "s", "chairlift --help", tuple(helps))
    yield bounded(figure, at_most=0.5)
    script = "import time; t = time.perf_counter(); import chairlift.core.scheduler; print(time.perf_counter() - t)"
    command = [sys.executable, "-c", script]
    imports = [float(subprocess.check_output(command, env=env)) for _ in range(1 + _NUM_STARTS)][1:]
    shown = "python -c 'import chairlift.core.scheduler'"
    figure = Figure("import_core_s", "Import of the core", median(imports), "s", shown, tuple(imports))
    yield bounded(figure, at_most=0.1)


def memory(extent: Extent) -> Iterator[Figure]:
    """What both processes hold after W1, beside weights and KV pages."""
    requests = make_requests("w1", min(extent.num_requests, NUM_SLOTS))
    with Server({**_SETTINGS, "kv_cache_memory": SMALL_KV_BYTES}, ["--no-enable-prefix-caching"]) as server:
        _serve_all(server, requests)
        held = resident_bytes(server.pid)
    weights = _weight_bytes(extent)
    command = "python -m benchmarks.figures --sections memory"
    yield Figure("memory_mib", "Memory of all processes, 128 MiB of KV pages", held / _MIB, "MiB", command)
    rest = Figure(
        "memory_rest_mib", "of which neither weights nor KV", (held - weights - SMALL_KV_BYTES) / _MIB, "MiB", command
    )
    yield bounded(rest, at_most=700)


def _server(flags: list[str] | None = None) -> Server:
    return Server(_SETTINGS, ["--no-enable-prefix-caching", *(flags or [])])


def _serve_all(server: ServerProcess, requests: Requests) -> tuple[FinishedRun, float]:
    """Send all at once; what came, and the part of a core that the process which answers used."""
    before_s, start_s = cpu_s(server.pid), time.perf_counter()
    finished = send(server.url, requests)
    return finished, (cpu_s(server.pid) - before_s) / (time.perf_counter() - start_s)


def _gap_part(log: Path) -> float:
    """Return the median time between steps by the median step."""
    with log.open(encoding="utf-8") as lines:
        steps = read_steps(map(json.loads, lines))
    gap_ns = median(gap for _, gap in steps.overheads)
    return gap_ns / median(step.duration_ns for step in steps.steps)


def _weight_bytes(extent: Extent) -> int:
    """Return what the weights take in the default configuration; as much as the file if they stay packed."""
    probe = our_contender("default", {}, extent.cache, NUM_SLOTS).run(make_requests("w1", 1), extent.timeout_s)
    path = resolve_model_source(None).path
    size = _WEIGHT_BYTES.get(probe.precision.removesuffix(", none weights"))
    return path.stat().st_size if size is None else size * sum(int(t.n_elements) for t in gguf.GGUFReader(path).tensors)


def _timed(command: list[str], env: dict[str, str]) -> float:
    start_s = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)
    return time.perf_counter() - start_s
