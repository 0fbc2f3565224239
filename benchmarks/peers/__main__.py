"""Other engines and Chairlift on one machine: installs them, runs them alternately, writes medians and a table.

    python -m benchmarks.peers                                   # everything: hours on two cores
    python -m benchmarks.peers --peers vllm llamacpp --rounds 1 --num-requests 16
    python -m benchmarks.peers --tasks w1 stream prefill gsm8k
    python -m benchmarks.peers --install-only

Each configuration of an engine runs once with few requests; the fastest one goes into the rounds. In a round everybody
runs once, Chairlift first, and in every second round in the opposite order. What is written is the median of the
rounds, in output tokens per second (of ``prefill``: prompt tokens per second).

Tasks: ``w1`` is 128 requests of heavy-tailed lengths, ``w1-256`` twice as many, ``stream`` one request of 256 output
tokens, ``prefill`` one prompt of 4,096 tokens, ``gsm8k`` questions behind a shared prefix. Tasks that are not measured
keep their figures. With fewer rounds, requests or engines, or other settings, figures are kept in ``build/benchmarks``
and the published ones stay as they are, unless ``--publish`` says otherwise. Nothing else should run meanwhile. The
first run writes the embedded model in the forms that the engines read into ``.peers/models``.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.machine import this_machine, today
from benchmarks.peers.catalogue import OURS, PEERS, Peer
from benchmarks.peers.install import CannotInstallError, Installed, Installer
from benchmarks.peers.rounds import Contender, Run, alternate, interruptible, our_contender, peer_contender
from benchmarks.publishing import add_publishing, results_file
from benchmarks.tasks import NUM_REQUESTS, ROOT, MissingDataError, Requests, make_requests

FILE = "peers.json"
NUM_ROUNDS = 3
HOME = ROOT / ".peers"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--tasks", nargs="+", default=["w1"], choices=list(NUM_REQUESTS))
    parser.add_argument("--rounds", type=int, default=NUM_ROUNDS)
    parser.add_argument("--num-requests", type=int, help="of each task, instead of its own number")
    parser.add_argument(
        "--peer-requests", nargs="+", default=[], metavar="PEER=N", help="requests of W1 for a peer that is slow"
    )
    parser.add_argument("--scout-requests", type=int, default=32, help="requests by which a configuration is chosen")
    parser.add_argument("--configurations", nargs="+", default=[], metavar="PEER:NAME", help="instead of choosing")
    parser.add_argument("--our-settings", nargs="+", default=[], metavar="NAME=VALUE", help="instead of the defaults")
    parser.add_argument("--timeout-s", type=float, default=1800, help="for one run")
    parser.add_argument("--traces", type=Path, help="folder with the files of GSM8K")
    parser.add_argument("--extra-index-url", action="append", default=[], help="where packages are looked for, too")
    parser.add_argument("--install-only", action="store_true")
    add_publishing(parser, "--output")
    return parser.parse_args(arguments)


def is_whole(options: argparse.Namespace) -> bool:
    """Whether all engines run as often, with as many requests and as freely as if nobody had said anything."""
    changed = (options.num_requests, options.peer_requests, options.configurations, options.our_settings)
    return not any(changed) and options.rounds >= NUM_ROUNDS and set(options.peers) == set(PEERS)


class Comparison:
    """One task: every engine's configurations, who of them goes into the rounds, and what is written of it."""

    def __init__(self, task: str, options: argparse.Namespace) -> None:
        self.task = task
        self.options = options
        self.scouted: dict[str, list[Contender]] = {}
        self.chosen: list[Contender] = []
        self.missing: dict[str, str] = {}

    def requests(self, peer: str, most: int | None = None) -> Requests:
        """Return an engine's requests, at most so many."""
        count = self.options.num_requests or NUM_REQUESTS[self.task]
        own = dict(text.split("=") for text in self.options.peer_requests).get(peer)
        if self.task.startswith("w1"):
            default = PEERS[peer].num_requests if peer in PEERS else None
            count = min(count, int(own)) if own is not None else min(count, default or count)
        return make_requests(self.task, count if most is None else min(count, most), self.options.traces)

    def enter(self, contender: Contender) -> None:
        """Send a contender into the rounds as it is."""
        self.chosen.append(contender)

    def choose(self, contenders: Sequence[Contender]) -> None:
        """Send the fastest of an engine's configurations into the rounds."""
        engine = contenders[0].engine
        self.scouted[engine] = list(contenders)
        if len(contenders) > 1:
            requests = self.requests(engine, self.options.scout_requests)
            for contender in contenders:
                run = contender.run(requests, self.options.timeout_s)
                print(f"{self.task}, {contender.title}, {contender.configuration}: {run}", flush=True)
        able = [one for one in contenders if one.output_tok_s is not None]
        if len(contenders) > 1 and not able:
            self.missing[engine] = str(contenders[0].runs[0].cannot_run)
            return
        best = max(able, key=_speed, default=contenders[0])
        self.chosen.append(Contender(best.engine, best.title, best.configuration, best.precision, best.command))

    def figures(self) -> dict[str, float | None]:
        """Return what each engine came to."""
        found = {one.engine: _round(_figure(self.task, one)) for one in self.chosen}
        return {**dict.fromkeys((OURS, *PEERS)), **found}

    def details(self) -> dict[str, object]:
        """Return everything that is known of each engine."""
        found: dict[str, object] = {name: {"cannot_run": reason} for name, reason in self.missing.items()}
        for one in self.chosen:
            last = next((run for run in reversed(one.runs) if run.output_tok_s is not None), None)
            found[one.engine] = {
                "configuration": one.configuration,
                **({} if last is None else _what_ran(last)),
                "rounds": [run.to_json() for run in one.runs],
                "configurations": {
                    other.configuration: other.runs[0].to_json()
                    for other in self.scouted.get(one.engine, ())
                    if other.runs
                },
            }
        return found


