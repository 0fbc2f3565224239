"""Runs engines alternately, so that each meets the machine in the same moods, and keeps what each run came to.

Knows nothing of how engines are installed.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.catalogue import OURS, Configuration, Peer
from benchmarks.peers.install import Installed
from benchmarks.peers.models import model_path
from benchmarks.tasks import ROOT, Requests
from chairlift import __version__

_LAST_WORDS = 400

Command = Callable[[Requests, Path], list[str]]
"""Makes the command that runs requests, given them and the file in which a runner finds them."""


@dataclass(frozen=True)
class Run:
    """What one run of one configuration came to: figures, or why there are none."""

    precision: str
    output_tok_s: float | None = None
    total_tok_s: float | None = None
    wall_s: float | None = None
    num_requests: int | None = None
    version: str | None = None
    description: str | None = None
    cannot_run: str | None = None

    def __str__(self) -> str:
        if self.output_tok_s is None:
            return f"cannot run: {self.cannot_run}"
        return f"{self.output_tok_s:.1f} output tok/s, {self.wall_s:.1f} s"

    def to_json(self) -> dict[str, object]:
        """Return what is known, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass
class Contender:
    """An engine in one configuration, and its runs so far."""

    engine: str
    title: str
    configuration: str
    precision: str
    command: Command
    runs: list[Run] = field(default_factory=list)

    @property
    def figures(self) -> list[float]:
        """Output tokens per second of each run that ended."""
        return [run.output_tok_s for run in self.runs if run.output_tok_s is not None]

    @property
    def output_tok_s(self) -> float | None:
        """The median of them."""
        return median(self.figures) if self.figures else None

    @property
    def total_tok_s(self) -> float | None:
        """The median of prompt and output tokens per second."""
        found = [run.total_tok_s for run in self.runs if run.total_tok_s is not None]
        return median(found) if found else None

    def run(self, requests: Requests, timeout_s: float) -> Run:
        """Run once in a process of its own; keep and return what it came to."""
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            requests.write(Path(file.name))
            run = _execute(self.command(requests, Path(file.name)), self.precision, timeout_s)
        self.runs.append(run)
        return run


def peer_contender(peer: Peer, configuration: Configuration, installed: Installed, cache: Path) -> Contender:
    """A peer in one of its configurations; ``cache`` has the model in other forms."""

    def command(requests: Requests, file: Path) -> list[str]:
        del requests
        model = model_path(configuration.form, cache)
        found = _runner_command(peer.runner, installed, configuration, file, (model, cache))
        return [*found, "--set", f"source={peer.requirement}"] if peer.is_built else found

    return Contender(peer.name, peer.title, configuration.name, configuration.precision, command)


def our_contender(name: str, settings: Mapping[str, str], cache: Path, num_slots: int = 64) -> Contender:
    """Chairlift with the package that this runs in: ``chairlift bench offline`` where that has the requests."""

    def command(requests: Requests, file: Path) -> list[str]:
        if requests.name == "w1":
            found = [sys.executable, "-m", "chairlift", "bench", "offline", "--workload", "w1", "--json", "-"]
            found += ["--num-requests", str(len(requests.items)), "--max-num-seqs", str(num_slots)]
            return found + [part for key, value in settings.items() for part in (f"--{key.replace('_', '-')}", value)]
        configuration = Configuration(name, "auto", "gguf", num_slots, settings=tuple(settings.items()))
        installed = Installed(Path(sys.executable))
        model = model_path(configuration.form, cache)
        return _runner_command("benchmarks.peers.run_chairlift", installed, configuration, file, (model, cache))

    return Contender(OURS, "Chairlift", name, "auto", command)


def alternate(pairs: Sequence[tuple[Contender, Requests]], num_rounds: int, timeout_s: float) -> Iterator[int]:
    """Run everybody once a round, every second round backwards; give the number of each round that is through.

    Args:
        pairs: who, and with what.
        num_rounds: how often.
        timeout_s: a run that takes longer counts as one that cannot be done.
    """
    for number in range(1, num_rounds + 1):
        for contender, requests in pairs if number % 2 else reversed(pairs):
            run = contender.run(requests, timeout_s)
            print(f"round {number}: {contender.title}, {contender.configuration}: {run}", flush=True)
        yield number


def _runner_command(
    runner: str, installed: Installed, configuration: Configuration, requests: Path, files: tuple[Path, Path]
) -> list[str]:
    model, cache = files
    command = [str(installed.python), "-m", runner, "--requests", str(requests), "--model", str(model.resolve())]
    command += ["--cache", str(cache.resolve()), "--precision", configuration.precision]
    command += ["--num-slots", str(configuration.num_slots)]
    if installed.program is not None:
        command += ["--program", str(installed.program.resolve())]
    return command + [part for name, value in configuration.settings for part in ("--set", f"{name}={value}")]


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within the block, SIGTERM ends this process as Ctrl-C does: with the engine that is running."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _execute(command: Sequence[str], precision: str, timeout_s: float) -> Run:
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return Run(precision, cannot_run=f"not through after {timeout_s:g} s")
    finally:
        with contextlib.suppress(ProcessLookupError):  # engines leave processes behind
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            return _read(json.loads(line), precision)
    return Run(precision, cannot_run=f"status {process.returncode}: {errors.strip()[-_LAST_WORDS:]}")


def _read(said: dict[str, Any], precision: str) -> Run:
    """Take a runner's line, or the report of ``chairlift bench offline``."""
    if "output_tokens_per_s" not in said:
        return Run(**{"precision": precision, **said})
    return Run(
        precision=f"{said['dtype']}, {said['quantization']} weights",
        output_tok_s=said["output_tokens_per_s"],
        total_tok_s=said["total_tokens_per_s"],
        wall_s=said["wall_s"],
        num_requests=said["num_requests"],
        version=__version__,
        description=said["description"],
    )
