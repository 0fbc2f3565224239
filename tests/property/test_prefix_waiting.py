"""Requests that wait for a prefix stand aside, and plans are those of a scheduler that looks at each in each step."""

import contextlib
from collections import deque
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from chairlift.config.resolved import CacheConfig, SchedulerConfig, TenantConfig
from chairlift.core import invariants
from chairlift.core.batching import candidates
from chairlift.core.decision_log import describe_plan
from chairlift.core.explain import count_waiting_by_reason, explain
from chairlift.core.request import BlockedOn, Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.scheduler import Scheduler
from chairlift.core.step_plan import StepPlan
from chairlift.core.waiting_queue import QueueWalk, WaitingQueue
from chairlift.errors import ConfigurationError, RequestTooLongError
from chairlift.execution.fake import FakeExecutor

MS = 1_000_000


class WalkPastEach(QueueWalk):
    """Nobody stands aside: whoever waits for a prefix is put back after the walk."""

    def __init__(self, queue: WaitingQueue, *, is_peek: bool) -> None:
        super().__init__(queue, is_peek=is_peek)
        self.past: list = []

    def wait_for_prefix(self, prefix) -> None:
        assert self._tier is not None
        self.past.append(self._tier.let_go())

    def __exit__(self, *error) -> None:
        super().__exit__(*error)
        for lane, entry in self.past:
            self._queue._tiers[entry[4].priority].put_back(lane, [entry])


def look_at_each_in_each_step(queue: WaitingQueue) -> None:
    """The slow and obvious way."""
    walk = queue.walk

    def walk_past_each() -> QueueWalk:
        walk()  # nobody is held back any more
        return WalkPastEach(queue, is_peek=False)

    queue.walk = walk_past_each  # type: ignore[method-assign]
    queue.peek = lambda: WalkPastEach(queue, is_peek=True)  # type: ignore[method-assign]


POLICIES = {
    # "lpm" looks at windows of those who do not wait, so it may differ.
    "scheduling_policy": st.sampled_from(["fcfs", "deadline", "shortest", "preemptive"]),
    "tenant_order": st.sampled_from(["none", "fair"]),
    "admission": st.sampled_from(["optimistic", "reserve-prompt", "reserve-full"]),
    "preemption_mode": st.sampled_from(["recompute", "swap", "tail", "auto"]),
    "guaranteed_share": st.sampled_from([0.0, 0.05, 0.5]),
    "watermark": st.sampled_from([0.0, 0.2]),
    "max_num_seqs": st.integers(2, 6),
    "long_prefill_token_threshold": st.sampled_from([0, 4]),
    "queue_timeout_s": st.sampled_from([None, 0.05]),
    "tenants": st.sampled_from([{}, {"a": TenantConfig(weight=3.0, max_kv_pages=12), "b": TenantConfig()}]),
}


