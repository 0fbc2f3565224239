"""Five long prompts at once, each of 60 % of the KV memory, in the middle of a steady load of chat requests.

    python -m benchmarks.claims.long_prompts               # two minutes of simulated time at three loads
    python -m benchmarks.claims.long_prompts --load 80

An 8B model on an H100, from its data sheet, with 8 GiB of KV memory. Only one of the prompts fits at a time, and what
the others lack must not be kept for them while they could not start anyway. Claimed:

- useful tokens per second, prompt and output tokens that had not been computed before, over any 10 s in the minute
  after the burst are at least 80 % of those of the steady load before it;
- nobody starves: every request ends.

The loads are parts of what the machine can serve. At all of it (``--load 100``) this cannot be had: a prompt that holds
60 % of the memory leaves too little for a batch that fills the machine.
"""

from dataclasses import asdict, dataclass

from benchmarks.claims.chat import CHAT
from benchmarks.claims.simulated import Run, parse_options, show, simulate, write_json
from chairlift.workload.arrivals import RampPoint
from chairlift.workload.distributions import Fixed
from chairlift.workload.streams import Stream

NUM_LONG = 5
POOL_PART = 0.6
LEAST_PART = 0.8
_KV_CACHE = "8GiB"
_WINDOW_S = 10.0
_AFTER_S = 60.0
"""The chat goes on so long after the burst."""
_OUTPUT_TOKENS = 256
_STEADY_CV = 0.25
"""Chat requests come at nearly equal gaps, so that a window with few arrivals is not taken for one with little work."""


@dataclass(frozen=True)
class Figures:
    """What came out of one load."""

    load_percent: int
    """Of the chat requests per second that the machine could serve."""
    long_prompt_tokens: int
    steady_tokens_per_s: float
    lowest_part: float
    """Useful tokens per second of the worst window over those of the steady load."""
    lowest_at_s: float
    """When that window began, after the burst."""
    long_ttft_max_s: float
    long_end_s: float
    """When the last of the five had ended, after the burst."""
    chat_ttft_p99_s: float
    num_preemptions: int
    recomputed_part: float
    """Of all computed tokens."""
    num_unfinished: int

    @property
    def holds(self) -> bool:
        """Whether what is claimed is so."""
        return self.lowest_part >= LEAST_PART and self.num_unfinished == 0


def capacity(seed: int = 0, num_requests: int = 1200) -> float:
    """Return the chat requests per second that the machine can serve with this memory."""
    run = simulate("", [Stream(name="chat", num_requests=num_requests, **CHAT)], seed=seed, kv_cache_memory=_KV_CACHE)
    end_s = run.summary.simulated_s
    num_tokens = sum(step.num_useful for step in run.meter.steps)
    return run.meter.useful_per_s(0.2 * end_s, 0.7 * end_s) * num_requests / num_tokens


def measure(load_percent: int, capacity_per_s: float, burst_s: float = 60.0, seed: int = 0, **settings: str) -> Figures:
    """Let the burst come after so many seconds of steady load."""
    rate = load_percent / 100 * capacity_per_s
    num_pages = simulate("", [Stream(name="one", output_lengths=(1,))], kv_cache_memory=_KV_CACHE).summary.num_pages
    long_tokens = int(POOL_PART * num_pages * 16)
    chat = Stream(
        name="chat", tenant="chat", duration_s=burst_s + _AFTER_S, rate_per_s=rate, burstiness_cv=_STEADY_CV, **CHAT
    )
    long = Stream(
        name="long",
        tenant="long",
        num_requests=NUM_LONG,
        ramp=(RampPoint(burst_s, 1000.0),),
        prompt_tokens=Fixed(long_tokens),
        output_tokens=Fixed(_OUTPUT_TOKENS),
    )
    run = simulate(f"{load_percent} %", [chat, long], seed=seed, kv_cache_memory=_KV_CACHE, **settings)
    return _figures(run, load_percent, long_tokens, burst_s)


def _figures(run: Run, load_percent: int, long_tokens: int, burst_s: float) -> Figures:
    meter, total = run.meter, run.summary.total
    steady = meter.useful_per_s(burst_s / 4, burst_s)
    long_end_s = max(step.start_ns for step in meter.steps if step.served("long")) / 1e9
    windows = [
        (meter.useful_per_s(burst_s + delay_s, burst_s + delay_s + _WINDOW_S) / steady, delay_s)
        for delay_s in range(int(_AFTER_S - _WINDOW_S) + 1)
    ]
    lowest_part, lowest_at_s = min(windows)
    long = run.stream("long").latencies.ttft_ms
    computed = sum(step.num_useful + step.num_recomputed for step in meter.steps)
    return Figures(
        load_percent,
        long_tokens,
        steady,
        lowest_part,
        lowest_at_s,
        float("inf") if long is None else long.maximum / 1000,
        long_end_s - burst_s,
        run.ttft_ms("chat", 99.0) / 1000,
        total.num_preemptions,
        sum(step.num_recomputed for step in meter.steps) / computed,
        total.num_arrived - total.num_finished,
    )


def main() -> None:
    """Measure and print."""
    options = parse_options(__doc__, load=0, seed=0)
    capacity_per_s = capacity(options.seed)
    found = [
        measure(load, capacity_per_s, seed=options.seed) for load in ((options.load,) if options.load else (50, 70, 85))
    ]
    columns = (
        "load", "steady tok/s", "worst 10 s", "at, s", "long TTFT max, s", "last long end, s", "chat TTFT p99, s",
        "preempted", "recomputed",
    )  # fmt: skip
    rows = [
        (
            f"{row.load_percent} %",
            f"{row.steady_tokens_per_s:.0f}",
            f"{row.lowest_part:.1%}",
            f"{row.lowest_at_s:.0f}",
            f"{row.long_ttft_max_s:.1f}",
            f"{row.long_end_s:.1f}",
            f"{row.chat_ttft_p99_s:.1f}",
            str(row.num_preemptions),
            f"{row.recomputed_part:.1%}",
        )
        for row in found
    ]
    show(f"{NUM_LONG} prompts of {found[0].long_prompt_tokens:,} tokens at once; chat at a part of "
         f"{capacity_per_s:.1f} requests per second", columns, rows)  # fmt: skip
    print("holds" if all(row.holds for row in found) else "MISSED")
    write_json(options.json, [asdict(row) for row in found])


if __name__ == "__main__":
    main()
