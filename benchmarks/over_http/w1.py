"""W1 over HTTP: the very requests of ``chairlift bench offline``, all at once or over time.

Knows nothing of servers and of what is wanted.
"""

import asyncio

from benchmarks.over_http.served import duration_s, serve
from benchmarks.tasks import Requests
from chairlift.benchmark.calls import Exchange, GivenPrompts
from chairlift.benchmark.runner import FinishedRun
from chairlift.benchmark.summary import summarize
from chairlift.workload.distributions import Fixed
from chairlift.workload.streams import Stream, Workload

NUM_WARMUPS = 4
NUM_WARMUP_TOKENS = 4
PERCENTS = (50, 99)


def send(url: str, requests: Requests, rate_per_s: float | None = None) -> FinishedRun:
    """Warm up, and send the requests: all at once, or as a Poisson process."""
    few = requests.items[:NUM_WARMUPS]
    warmup = Requests("warmup", [(prompt[::-1], NUM_WARMUP_TOKENS) for prompt, _ in few])
    asyncio.run(serve(url, _arrivals(warmup, None), maker=_prompts(warmup)))
    return asyncio.run(serve(url, _arrivals(requests, rate_per_s), maker=_prompts(requests)))


def output_tok_s(finished: FinishedRun) -> float:
    """Output tokens per second from the start to the last answer."""
    return sum(record.tally.num_tokens for record in finished.records) / duration_s(finished)


def latencies_ms(finished: FinishedRun) -> dict[str, float]:
    """Percentiles of the times to first token and of the gaps between tokens, by ``ttft_p50`` and so on."""
    total = summarize(finished, _arrivals(Requests("", []), None).streams).total
    found: dict[str, float] = {}
    for name in ("ttft", "itl"):
        distribution = total.latencies[f"{name}_ms"]
        if distribution is None:
            raise RuntimeError("nothing was answered")
        found |= {f"{name}_p{percent}": distribution.at(percent) for percent in PERCENTS}
    return found


def _prompts(requests: Requests) -> GivenPrompts:
    return GivenPrompts([Exchange((tuple(prompt),), (), num_tokens) for prompt, num_tokens in requests.items])


def _arrivals(requests: Requests, rate_per_s: float | None) -> Workload:
    stream = Stream(name="w1", output_tokens=Fixed(1), num_requests=len(requests.items), rate_per_s=rate_per_s)
    return Workload((stream,), 7)