def _speed(contender: Contender) -> float:
    return contender.output_tok_s or 0.0


def _figure(task: str, contender: Contender) -> float | None:
    """Output tokens per second; where the output is one token, prompt tokens."""
    return contender.total_tok_s if task == "prefill" else contender.output_tok_s


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _what_ran(run: Run) -> dict[str, object]:
    return {"precision": run.precision, "version": run.version, "num_requests": run.num_requests}


def install(options: argparse.Namespace) -> tuple[dict[str, Installed], dict[str, str]]:
    """Install the peers; return those that are there, and why others are not."""
    installer = Installer(HOME, options.extra_index_url)
    there: dict[str, Installed] = {}
    missing: dict[str, str] = {}
    for name in options.peers:
        try:
            there[name] = installer.install(PEERS[name])
        except CannotInstallError as error:
            missing[name] = str(error)
            print(f"{PEERS[name].title}: {error}", flush=True)
    return there, missing


def configurations(peer: Peer, installed: Installed, given: Sequence[str]) -> tuple[list[Contender], str | None]:
    """Return the configurations that this machine can run, and why there is none."""
    wanted = {text.partition(":")[2] for text in given if text.partition(":")[0] == peer.name}
    has_bf16 = this_machine().has_bf16
    found = [
        peer_contender(peer, one, installed, HOME / "models")
        for one in peer.configurations
        if (not wanted or one.name in wanted) and (has_bf16 or not one.needs_bf16)
    ]
    return found, None if found else "the processor does not compute bfloat16"


def compare(task: str, options: argparse.Namespace, there: Mapping[str, Installed]) -> Comparison:
    """Choose configurations and run the rounds of a task, writing what there is after each."""
    comparison = Comparison(task, options)
    settings = dict(text.split("=", 1) for text in options.our_settings)
    comparison.enter(
        our_contender("default" if not settings else ", ".join(options.our_settings), settings, HOME / "models")
    )
    for name, installed in there.items():
        found, reason = configurations(PEERS[name], installed, options.configurations)
        if reason is not None:
            comparison.missing[name] = reason
        else:
            comparison.choose(found)
    pairs = [(one, comparison.requests(one.engine)) for one in comparison.chosen]
    for _ in alternate(pairs, options.rounds, options.timeout_s):
        write(comparison, options)
    return comparison


def write(comparison: Comparison, options: argparse.Namespace) -> None:
    """Put a task's figures into the results, beside those of other tasks."""
    path: Path = options.output
    machine = this_machine()
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    key = comparison.task.replace("-", "_")
    record[key] = comparison.figures()
    record |= {"machine": str(machine), "date": today()}
    record.setdefault("details", {})[key] = {
        "machine": machine.to_json(),
        "date": today(),
        "num_rounds": options.rounds,
        "engines": comparison.details(),
    }
    ordered = {name: record[name] for name in sorted(record, key=lambda name: (name == "details", name != "w1"))}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")


def show(comparison: Comparison) -> None:
    """Print a table."""
    unit = "prompt tok/s" if comparison.task == "prefill" else "output tok/s"
    table = Table(title=f"{comparison.task}, {unit}, median of the rounds")
    for column in ("engine", "configuration", unit, "rounds", "requests", "Chairlift / it", "version"):
        table.add_column(column, justify="right" if column != "engine" else "left")
    mine = _figure(comparison.task, comparison.chosen[0])
    for one in comparison.chosen:
        value = _figure(comparison.task, one)
        if value is None:
            table.add_row(one.title, one.configuration, "-", str(one.runs[-1]), "", "", "")
            continue
        last = next(run for run in reversed(one.runs) if run.output_tok_s is not None)
        ratio = "" if mine is None else f"{mine / value:.2f}"
        ran = [run.total_tok_s if comparison.task == "prefill" else run.output_tok_s for run in one.runs]
        rounds = ", ".join(f"{figure:.0f}" for figure in ran if figure is not None)
        cells = (f"{value:.1f}", rounds, str(last.num_requests), ratio, last.version or "")
        table.add_row(one.title, f"{one.configuration} ({last.precision})", *cells)
    for name, reason in comparison.missing.items():
        table.add_row(PEERS[name].title, reason[:60], "-", "", "", "", "")
    Console().print(table)


def main() -> None:
    """Install, compare, write, show."""
    options = parse()
    there, missing = install(options)
    if options.install_only:
        return
    options.output = results_file(options, FILE, is_whole=is_whole(options))
    comparisons: list[Comparison] = []
    for task in options.tasks:
        try:
            comparison = compare(task, options, there)
        except MissingDataError as error:
            print(f"{task}: {error}", flush=True)
            continue
        comparison.missing |= missing
        write(comparison, options)
        comparisons.append(comparison)
    for comparison in comparisons:
        show(comparison)


if __name__ == "__main__":
    with interruptible():
        main()
