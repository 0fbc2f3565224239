"""Latencies over HTTP: vLLM's server and Chairlift's, alternately, with W1 as a Poisson process.

    python -m benchmarks.peers.latency                        # at 2 and 3 requests a second, three rounds
    python -m benchmarks.peers.latency --rates 0.5 --rounds 1 --num-requests 16

One client, that of ``chairlift bench serve``, sends the same requests at the same moments to both; it runs on the same
cores. vLLM runs in the precision that ``--precision`` names. ``python -m benchmarks.peers --install-only`` goes before.
Fewer rounds, rates or requests are kept in ``build/benchmarks``, unless ``--publish`` says otherwise.
"""

import argparse
import json
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.machine import this_machine, today
from benchmarks.over_http.served import Server, ServerProcess, free_port
from benchmarks.over_http.w1 import latencies_ms, output_tok_s, send
from benchmarks.peers.catalogue import PEERS
from benchmarks.peers.install import Installer
from benchmarks.peers.models import model_path
from benchmarks.peers.run_vllm import dtype, environment
from benchmarks.publishing import add_publishing, results_file
from benchmarks.tasks import ROOT, make_requests
from chairlift.config.model_source import EMBEDDED_MODEL_NAME

FILE = "peers_latency.json"
HOME = ROOT / ".peers"
NUM_SLOTS = 64
RATES_PER_S = (2.0, 3.0)
NUM_ROUNDS = 3
NUM_REQUESTS = 128
_START_TIMEOUT_S = 600


def vllm_server(precision: str) -> ServerProcess:
    """Start vLLM's server."""
    peer = PEERS["vllm"]
    form = next(one.form for one in peer.configurations if one.precision == precision)
    port = free_port()
    python, cache = Installer(HOME).install(peer).python, HOME / "models"
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(model_path(form, cache).resolve()), "--served-model-name", EMBEDDED_MODEL_NAME]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", dtype(precision)]
    command += ["--max-model-len", "2048", "--max-num-seqs", str(NUM_SLOTS), "--no-enable-prefix-caching"]
    return ServerProcess(command, port, _START_TIMEOUT_S, environment(cache.resolve(), python.parents[1]))


def our_server(precision: str) -> ServerProcess:
    """Start Chairlift's server as it is if nobody says otherwise."""
    del precision
    return Server({"max_num_seqs": NUM_SLOTS}, ["--no-enable-prefix-caching"])


SERVERS = {"chairlift": our_server, "vllm": vllm_server}


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES_PER_S), help="requests per second")
    parser.add_argument("--rounds", type=int, default=NUM_ROUNDS)
    parser.add_argument("--num-requests", type=int, default=NUM_REQUESTS)
    parser.add_argument(
        "--precision", choices=["f32", "bf16", "int8"], default="bf16" if this_machine().has_bf16 else "f32"
    )
    add_publishing(parser, "--output")
    options = parser.parse_args()
    enough = options.rounds >= NUM_ROUNDS and options.num_requests >= NUM_REQUESTS
    path = results_file(options, FILE, is_whole=enough and set(options.rates) == set(RATES_PER_S))
    requests = make_requests("w1", options.num_requests)
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for number in range(1, options.rounds + 1):
        for name, start in SERVERS.items():
            for rate in options.rates:
                with start(options.precision) as server:
                    finished = send(server.url, requests, rate)
                figures = {**latencies_ms(finished), "output_tok_s": output_tok_s(finished)}
                for figure, value in figures.items():
                    found.setdefault(f"{rate:g}", {}).setdefault(name, {}).setdefault(figure, []).append(value)
                print(f"round {number}: {name} at {rate:g}/s: {figures}", flush=True)
    record = {"machine": str(this_machine()), "date": today(), "vllm": PEERS["vllm"].requirement}
    record |= {"vllm_precision": options.precision, "num_requests": options.num_requests, "rates": found}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    table = Table(title=f"W1, {options.num_requests} requests, medians of {options.rounds} rounds, ms")
    for column in ("requests/s", "server", "TTFT p50", "p99", "ITL p50", "p99", "output tok/s"):
        table.add_column(column, justify="right")
    for rate, servers in found.items():
        for name, figures in servers.items():
            table.add_row(rate, name, *(f"{median(values):.0f}" for values in figures.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
