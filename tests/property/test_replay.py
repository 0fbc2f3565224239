"""Whatever happened to a scheduler, a fresh one that reads its log makes identical plans."""

import contextlib
import json
from collections import deque
from dataclasses import replace
from random import Random
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from chairlift.config.resolved import CacheConfig, SchedulerConfig, TenantConfig
from chairlift.core.decision_log import Entry
from chairlift.core.explain import count_waiting_by_reason, explain
from chairlift.core.logged_scheduler import LoggedScheduler
from chairlift.core.replay import replay
from chairlift.core.request import FinishReason, Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.step_plan import StepPlan
from chairlift.core.wait_prediction import Newcomer
from chairlift.errors import ConfigurationError, RequestTooLongError
from chairlift.execution.fake import FakeExecutor
from tests.harness import STOP_TOKEN, VOCAB_SIZE

MS = 1_000_000

POLICIES = {
    "scheduling_policy": st.sampled_from(["fcfs", "priority", "deadline", "shortest", "lpm", "preemptive"]),
    "tenant_order": st.sampled_from(["none", "fair"]),
    "admission": st.sampled_from(["optimistic", "reserve-prompt", "reserve-full"]),
    "preemption_policy": st.sampled_from(["last-admitted", "cheapest"]),
    "preemption_mode": st.sampled_from(["recompute", "swap", "tail", "auto"]),
    "target_tpot_ms": st.sampled_from([None, 2.0, 20.0]),
    "guaranteed_share": st.sampled_from([0.0, 0.05, 0.5]),
    "watermark": st.sampled_from([0.0, 0.2]),
    "queue_timeout_s": st.sampled_from([None, 0.05]),
    "max_preemptions": st.integers(0, 3),
    "tenants": st.sampled_from([{}, {"a": TenantConfig(weight=3.0, max_kv_pages=6)}]),
}


