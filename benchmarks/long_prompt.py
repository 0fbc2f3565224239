"""A long prompt among streams, on the real model: what it does to their gaps, with and without chunks.

    python benchmarks/long_prompt.py                        # all three tables; about half an hour on two cores
    python benchmarks/long_prompt.py --tables gaps --repeats 1

Tables:

- gaps: the longest gap between two tokens of each of 16 streams while a prompt of 6,000 tokens is computed, in chunks
  of 256 tokens and whole; the median over the streams, and over the repeats.
- target: the same prompt under ``--target-tpot-ms`` at four times a plain decode step: 99th percentile of the gaps
  against the target, and prefill speed against what the target leaves for it.
- cost: time to first token of prompts of up to 2,000 tokens that are alone, in chunks and whole.
"""

import argparse
import gc
import itertools
import json
import time
from collections import defaultdict
from pathlib import Path
from statistics import median, quantiles

from rich.console import Console
from rich.table import Table

from chairlift.config.load import load_settings
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.build import build_engine, locate_model
from chairlift.engine.messages import AddRequest, Choice

NUM_STREAMS = 16
NUM_LONG_TOKENS = 6000
CHUNK_TOKENS = 256
_NS_PER_S = 1e9


class Engine:
    """An engine in this process, and when each token of each request came."""

    def __init__(self, **settings: object) -> None:
        chosen = load_settings({"max_model_len": 8192, "kv_cache_memory": "2GiB", "max_num_seqs": 32, **settings})
        built = build_engine(chosen, locate_model(chosen))
        gc.collect()
        gc.freeze()  # as servers do: collections then pass by what lives as long as the engine
        self._runner, self._executor = built.runner, built.executor
        self._num_requests = 0
        self.times_s: dict[int, list[float]] = defaultdict(list)
        self.arrivals_s: dict[int, float] = {}

    def add(self, num_prompt_tokens: int, max_tokens: int) -> int:
        """Queue a prompt that is like no other."""
        self._num_requests += 1
        request_id = self._num_requests
        message = AddRequest(
            choices=(Choice(request_id, 0),),
            prompt_token_ids=tuple(1000 + (request_id * 7919 + i * 31) % 40_000 for i in range(num_prompt_tokens)),
            sampling=SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True),
            stop_token_ids=frozenset(),
        )
        self.arrivals_s[request_id] = time.perf_counter()
        verdict = self._runner.add(message, time.monotonic_ns())
        if verdict.error is not None:
            raise RuntimeError(verdict.message)
        return request_id

    def step(self) -> None:
        """Run one step."""
        outcome = self._runner.step(time.monotonic_ns())
        if outcome is None:
            raise RuntimeError("nothing to run")
        now_s = time.perf_counter()
        for update in outcome.updates:
            self.times_s[update.request_id].extend([now_s] * len(update.token_ids))

    def start_streams(self) -> list[int]:
        """Queue streams that outlive the long prompt, and run until each has a few tokens."""
        streams = [self.add(20, 4000) for _ in range(NUM_STREAMS)]
        while min(len(self.times_s[stream]) for stream in streams) < 8:
            self.step()
        return streams

    def run_until_first_token(self, request_id: int) -> float:
        """Step until the request has a token; seconds since its arrival."""
        while not self.times_s[request_id]:
            self.step()
        return self.times_s[request_id][0] - self.arrivals_s[request_id]

    def gaps_s(self, request_id: int, since_s: float) -> list[float]:
        """Gaps that end after ``since_s``."""
        times = self.times_s[request_id]
        return [later - earlier for earlier, later in itertools.pairwise(times) if later > since_s]

    def close(self) -> None:
        """Free the model."""
        self._executor.close()
        gc.unfreeze()


def long_prompt_among_streams(**settings: object) -> tuple[float, float, list[float]]:
    """Median over the streams of the longest gap, seconds of the prefill, and all gaps meanwhile."""
    engine = Engine(**settings)
    streams = engine.start_streams()
    start_s = time.perf_counter()
    ttft_s = engine.run_until_first_token(engine.add(NUM_LONG_TOKENS, 2))
    engine.step()  # a stream that waited for the whole prompt ends its gap here
    gaps = [engine.gaps_s(stream, start_s) for stream in streams]
    engine.close()
    return median(max(of_stream) for of_stream in gaps), ttft_s, [gap for of_stream in gaps for gap in of_stream]


