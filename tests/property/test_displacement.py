"""Who gives way makes room for somebody who then starts: counted over random loads, since no step can foresee all."""

import random

from chairlift.config.resolved import CacheConfig, SchedulerConfig, TenantConfig
from chairlift.core.events import Admitted, Preempted
from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.scheduler import Scheduler
from chairlift.core.step_plan import StepResult
from chairlift.errors import RequestTooLongError
from tests.harness import EventLog

NUM_STEPS = 200
MAX_PART_IN_VAIN = 0.01


def draw_scheduler(draw: random.Random, log: EventLog) -> Scheduler:
    page_size, num_pages, num_slots = draw.choice([4, 16]), draw.choice([20, 40, 120]), draw.choice([2, 6, 16])
    mode = draw.choice(["recompute", "swap", "auto", "tail"])
    return Scheduler(
        SchedulerConfig(
            max_num_seqs=num_slots,
            max_num_batched_tokens=num_slots + page_size * draw.choice([2, 8, 64]),
            max_model_len=page_size * num_pages,
            scheduling_policy=draw.choice(["fcfs", "shortest", "preemptive"]),
            tenant_order=draw.choice(["none", "fair"]),
            admission=draw.choice(["optimistic", "reserve-prompt", "reserve-full"]),
            watermark=draw.choice([0.0, 0.0, 0.05]),
            enable_chunked_prefill=draw.random() < 0.9,
            guaranteed_share=draw.choice([0.0, 0.05, 0.2]),
            max_equal_wait_ms=10,
            quantum_tokens=4,
            preemption_mode=mode,
            tenants={"a": TenantConfig(max_kv_pages=num_pages // 3)} if draw.random() < 0.2 else {},
        ),
        CacheConfig(num_pages=num_pages, page_size=page_size, num_host_pages=30 if mode in ("swap", "auto") else 0),
        events=log,
    )


def play(seed: int) -> list[bool]:
    """Return for each plan that displaced somebody whether it admitted anybody."""
    draw, log = random.Random(seed), EventLog()
    scheduler = draw_scheduler(draw, log)
    trunks = [[draw.randrange(1000) for _ in range(draw.choice([12, 40, 160]))] for _ in range(3)]
    num_added = now_ns = 0
    has_admitted: list[bool] = []
    for _ in range(NUM_STEPS):
        now_ns += draw.randrange(10**7)
        for _ in range(draw.choice([0, 0, 0, 1, 1, 2])):
            prompt = draw.choice([[], *trunks]) + [draw.randrange(1000) for _ in range(draw.choice([1, 3, 16, 80]))]
            sampling = SamplingParams(max_tokens=draw.choice([1, 4, 20, 80]), temperature=0.0)
            tier, tenant = draw.choice([0, 0, 1, 2]), draw.choice("abc")
            num_added += 1
            try:
                scheduler.add(Request(num_added, prompt, sampling, priority=tier, tenant=tenant), now_ns)
            except RequestTooLongError:
                continue
        log.events.clear()
        plan = scheduler.plan(now_ns)
        if any(event.cause in ("slots", "urgency", "quantum") for event in log.of(Preempted)):
            has_admitted.append(bool(log.of(Admitted)))
        if plan is not None:
            num_rows = plan.num_decodes + sum(chunk.samples for chunk in plan.chunks)
            scheduler.commit(plan.step, StepResult(plan.step, (5,) * num_rows, draw.randrange(10**6, 10**7)))
    return has_admitted


def test_plans_that_displace_admit_somebody() -> None:
    has_admitted = [has for seed in range(60) for has in play(seed)]
    assert len(has_admitted) > 300
    assert has_admitted.count(False) / len(has_admitted) < MAX_PART_IN_VAIN
