"""Fills the tables of ``docs/performance.md`` and ``README.md`` from the files of results.

    python -m benchmarks.performance_page            # write
    python -m benchmarks.performance_page --check    # status 1 if a table is not what the files say

Knows nothing of how figures come about. A table stands between two comments, ``<!-- begin NAME -->`` and
``<!-- end NAME -->``; nothing between them is written by hand.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import Machine

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ("README.md", "docs/performance.md")

Record = Mapping[str, Any]

ENGINES = {
    "chairlift": "Chairlift",
    "vllm": "vLLM, CPU build",
    "openvino": "OpenVINO GenAI, continuous batching",
    "llamacpp": "llama.cpp, server",
    "transformers_static": "transformers, static batches of 16",
}
TASKS = {
    "w1": ("W1", "output tok/s"),
    "w1_256": ("W1, twice as many requests", "output tok/s"),
    "stream": ("One stream: 32 prompt tokens, 256 output tokens", "output tok/s"),
    "prefill": ("A prompt of 4,096 tokens", "prompt tok/s"),
    "gsm8k": ("GSM8K behind 8 shots, 96 output tokens, prefix caching", "output tok/s"),
}
_WORKLOADS = {"w1": "W1", "uniform": "uniform, same mean", "article": "the article's, divided by 4"}


def peers(results: Path) -> str:
    """Every task that engines were compared on."""
    record = _read(results / "peers.json")
    return "\n\n".join(_peer_table(record, task) for task in TASKS if task in record) or _missing("make bench-peers")


def peers_w1(results: Path) -> str:
    """W1 alone."""
    record = _read(results / "peers.json")
    return _peer_table(record, "w1") if "w1" in record else _missing("make bench-peers")


def latency(results: Path) -> str:
    """Chairlift's server and vLLM's, at rates of requests."""
    record = _read(results / "peers_latency.json")
    rows: list[tuple[str, ...]] = []
    for rate, servers in record.get("rates", {}).items():
        for name, found in servers.items():
            rows.append((rate, ENGINES[name], *(_number(median(values)) for values in found.values())))
    if not rows:
        return _missing("python -m benchmarks.peers.latency")
    columns = (">requests/s", "Server", ">TTFT p50, ms", ">p99", ">ITL p50, ms", ">p99", ">output tok/s")
    said = f"{record['num_requests']} requests, vLLM in {record['vllm_precision']}"
    return f"{record['machine']}, {record['date']}; {said}:\n\n{_table(columns, rows)}"


def figures(results: Path) -> str:
    """Our own figures."""
    record = _read(results / "figures.json")
    rows: list[tuple[str, ...]] = []
    places: set[tuple[str, str]] = set()
    for section in record.values():
        places.add((section["machine"], section["date"]))
        for one in section["figures"]:
            runs = ", ".join(map(_number, one["runs"])) if len(one.get("runs", ())) > 1 else ""
            verdict = {None: "", True: "holds", False: "missed"}[one.get("holds")]
            wanted = f"{one['wanted']}: {verdict}" if one.get("wanted") else ""
            command = f"`{one['command']}`"
            rows.append((one["what"], f"{_number(one['value'])} {one['unit']}", runs, wanted, command))
    if not rows:
        return _missing("make bench")
    said = "; ".join(f"{machine}, {date}" for machine, date in sorted(places, key=lambda place: place[1]))
    return f"{said}.\n\n" + _table(("Figure", ">Median", ">Runs", "Wanted", "Command"), rows)


def batching(results: Path) -> str:
    """Continuous against static batching."""
    reports: Any = _read(results / "batching.json") or []
    rows: list[tuple[str, ...]] = []
    for new, old in zip(reports[::2], reports[1::2], strict=True):
        speeds = [report["output_tokens_per_s"] for report in (new, old)]
        used = [f"{report['slot_utilization']:.0%}" for report in (new, old)]
        cells = (str(new["max_num_seqs"]), str(new["num_requests"]), *(f"{speed:.0f}" for speed in speeds))
        rows.append((_WORKLOADS[new["workload"]], *cells, f"{speeds[0] / speeds[1]:.1f}", *used))
    columns = (">slots", ">requests", ">continuous, output tok/s", ">static", ">times", ">slots useful", ">static")
    return _table(("workload", *columns), rows)


BLOCKS: Mapping[str, Callable[[Path], str]] = {
    "peers": peers,
    "peers-w1": peers_w1,
    "peers-latency": latency,
    "figures": figures,
    "batching": batching,
}
"""Name between the comments -> (folder of results) -> text."""


def filled(text: str, results: Path) -> str:
    """Return a page with its tables made anew."""
    for name, make in BLOCKS.items():
        pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(\n?<!-- end {name} -->)", re.DOTALL)
        if pattern.search(text):
            block = f"\n{make(results)}\n\n"
            text = pattern.sub(lambda found, block=block: found[1] + block + found[2].lstrip("\n"), text)
    return text


def _peer_table(record: Record, task: str) -> str:
    title, unit = TASKS[task]
    details = record.get("details", {}).get(task, {})
    engines: Record = details.get("engines", {})
    mine = record[task]["chairlift"]
    rows: list[tuple[str, ...]] = []
    for name, label in ENGINES.items():
        speed, engine = record[task].get(name), engines.get(name, {})
        if speed is None:
            if "cannot_run" in engine:
                rows.append((label, _short(engine["cannot_run"]), "", "", "", ""))
            continue
        runs = [run["total_tok_s" if task == "prefill" else "output_tok_s"] for run in engine.get("rounds", ())
                if "output_tok_s" in run]  # fmt: skip
        ran = f"{engine.get('configuration', '')} ({engine.get('precision', '')})"
        ratio = "" if name == "chairlift" or mine is None else f"{mine / speed:.2f}"
        cells = (str(engine.get("num_requests", "")), f"{speed:.0f}", ", ".join(f"{run:.0f}" for run in runs), ratio)
        rows.append((f"{label} {_version(engine)}".strip(), ran, *cells))
    columns = ("Configuration", ">Requests", f">{unit}", ">Rounds", ">Chairlift / it")
    # A section keeps its machine when others are measured on another one.
    measured_on = details.get("machine")
    machine = (
        Machine(**{**measured_on, "flags": tuple(measured_on["flags"])}) if measured_on else record.get("machine", "")
    )
    place = f"{title}. {machine}, {details.get('date', record.get('date', ''))}:"
    return f"{place}\n\n{_table(('Engine', *columns), rows)}"


def _version(engine: Record) -> str:
    return str(engine.get("version") or "").partition(",")[0]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; columns whose names begin with ``>`` are aligned to the right."""
    lines = [f"| {' | '.join(column.lstrip('>') for column in columns)} |"]
    lines.append(f"| {' | '.join('---:' if column.startswith('>') else '---' for column in columns)} |")
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _short(reason: str) -> str:
    first = reason.strip().splitlines()[-1] if reason.strip() else ""
    return f"cannot run: {first[:100]}"


def _missing(command: str) -> str:
    return f"Not measured yet: `{command}`."


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def main() -> None:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    stale: list[str] = []
    for name in PAGES:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        fresh = filled(text, RESULTS)
        if fresh != text:
            stale.append(name)
            if not options.check:
                path.write_text(fresh, encoding="utf-8")
    if stale:
        print(f"{'stale' if options.check else 'written'}: {', '.join(stale)}")
    if stale and options.check:
        sys.exit("make performance-page writes them")


if __name__ == "__main__":
    main()