def measure_gaps(repeats: int, figures: dict[str, float]) -> Table:
    """Longest gaps in chunks and whole, alternately."""
    budget = CHUNK_TOKENS + NUM_STREAMS + 16
    chunked: list[tuple[float, float, list[float]]] = []
    whole: list[tuple[float, float, list[float]]] = []
    for _ in range(repeats):
        chunked.append(
            long_prompt_among_streams(max_num_batched_tokens=budget, long_prefill_token_threshold=CHUNK_TOKENS)
        )
        whole.append(long_prompt_among_streams(max_num_batched_tokens=budget, enable_chunked_prefill=False))
    table = Table(title=f"{NUM_LONG_TOKENS}-token prompt among {NUM_STREAMS} streams, {repeats} repeats")
    for column in ("prompt", "longest gap, s", "time to first token, s"):
        table.add_column(column, justify="right")
    for name, runs in (("chunked", chunked), ("whole", whole)):
        figures[f"longest_gap_{name}_s"] = median(run[0] for run in runs)
        figures[f"ttft_{name}_s"] = median(run[1] for run in runs)
        table.add_row(name, f"{figures[f'longest_gap_{name}_s']:.3f}", f"{figures[f'ttft_{name}_s']:.2f}")
    figures["gap_ratio"] = figures["longest_gap_chunked_s"] / figures["longest_gap_whole_s"]
    table.caption = f"longest gap in chunks / whole: {figures['gap_ratio']:.3f}"
    return table


def measure_target(repeats: int, figures: dict[str, float]) -> Table:
    """A target of four plain decode steps; each repeat measures the steps and the speed alone anew."""
    found = [_within_target() for _ in range(repeats)]
    table = Table(title=f"--target-tpot-ms at four plain decode steps, {repeats} repeats")
    table.add_column("figure")
    for number in range(1, repeats + 1):
        table.add_column(str(number), justify="right")
    table.add_column("median", justify="right")
    for name, text in (
        ("target_ms", "{:.0f}"),
        ("prefill_alone_tok_s", "{:.0f}"),
        ("prefill_tok_s", "{:.0f}"),
        ("prefill_speed_ratio", "{:.0%}"),
        ("p99_itl_ratio", "{:.2f}"),
    ):
        values = [one[name] for one in found]
        figures[name] = median(values)
        table.add_row(name, *map(text.format, values), text.format(figures[name]))
    table.caption = "prefill_speed_ratio: prefill_tok_s / ((1 - decode step / target) x prefill_alone_tok_s)"
    return table


def _within_target() -> dict[str, float]:
    engine = Engine(max_num_batched_tokens=2048)
    streams = engine.start_streams()
    start_s = time.perf_counter()
    for _ in range(60):
        engine.step()
    decode_s = median(gap for stream in streams for gap in engine.gaps_s(stream, start_s))
    engine.close()
    alone = Engine(max_num_batched_tokens=2048)
    free_s = alone.run_until_first_token(alone.add(NUM_LONG_TOKENS, 2))
    alone.close()
    target_s = 4 * decode_s
    _, ttft_s, gaps_s = long_prompt_among_streams(max_num_batched_tokens=2048, target_tpot_ms=target_s * 1000)
    return {
        "target_ms": target_s * 1000,
        "prefill_alone_tok_s": NUM_LONG_TOKENS / free_s,
        "prefill_tok_s": NUM_LONG_TOKENS / ttft_s,
        "prefill_speed_ratio": free_s / (1 - decode_s / target_s) / ttft_s,
        "p99_itl_ratio": quantiles(gaps_s, n=100)[98] / target_s,
    }


def measure_cost(repeats: int, figures: dict[str, float]) -> Table:
    """Prompts that are alone, in chunks and whole."""
    table = Table(title="Time to first token of a prompt that is alone, s")
    for column in ("prompt tokens", "chunks of 256", "whole", "ratio"):
        table.add_column(column, justify="right")
    engines = {
        "chunked": Engine(max_num_batched_tokens=CHUNK_TOKENS),
        "whole": Engine(max_num_batched_tokens=CHUNK_TOKENS, enable_chunked_prefill=False),
    }
    for num_tokens in (250, 500, 1000, 2000):
        times: dict[str, list[float]] = defaultdict(list)
        for _ in range(repeats):
            for name, engine in engines.items():
                times[name].append(engine.run_until_first_token(engine.add(num_tokens, 1)))
        chunked_s, whole_s = median(times["chunked"]), median(times["whole"])
        figures[f"chunking_cost_{num_tokens}"] = chunked_s / whole_s
        table.add_row(str(num_tokens), f"{chunked_s:.3f}", f"{whole_s:.3f}", f"{chunked_s / whole_s:.2f}")
    for engine in engines.values():
        engine.close()
    return table


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=["gaps", "target", "cost"], choices=["gaps", "target", "cost"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    console = Console()
    for name in options.tables:
        match name:
            case "gaps":
                console.print(measure_gaps(options.repeats, figures))
            case "target":
                console.print(measure_target(options.repeats, figures))
            case _:
                console.print(measure_cost(options.repeats, figures))
        if options.json:
            options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
