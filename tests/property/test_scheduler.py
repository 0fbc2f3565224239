"""Any sequence of arrivals, steps, aborts and resets leaves every request with the tokens it would get alone."""

from collections import deque
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from chairlift.config.resolved import CacheConfig, SchedulerConfig
from chairlift.core import invariants
from chairlift.core.events import Finished
from chairlift.core.request import FinishReason, Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.scheduler import Scheduler
from chairlift.core.step_plan import PlanState, StepPlan
from chairlift.errors import RequestTooLongError
from chairlift.execution.fake import FakeExecutor, reference_output
from chairlift.execution.fake.embeddings import reference_embedding
from tests.harness import STOP_TOKEN, VOCAB_SIZE, EventLog

# Two letters and short pages make shared prefixes, duplicates and evictions common.
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=24)


class SchedulerMachine(RuleBasedStateMachine):
    """Plans and commits are separate rules, so that aborts and arrivals fall between them."""

    requests = Bundle("requests")
    batching = "continuous"

    @initialize(
        num_pages=st.integers(5, 24),
        page_size=st.sampled_from([1, 2, 4]),
        max_num_seqs=st.integers(1, 5),
        spare_tokens=st.integers(0, 12),
        depth=st.sampled_from([1, 2]),
        chunked=st.booleans(),
        caching=st.booleans(),
        lookahead=st.integers(0, 2),
        threshold=st.sampled_from([0, 0, 3]),
    )
    def start(
        self, num_pages, page_size, max_num_seqs, spare_tokens, depth, chunked, caching, lookahead, threshold
    ) -> None:
        self.prepare(depth, page_size)
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_seqs + page_size + spare_tokens,
                max_model_len=40,
                enable_chunked_prefill=chunked,
                long_prefill_token_threshold=threshold,
                max_lookahead=lookahead,
                batching=self.batching,
            ),
            CacheConfig(num_pages=num_pages, page_size=page_size, enable_prefix_caching=caching),
            events=self.log,
        )
        self.executor = FakeExecutor(num_pages, page_size, vocab_size=VOCAB_SIZE, step_duration_ns=1)

    def prepare(self, depth, page_size) -> None:
        """Everything but the scheduler and its executor."""
        self.page_size, self.depth = page_size, depth
        self.log = EventLog()
        self.mirror = PlanState()
        self.in_flight: deque[tuple[StepPlan, Any]] = deque()
        self.expected: dict[int, list[int]] = {}
        self.output: dict[int, list[int]] = {}
        self.ended: dict[int, FinishReason] = {}
        self.vectors: dict[int, bytes] = {}
        self.now = 0

    @rule(
        target=requests,
        prompt=PROMPTS,
        max_tokens=st.integers(1, 20),
        stops=st.booleans(),
        min_tokens=st.integers(0, 3),
        temperature=st.sampled_from([0.0, 1.0]),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        salt=st.sampled_from([None, None, "a"]),
    )
    def add(self, prompt, max_tokens, stops, min_tokens, temperature, priority, salt):
        return self.add_request(prompt, max_tokens, stops, min_tokens, temperature, priority=priority, cache_salt=salt)

    def add_request(self, prompt, max_tokens, stops, min_tokens, temperature, pooling=None, **fields):
        """Add a request, or see it refused; ``fields`` are further arguments of :class:`Request`."""
        request_id = len(self.expected)
        stop_token_ids = frozenset([STOP_TOKEN]) if stops else frozenset()
        sampling = SamplingParams(
            temperature=temperature, max_tokens=max_tokens, min_tokens=min(min_tokens, max_tokens), pooling=pooling
        )
        request = Request(
            request_id,
            prompt,
            sampling,
            seed=request_id % 3,
            stop_token_ids=stop_token_ids,
            **fields,
        )
        capacity = self.scheduler.state.memory.num_token_slots
        quota = self.scheduler.config.tenant(request.tenant).max_kv_pages
        if quota is not None:
            capacity = min(capacity, quota * self.page_size)
        if len(prompt) > capacity:
            with pytest.raises(RequestTooLongError):
                self.scheduler.add(request, self.now)
            self.expected[request_id] = []
            self.ended[request_id] = FinishReason.ERROR
            return request_id
        self.scheduler.add(request, self.now)
        num_tokens = min(max_tokens, capacity + 1 - len(prompt), 40 - len(prompt))
        self.expected[request_id] = reference_output(
            prompt,
            num_tokens,
            VOCAB_SIZE,
            seed=0 if temperature == 0 else request.seed,
            stop_token_ids=stop_token_ids,
            min_tokens=sampling.min_tokens,
        )
        self.output[request_id] = []
        return request_id

    @rule(
        target=requests,
        prompt=PROMPTS,
        pooling=st.sampled_from(["last", "mean"]),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        salt=st.sampled_from([None, None, "a"]),
    )
    def add_pooled(self, prompt, pooling, priority, salt):
        """A request for a vector among those for tokens."""
        request_id = self.add_request(prompt, 1, False, 0, 0.0, pooling=pooling, priority=priority, cache_salt=salt)
        self.expected[request_id] = []
        self.vectors[request_id] = reference_embedding(prompt, pooling)
        return request_id

    @precondition(lambda self: len(self.in_flight) < self.depth)
    @rule()
    def plan(self) -> None:
        self.now += 1
        idle = not self.in_flight
        plan = self.scheduler.plan(self.now)
        self.take_expired()
        if plan is None:
            assert not (self.scheduler.requests and idle), "runnable work and no step"
            return
        assert plan.num_tokens > 0
        config = self.scheduler.config
        if config.enable_chunked_prefill and self.batching == "continuous":
            assert plan.num_tokens <= config.max_num_batched_tokens
        self.mirror.apply(plan)
        assert len(self.mirror.decodes) == plan.num_decodes
        self.in_flight.append((plan, self.executor.submit(plan)))

    @precondition(lambda self: self.in_flight)
    @rule()
    def commit(self) -> None:
        plan, handle = self.in_flight.popleft()
        result = self.executor.wait(handle)
        for update in self.scheduler.commit(plan.step, result).updates:
            self.output[update.request_id].extend(update.token_ids)
            if update.finish_reason is not None:
                assert update.request_id not in self.ended
                self.ended[update.request_id] = update.finish_reason
                assert update.embedding == self.vectors.get(update.request_id)

    def take_expired(self) -> None:
        for update in self.scheduler.take_expired():
            assert update.request_id not in self.ended
            assert update.finish_reason in (FinishReason.TIMEOUT, FinishReason.DEADLINE)
            assert update.token_ids == ()
            self.ended[update.request_id] = update.finish_reason

    @rule(request_id=consumes(requests))
    def abort(self, request_id) -> None:
        was_alive = request_id not in self.ended
        assert self.scheduler.abort(request_id) == was_alive
        if was_alive:
            self.ended[request_id] = FinishReason.ABORT
        assert not self.scheduler.abort(request_id)

    @rule()
    def reset_cache(self) -> None:
        is_idle = not self.scheduler.requests and not self.in_flight
        done = self.scheduler.reset_prefix_cache()
        if self.batching == "continuous":
            assert done == is_idle
        if done:
            assert self.scheduler.stats().num_free_pages == self.scheduler.stats().num_pages

    @precondition(lambda self: not self.in_flight)
    @rule()
    def join_from_snapshot(self) -> None:
        """Another rank that starts from the snapshot knows what the executor knows, but for ended requests."""
        joined = PlanState()
        joined.apply(self.scheduler.snapshot())
        own = self.executor._state
        alive = set(self.scheduler.state.running) | set(self.scheduler.state.departing)
        assert set(joined.requests) == alive & set(own.requests) or self.batching == "static"
        assert [r for r in own.decodes if r in joined.decodes] == list(joined.decodes)
        for request_id in joined.requests:
            theirs, ours = joined.requests[request_id], own.requests[request_id]
            assert theirs.pages == ours.pages
            assert theirs.num_computed_tokens == ours.num_computed_tokens or request_id in self.ended
            assert theirs.token_ids == ours.token_ids or request_id in self.ended

    @invariant()
    def nothing_contradicts_itself(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        invariants.require(self.scheduler)
        for request_id, tokens in self.output.items():
            expected = self.expected[request_id]
            assert tokens == expected[: len(tokens)], f"request {request_id} differs from when it is alone"
            if self.ended.get(request_id) in (FinishReason.STOP, FinishReason.LENGTH):
                assert tokens == expected

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        limit = 200 * (len(self.expected) + 1)
        for _ in range(limit):
            while len(self.in_flight) < self.depth:
                before = len(self.in_flight)
                self.plan()
                if len(self.in_flight) == before:
                    break
            if not self.in_flight:
                break
            self.commit()
            self.nothing_contradicts_itself()
        assert not self.scheduler.has_unfinished, "did not come to an end"
        self.nothing_contradicts_itself()
        stats = self.scheduler.stats()
        assert stats.num_leased_pages == 0
        assert stats.num_running == stats.num_waiting == 0
        assert set(self.ended) == set(self.expected)
        finished = [event.request_id for event in self.log.of(Finished)]
        assert sorted(finished) == sorted(self.output), "every accepted request ends exactly once"


class StaticMachine(SchedulerMachine):
    batching = "static"


SchedulerMachine.TestCase.settings = settings(stateful_step_count=60, deadline=None)
StaticMachine.TestCase.settings = settings(stateful_step_count=60, deadline=None)
TestScheduler = SchedulerMachine.TestCase
TestStaticScheduler = StaticMachine.TestCase
