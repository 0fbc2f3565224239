"""On device sheets: each way of preempting has its case, and ``auto`` is as good as the best in all of them."""

import heapq
from dataclasses import dataclass
from functools import cache

import pytest

from chairlift.config.resolved import CacheConfig, SchedulerConfig
from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.scheduler import Scheduler
from chairlift.core.stepper import Stepper
from chairlift.simulator.clock import Clock
from chairlift.simulator.content_keys import ContentKeyer
from chairlift.simulator.executor import SimulatedExecutor
from chairlift.simulator.latency.catalogue import find_latency_model
from tests.simulated import PlanLog

NS_PER_MS = 1_000_000
MODES = ("recompute", "swap", "tail", "auto")


@dataclass(frozen=True)
class Case:
    """Batch requests that run when urgent ones arrive, one after another."""

    machine: str
    num_pages: int
    max_num_seqs: int
    batch: tuple[int, int, int]
    """How many, their prompts, their outputs."""
    urgent: tuple[int, int, int]
    first_ms: int
    every_ms: int
    num_prefixes: int = 0
    """Prompts that urgent requests share, but for their last tokens, in turn; 0: all are different."""
    caching: bool = True
    admission: str = "reserve-prompt"


CASES = {
    # Two prompts of 20,000 tokens fill the pool, and whoever comes needs nearly all of it.
    "swap": Case("llama-3.1-70b@h100x4", 2560, 8, (2, 20_000, 100), (4, 38_000, 2), 3000, 4000),
    # Two prompts of 60,000 tokens fill the pool; whoever comes needs a few pages. Nothing is found again.
    "tail": Case(
        "llama-3.1-8b@h100", 7536, 8, (2, 60_000, 250), (20, 300, 4), 5500, 180, caching=False, admission="reserve-full"
    ),
    # Four slots are taken by 60,000 tokens each. Whoever comes needs a slot, and one of four prompts of 250 pages to be
    # cached: there is room for these only if those who wait for a slot give up some of their pages.
    "recompute": Case("llama-3.1-8b@h100", 15_825, 4, (4, 60_000, 100), (60, 4_000, 4), 10_800, 60, num_prefixes=4),
}


@cache
def run(name: str, mode: str) -> float:
    """Return the seconds from the first urgent arrival until everything has ended."""
    case = CASES[name]
    latency = find_latency_model(case.machine)
    facts = latency.facts
    assert facts.kv_bytes_per_token is not None
    clock = Clock()
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_seqs=case.max_num_seqs,
            max_num_batched_tokens=8192,
            max_model_len=100_000,
            preemption_mode=mode,
            max_preemptions=1000,
            admission=case.admission,
        ),
        CacheConfig(
            num_pages=case.num_pages,
            num_host_pages=4 * case.num_pages,
            page_bytes=16 * facts.kv_bytes_per_token,
            host_bytes_per_s=facts.host_bytes_per_s,
            enable_prefix_caching=case.caching,
        ),
        keyer=ContentKeyer(),
    )
    stepper = Stepper(scheduler, SimulatedExecutor(latency, 16, clock, PlanLog()))
    arrivals: list[tuple[int, int, Request]] = []
    for tier, (count, prompt, output) in ((1, case.batch), (0, case.urgent)):
        for number in range(count):
            request_id = len(arrivals)
            sampling = SamplingParams(max_tokens=output, ignore_eos=True, temperature=0.0)
            due_ms = 0 if tier else case.first_ms + number * case.every_ms
            content = request_id + 1
            if tier == 0 and case.num_prefixes:
                content = 1_000 + number % case.num_prefixes
            request = Request(request_id, [content] * (prompt - 1) + [request_id + 1], sampling, priority=tier)
            heapq.heappush(arrivals, (due_ms * NS_PER_MS, request_id, request))
    while arrivals or scheduler.has_unfinished:
        while arrivals and arrivals[0][0] <= clock.now_ns:
            scheduler.add(heapq.heappop(arrivals)[2], clock.now_ns)
        if stepper.step(clock.now_ns) is None:
            clock.advance_to(arrivals[0][0])
    assert scheduler.stats().preemptions_total > 0
    return clock.now_ns / 1e9 - case.first_ms / 1e3


@pytest.mark.parametrize(
    ("name", "best", "worse"),
    [
        ("swap", "swap", ("recompute", "tail")),
        ("tail", "tail", ("recompute", "swap")),
        ("recompute", "recompute", ("swap", "tail")),
    ],
)
def test_each_way_has_its_case(name, best, worse):
    for mode in worse:
        assert run(name, mode) > 1.3 * run(name, best), mode


@pytest.mark.parametrize("name", CASES)
def test_auto_is_as_good_as_the_best(name):
    best = min(run(name, mode) for mode in MODES if mode != "auto")
    assert run(name, "auto") <= 1.05 * best
