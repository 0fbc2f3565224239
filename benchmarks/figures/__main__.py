"""Our side of the figures on ``docs/performance.md``: one table and one file.

    python -m benchmarks.figures                                  # everything: about an hour on two cores
    python -m benchmarks.figures --sections w1 stream --num-runs 1
    python -m benchmarks.figures --num-requests 16 --num-runs 1   # whether it works

What measures less than all of it is kept in ``build/benchmarks``, and the published figures stay as they are, unless
``--publish`` says otherwise. Sections that are not measured keep their figures in the file, with their own machine and
date. Nothing else should run meanwhile.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.figures import offline, online
from benchmarks.figures.figure import Figure, show
from benchmarks.figures.offline import Extent
from benchmarks.machine import this_machine, today
from benchmarks.peers.rounds import interruptible
from benchmarks.publishing import add_publishing, results_file
from benchmarks.tasks import ROOT
from chairlift import __version__

FILE = "figures.json"
NUM_RUNS = 3
NUM_REQUESTS = 128
SECTIONS: Mapping[str, Callable[[Extent], Iterator[Figure]]] = {
    "w1": offline.throughput,
    "stream": offline.one_stream,
    "prefill": offline.long_prompt,
    "gsm8k": offline.shared_prefix,
    "online": online.over_http,
    "latency": online.over_time,
    "start": online.start,
    "memory": online.memory,
}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", nargs="+", default=list(SECTIONS), choices=list(SECTIONS))
    parser.add_argument("--num-runs", type=int, default=NUM_RUNS)
    parser.add_argument("--num-requests", type=int, default=NUM_REQUESTS, help="of W1 and GSM8K")
    parser.add_argument("--timeout-s", type=float, default=1800, help="for one run")
    parser.add_argument("--traces", type=Path, help="folder with the files of GSM8K")
    add_publishing(parser, "--json")
    return parser.parse_args(arguments)


def is_whole(options: argparse.Namespace) -> bool:
    """Whether everything is measured, as often and with as many requests as if nobody had said anything."""
    enough = options.num_runs >= NUM_RUNS and options.num_requests >= NUM_REQUESTS
    return enough and set(options.sections) == set(SECTIONS)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write after each section, print."""
    options = parse(arguments)
    path = results_file(options, FILE, is_whole=is_whole(options))
    extent = Extent(
        options.num_runs, options.num_requests, options.timeout_s, ROOT / ".peers" / "models", options.traces
    )
    measured: list[Figure] = []
    for name in options.sections:
        figures = list(SECTIONS[name](extent))
        measured += figures
        if figures:
            write(path, name, figures)
    Console().print(show(measured))


def write(path: Path, section: str, figures: list[Figure]) -> None:
    """Put a section's figures into the file."""
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    record[section] = {
        "machine": str(this_machine()),
        "date": today(),
        "version": __version__,
        "figures": [{name: value for name, value in vars(one).items() if value not in ("", None)} for one in figures],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    ordered = {name: record[name] for name in SECTIONS if name in record}
    path.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with interruptible():
        main()
