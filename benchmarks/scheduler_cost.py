"""What the scheduler itself costs: plan plus commit of a step, adding and aborting, without any model.

    python benchmarks/scheduler_cost.py                     # every case, about a minute
    python benchmarks/scheduler_cost.py --json costs.json

Each sample is timed beside a Python loop of 10,000 iterations, and reported in units of it too: a machine that runs at
two speeds changes both alike, so that figures of different machines and other engines can be compared.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from chairlift.config.resolved import CacheConfig, SchedulerConfig
from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.scheduler import Scheduler
from chairlift.core.step_plan import StepPlan, StepResult

PAGE_SIZE = 16
NUM_SAMPLES = 200
NUM_LOOP_ITERATIONS = 10_000


def loop_s() -> float:
    """Seconds of the loop that is the unit."""
    start = time.perf_counter()
    for _ in range(NUM_LOOP_ITERATIONS):
        pass
    return time.perf_counter() - start


def result_of(plan: StepPlan) -> StepResult:
    """Any token for every row that samples."""
    num_rows = plan.num_decodes + sum(chunk.samples for chunk in plan.chunks)
    return StepResult(plan.step, (5,) * num_rows, 1_000_000)


def make_request(request_id: int, num_prompt_tokens: int, max_tokens: int) -> Request:
    """A request whose prompt is like no other's."""
    prompt = [(request_id * 31 + index) % 50_000 for index in range(num_prompt_tokens)]
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    return Request(request_id, prompt, sampling, stop_token_ids=frozenset([2]))


def decoding(num_running: int, num_waiting: int) -> Callable[[], float]:
    """Plan and commit while all slots decode, in a pool that never fills, and others wait for a slot."""
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=num_running, max_num_batched_tokens=64 * num_running, max_model_len=4096),
        CacheConfig(num_pages=80 * num_running, page_size=PAGE_SIZE),
    )
    for request_id in range(num_running + num_waiting):
        scheduler.add(make_request(request_id, 32 + request_id % PAGE_SIZE, 1000), now_ns=0)
    while len(scheduler.state.decoding) < num_running:
        step(scheduler)
    return lambda: step(scheduler)


def step(scheduler: Scheduler) -> float:
    """Seconds of one plan and one commit."""
    start = time.perf_counter()
    plan = scheduler.plan(0)
    planned = time.perf_counter() - start
    if plan is None:
        raise RuntimeError("nothing to compute: the case ran out of requests")
    result = result_of(plan)
    start = time.perf_counter()
    scheduler.commit(plan.step, result)
    return planned + time.perf_counter() - start


def cached_prompt() -> Callable[[], float]:
    """Add, plan and admit a prompt of 8,192 tokens, 7,168 of which are cached."""
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=9000, max_model_len=9000),
        CacheConfig(num_pages=40_000, page_size=PAGE_SIZE),
    )
    prefix = list(range(7168))
    sampling = SamplingParams(max_tokens=1, temperature=0.0)
    next_id = iter(range(10**9))

    def run() -> float:
        request_id = next(next_id)
        prompt = prefix + [request_id * 1024 + index for index in range(1024)]
        request = Request(request_id, prompt, sampling)
        start = time.perf_counter()
        scheduler.add(request, now_ns=0)
        plan = scheduler.plan(0)
        duration = time.perf_counter() - start
        if plan is None:
            raise RuntimeError("the prompt was not admitted")
        scheduler.commit(plan.step, result_of(plan))
        return duration

    run()
    return run


def queue_calls(num_waiting: int, policy: str) -> dict[str, Callable[[], float]]:
    """Add one, and abort one from the middle, while many wait."""
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=256, max_model_len=4096, scheduling_policy=policy),
        CacheConfig(num_pages=4000, page_size=PAGE_SIZE),
    )
    for request_id in range(num_waiting):
        scheduler.add(make_request(request_id, 32, 100), now_ns=request_id)
    new_ids = iter(range(num_waiting, 10**9))
    old_ids = iter(range(num_waiting // 2, num_waiting))

    def add() -> float:
        request = make_request(next(new_ids), 32, 100)
        start = time.perf_counter()
        scheduler.add(request, now_ns=num_waiting)
        return time.perf_counter() - start

    def abort() -> float:
        request_id = next(old_ids)
        start = time.perf_counter()
        scheduler.abort(request_id)
        return time.perf_counter() - start

    return {
        f"add, {num_waiting:,} waiting, {policy}": add,
        f"abort, {num_waiting:,} waiting, {policy}": abort,
    }


def cases(policies: list[str]) -> dict[str, Callable[[], Callable[[], float]]]:
    """Name -> what builds the case and returns one sample's call."""
    table: dict[str, Callable[[], Callable[[], float]]] = {}
    for running in (64, 256, 1024):
        table[f"step, {running:,} running"] = lambda n=running: decoding(n, 0)
    for waiting in (10_000, 100_000):
        name = f"step, 256 running, {waiting:,} waiting"
        table[name] = lambda n=waiting: decoding(256, n)
    table["prompt of 8,192 tokens, 7,168 cached"] = cached_prompt
    for policy in policies:
        for name in queue_calls(0, policy):
            call = name.split(",")[0]
            full = f"{call}, 100,000 waiting, {policy}"
            table[full] = lambda p=policy, f=full: queue_calls(100_000, p)[f]
    return table


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", default=["fcfs", "priority", "shortest"])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    table = Table(title="Scheduler cost")
    for column in ("case", "min us", "median us", "min loops", "median loops"):
        table.add_column(column, justify="left" if column == "case" else "right")
    figures: dict[str, dict[str, float]] = {}
    for name, build in cases(options.policies).items():
        sample = build()
        pairs = [(sample(), loop_s()) for _ in range(NUM_SAMPLES)]
        costs, loops = [cost for cost, _ in pairs], [loop for _, loop in pairs]
        ratios = [cost / loop for cost, loop in pairs]
        figures[name] = {
            "min_us": min(costs) * 1e6,
            "median_us": median(costs) * 1e6,
            "min_loops": min(costs) / min(loops),
            "median_loops": median(ratios),
        }
        row = figures[name]
        table.add_row(
            name,
            f"{row['min_us']:.1f}",
            f"{row['median_us']:.1f}",
            f"{row['min_loops']:.3f}",
            f"{row['median_loops']:.3f}",
        )
        if options.json:
            options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    Console().print(table)


if __name__ == "__main__":
    main()
