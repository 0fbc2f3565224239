"""Continuous against static batching on the same engine and kernels, over workloads and slots: one table.

    python benchmarks/batching_table.py                          # everything, under an hour on two cores
    python benchmarks/batching_table.py --workloads w1 --slots 32
    python benchmarks/batching_table.py --our-settings quantization=none kv_cache_dtype=float32
    python benchmarks/batching_table.py --json results.json

Every pair of runs, continuous and static, follows directly one on the other in a process of its own each, so that the
machine's mood is the same for both. Weights and KV are in the default numbers (4 and 8 bits
for the default model) unless settings say otherwise; the table's title says in which.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

MODES = ("continuous", "static")


def measure(workload: str, slots: int, batching: str, num_requests: int, settings: list[str]) -> dict[str, Any]:
    """Run ``chairlift bench offline`` once and return its report."""
    command = [sys.executable, "-m", "chairlift", "bench", "offline", "--workload", workload]
    command += ["--num-requests", str(num_requests), "--max-num-seqs", str(slots), "--batching", batching]
    for name, value in (text.split("=", 1) for text in settings):
        command += ["--" + name.replace("_", "-"), value]
    done = subprocess.run([*command, "--json", "-"], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=["w1", "uniform", "article"])
    parser.add_argument("--slots", nargs="+", type=int, default=[8, 32, 64, 128])
    parser.add_argument("--num-requests", type=int, default=128)
    parser.add_argument("--our-settings", nargs="+", default=[], metavar="NAME=VALUE", help="instead of the defaults")
    parser.add_argument("--json", type=Path, help="also write every report here")
    options = parser.parse_args()
    table = Table()
    for column in ("workload", "slots", "continuous", "static", "ratio", "slots useful", "slots useful, static"):
        table.add_column(column, justify="right")
    reports: list[dict[str, Any]] = []
    for workload in options.workloads:
        for slots in options.slots:
            pair = [measure(workload, slots, mode, options.num_requests, options.our_settings) for mode in MODES]
            reports.extend(pair)
            table.title = f"Output tokens per second, {options.num_requests} requests; {pair[0]['description']}"
            new, old = (report["output_tokens_per_s"] for report in pair)
            used = [f"{report['slot_utilization']:.0%}" for report in pair]
            table.add_row(workload, str(slots), f"{new:.0f}", f"{old:.0f}", f"{new / old:.1f}", *used)
            if options.json:
                options.json.write_text(json.dumps(reports, indent=2) + "\n", encoding="utf-8")
    Console().print(table)


if __name__ == "__main__":
    main()