class PrefixMachine(RuleBasedStateMachine):
    """Two schedulers get the same requests, which share long and short prefixes; one looks past each that waits."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        # Prompts can be short then.
        self.patch.setattr(candidates, "_MIN_SHARED_TOKENS", 4)

    @initialize(
        num_pages=st.integers(12, 60),
        page_size=st.sampled_from([1, 2, 4]),
        num_host_pages=st.sampled_from([0, 12]),
        spare_tokens=st.integers(0, 12),
        depth=st.sampled_from([1, 2]),
        chunked=st.sampled_from([True, True, False]),
        policies=st.fixed_dictionaries(POLICIES),
    )
    def start(self, num_pages, page_size, num_host_pages, spare_tokens, depth, chunked, policies) -> None:
        self.depth = depth
        config = SchedulerConfig(
            max_num_batched_tokens=6 + page_size + spare_tokens,
            max_model_len=60,
            enable_chunked_prefill=chunked,
            max_lookahead=1,
            quantum_tokens=3,
            max_equal_wait_ms=5,
            **{**policies, "max_num_seqs": 6},
        )
        cache = CacheConfig(num_pages=num_pages, num_host_pages=num_host_pages, page_size=page_size)
        self.scheduler, self.slow = Scheduler(config, cache), Scheduler(config, cache)
        look_at_each_in_each_step(self.slow.state.waiting)
        for scheduler in self.both:
            scheduler.reconfigure({"max_num_seqs": policies["max_num_seqs"]}, 0)
        self.executor = FakeExecutor(num_pages, page_size, num_host_pages=num_host_pages)
        self.in_flight: deque[tuple[StepPlan, Any]] = deque()
        self.num_requests = 0
        self.now_ns = 0

    @property
    def both(self) -> tuple[Scheduler, Scheduler]:
        return self.scheduler, self.slow

    @rule(
        stems=st.lists(st.integers(0, 1), min_size=1, max_size=4),
        tail=st.integers(0, 5),
        num_requests=st.integers(1, 5),
        max_tokens=st.integers(1, 8),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        tenant=st.sampled_from(["", "a", "b"]),
        patience_ms=st.sampled_from([None, None, None, 60]),
        prompt_logprobs=st.sampled_from([None, None, None, 1]),
    )
    def add(self, stems, tail, num_requests, max_tokens, priority, tenant, patience_ms, prompt_logprobs) -> None:
        """Some requests with one beginning, and an end of their own."""
        for _ in range(num_requests):
            number = self.num_requests
            prompt = [9 * stem + i for stem in stems for i in range(9)] + [100 + number] * tail
            for scheduler in self.both:
                request = Request(
                    number,
                    prompt,
                    SamplingParams(max_tokens=max_tokens, prompt_logprobs=prompt_logprobs),
                    priority=priority,
                    tenant=tenant,
                    deadline_ns=None if patience_ms is None else self.now_ns + patience_ms * MS,
                )
                try:
                    scheduler.add(request, self.now_ns)
                except RequestTooLongError:
                    return
            self.num_requests += 1

    @precondition(lambda self: len(self.in_flight) < self.depth)
    @rule(pause_ms=st.sampled_from([0, 1, 6]))
    def plan(self, pause_ms) -> None:
        self.now_ns += pause_ms * MS
        plan, slow_plan = (scheduler.plan(self.now_ns) for scheduler in self.both)
        assert (plan is None) == (slow_plan is None)
        invariants.require(self.scheduler)
        for request_id, request in self.scheduler.requests.items():
            assert request.is_promoted == self.slow.requests[request_id].is_promoted
        if plan is not None and slow_plan is not None:
            assert describe_plan(plan) == describe_plan(slow_plan)
            self.in_flight.append((plan, self.executor.submit(plan)))

    @precondition(lambda self: self.in_flight)
    @rule()
    def commit(self) -> None:
        plan, handle = self.in_flight.popleft()
        result = self.executor.wait(handle)
        self.now_ns += result.duration_ns
        for scheduler in self.both:
            scheduler.commit(plan.step, result)
        invariants.require(self.scheduler)

    @precondition(lambda self: self.num_requests)
    @rule(which=st.integers(0, 1000))
    def abort(self, which) -> None:
        for scheduler in self.both:
            scheduler.abort(which % self.num_requests)

    @precondition(lambda self: self.scheduler.state.prefilling)
    @rule()
    def abort_who_computes(self) -> None:
        request_id = next(iter(self.scheduler.state.prefilling))
        for scheduler in self.both:
            scheduler.abort(request_id)

    @rule(changes=st.fixed_dictionaries({}, optional=POLICIES))
    def reconfigure(self, changes) -> None:
        for scheduler in self.both:
            with contextlib.suppress(ConfigurationError):
                scheduler.reconfigure(changes, self.now_ns)

    @rule()
    def look(self) -> None:
        """Asking changes nothing, and all who wait are counted and listed."""
        waiting = self.scheduler.state.waiting
        counts = count_waiting_by_reason(self.scheduler)
        assert sum(counts.values()) <= len(waiting)
        asleep = [request for request in waiting if waiting.waits_for_prefix(request)]
        assert waiting.num_waiting_for_prefix == len(asleep)
        for request in asleep:
            found = explain(self.scheduler, request.request_id, self.now_ns)
            assert found is not None
            assert found.blocked_on in (BlockedOn.PREFIX, BlockedOn.SLOTS)
        assert [r.request_id for r in waiting] == [r.request_id for r in self.slow.state.waiting]

    def teardown(self) -> None:
        try:
            if hasattr(self, "scheduler"):
                self.run_to_the_end()
        finally:
            self.patch.undo()

    def advance(self) -> bool:
        """Plan a step, or commit one if no more can be planned; return whether anything was done."""
        num_before = len(self.in_flight)
        if num_before < self.depth:
            self.plan(pause_ms=1)
        if len(self.in_flight) > num_before:
            return True
        if self.in_flight:
            self.commit()
        return num_before > 0

    def run_to_the_end(self) -> None:
        num_steps = 0
        while self.advance():
            num_steps += 1
            assert num_steps < 3000, "no end in sight"
        assert not self.scheduler.has_unfinished
        assert not self.scheduler.state.waiting._cohort_of


PrefixMachine.TestCase.settings = settings(stateful_step_count=50, deadline=None)
TestPrefixWaiting = PrefixMachine.TestCase


@pytest.mark.parametrize("seed", range(6))
def test_bursts_with_several_prefixes_are_planned_as_if_each_were_looked_at(seed):
    """Longer and denser than what the machine makes up."""
    random = Random(seed)
    machine = PrefixMachine()
    policies = {
        "scheduling_policy": ["fcfs", "preemptive", "shortest"][seed % 3],
        "tenant_order": ["none", "fair"][seed % 2],
        "admission": "optimistic",
        "preemption_mode": "auto",
        "guaranteed_share": 0.05,
        "watermark": 0.0,
        "max_num_seqs": 6,
        "long_prefill_token_threshold": 0,
        "queue_timeout_s": None,
        "tenants": {"a": TenantConfig(max_kv_pages=30)} if seed > 3 else {},
    }
    machine.start(60, 2, 12, 8, 1 + seed % 2, True, policies)
    num_asleep = 0
    for _ in range(500):
        stems = [random.randrange(2) for _ in range(random.randrange(1, 5))]
        if random.random() < 0.25 and len(machine.scheduler.state.waiting) < 80:
            tenant = random.choice(["", "a", "b"])
            machine.add(
                stems, random.randrange(6), random.randrange(1, 12), 3, random.choice([0, 0, 1]), tenant, None, None
            )
        if random.random() < 0.1 and machine.num_requests:
            machine.abort(random.randrange(1000))
        if random.random() < 0.1 and machine.scheduler.state.prefilling:
            machine.abort_who_computes()
        machine.advance()
        num_asleep = max(num_asleep, machine.scheduler.state.waiting.num_waiting_for_prefix)
    machine.run_to_the_end()
    machine.patch.undo()
    assert num_asleep >= 10, "this test is about those who stand aside"