class ReplayMachine(RuleBasedStateMachine):
    """Every input that a scheduler can get, in any order; at the end, the log is read by another one."""

    batching = "continuous"

    @initialize(
        num_pages=st.integers(5, 24),
        num_host_pages=st.sampled_from([0, 12]),
        page_size=st.sampled_from([1, 2, 4]),
        max_num_seqs=st.integers(1, 5),
        spare_tokens=st.integers(0, 12),
        depth=st.sampled_from([1, 2]),
        chunked=st.booleans(),
        caching=st.booleans(),
        seed=st.integers(0, 1000),
        policies=st.fixed_dictionaries(POLICIES),
    )
    def start(
        self, num_pages, num_host_pages, page_size, max_num_seqs, spare_tokens, depth, chunked, caching, seed, policies
    ) -> None:
        self.depth = depth
        self.num_requests = 0
        self.entries: list[Entry] = []
        self.scheduler = LoggedScheduler(
            SchedulerConfig(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_seqs + page_size + spare_tokens,
                max_model_len=40,
                enable_chunked_prefill=chunked,
                max_lookahead=1,
                quantum_tokens=3,
                max_equal_wait_ms=10,
                batching=self.batching,
                **policies,
            ),
            CacheConfig(
                num_pages=num_pages,
                num_host_pages=num_host_pages,
                page_size=page_size,
                enable_prefix_caching=caching,
            ),
            # What is read back is what was written: JSON makes lists of tuples, and strings of keys.
            write=lambda entry: self.entries.append(json.loads(json.dumps(entry))),
            secret=b"s",
        )
        self.executor = FakeExecutor(num_pages, page_size, num_host_pages=num_host_pages, vocab_size=VOCAB_SIZE)
        self.in_flight: deque[tuple[StepPlan, Any]] = deque()
        self.random = Random(seed)
        self.now_ns = 0

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=24),
        max_tokens=st.integers(1, 20),
        stops=st.booleans(),
        priority=st.sampled_from([0, 0, 1, -1]),
        tenant=st.sampled_from(["", "a", "b"]),
        salt=st.sampled_from([None, "x"]),
        patience_ms=st.sampled_from([None, None, 5, 60]),
    )
    def add(self, prompt, max_tokens, stops, priority, tenant, salt, patience_ms) -> None:
        request = Request(
            self.num_requests,
            prompt,
            SamplingParams(max_tokens=max_tokens, min_tokens=self.num_requests % 2),
            seed=self.num_requests,
            stop_token_ids=frozenset([STOP_TOKEN, 1, 2, 3]) if stops else frozenset(),
            priority=priority,
            tenant=tenant,
            cache_salt=salt,
            ttft_deadline_ns=None if patience_ms is None else self.now_ns + patience_ms * MS,
            deadline_ns=None if patience_ms is None else self.now_ns + 3 * patience_ms * MS,
        )
        try:
            self.scheduler.add(request, self.now_ns)
        except RequestTooLongError:
            return
        self.num_requests += 1

    @precondition(lambda self: len(self.in_flight) < self.depth)
    @rule(pause_ms=st.sampled_from([0, 1, 30]))
    def plan(self, pause_ms) -> None:
        self.now_ns += pause_ms * MS
        plan = self.scheduler.plan(self.now_ns)
        if plan is not None:
            self.in_flight.append((plan, self.executor.submit(plan)))

    @precondition(lambda self: self.in_flight)
    @rule()
    def commit(self) -> None:
        plan, handle = self.in_flight.popleft()
        duration_ns = round(plan.num_tokens * 0.1 * MS * self.random.uniform(0.5, 4))
        self.now_ns += duration_ns
        rows = plan.num_decodes + sum(chunk.samples for chunk in plan.chunks)
        failed = tuple(row for row in range(rows) if self.random.random() < 0.02)
        result = replace(self.executor.wait(handle), duration_ns=duration_ns, failed_rows=failed)
        self.scheduler.commit(plan.step, result)

    @precondition(lambda self: self.num_requests)
    @rule(data=st.data(), reason=st.sampled_from([FinishReason.ABORT, FinishReason.STOP]))
    def end(self, data, reason) -> None:
        request_id = data.draw(st.integers(0, self.num_requests - 1))
        self.scheduler.finish(request_id, reason, 1 if reason is FinishReason.STOP else None)

    @rule(changes=st.fixed_dictionaries({}, optional=POLICIES))
    def reconfigure(self, changes) -> None:
        with contextlib.suppress(ConfigurationError):
            self.scheduler.reconfigure(changes, self.now_ns)

    @rule()
    def look(self) -> None:
        """Whoever asks changes nothing: were it otherwise, the replay, in which nobody asks, would differ."""
        for request_id in self.scheduler.requests:
            explain(self.scheduler, request_id, self.now_ns)
        count_waiting_by_reason(self.scheduler)
        self.scheduler.waits.predict(self.scheduler.state, Newcomer(9, tenant="a"))

    @rule()
    def expire(self) -> None:
        self.scheduler.expire(self.now_ns)

    @rule()
    def reset_cache(self) -> None:
        self.scheduler.reset_prefix_cache()

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(300):
            while len(self.in_flight) < self.depth:
                before = len(self.in_flight)
                self.plan(pause_ms=1)
                if len(self.in_flight) == before:
                    break
            if not self.in_flight:
                break
            self.commit()
        report = replay(self.entries)
        assert report.difference is None
        assert report.num_entries == len(self.entries)
        assert report.num_plans == sum(entry["kind"] == "plan" for entry in self.entries)


class StaticReplayMachine(ReplayMachine):
    batching = "static"


ReplayMachine.TestCase.settings = settings(stateful_step_count=60, deadline=None)
StaticReplayMachine.TestCase.settings = settings(stateful_step_count=40, deadline=None, max_examples=30)
TestReplay = ReplayMachine.TestCase
TestStaticReplay = StaticReplayMachine.TestCase
