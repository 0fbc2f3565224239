"""Whatever the order, the tenants, the admission and the deadlines: same tokens, no contradiction, no starvation."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import initialize, invariant, rule

from chairlift.config.resolved import CacheConfig, SchedulerConfig, TenantConfig
from chairlift.core.policies import ADMISSION, ORDERING
from chairlift.core.scheduler import Scheduler
from chairlift.errors import ConfigurationError
from chairlift.execution.fake import FakeExecutor
from tests.harness import VOCAB_SIZE
from tests.property.test_scheduler import PROMPTS, SchedulerMachine

TENANTS = {
    "heavy": TenantConfig(weight=2.0),
    "light": TenantConfig(weight=0.5),
    "tight": TenantConfig(max_kv_pages=6),
}
ORDERS = sorted(ORDERING)
ADMISSIONS = sorted(ADMISSION)


class OrderingMachine(SchedulerMachine):
    """The scheduler's machine under every order, with tiers, tenants, quotas, deadlines and changes while running."""

    @initialize(
        num_pages=st.integers(6, 20),
        page_size=st.sampled_from([1, 2, 4]),
        max_num_seqs=st.integers(1, 5),
        spare_tokens=st.integers(0, 12),
        depth=st.sampled_from([1, 2]),
        order=st.sampled_from(ORDERS),
        tenant_order=st.sampled_from(["none", "fair"]),
        admission=st.sampled_from(ADMISSIONS),
        policies=st.tuples(
            st.sampled_from(["recompute", "swap", "tail", "auto"]), st.sampled_from(["last-admitted", "cheapest"])
        ),
        share=st.sampled_from([0.0, 0.05, 0.5]),
        watermark=st.sampled_from([0.0, 0.3]),
        lookahead=st.integers(0, 2),
        queue_timeout_s=st.sampled_from([None, None, 2e-8]),
        chunked=st.booleans(),
    )
    def start(
        self,
        num_pages,
        page_size,
        max_num_seqs,
        spare_tokens,
        depth,
        order,
        tenant_order,
        admission,
        policies,
        share,
        watermark,
        lookahead,
        queue_timeout_s,
        chunked,
    ) -> None:
        self.prepare(depth, page_size)
        self.admissions = {admission}
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_seqs + page_size + spare_tokens,
                max_model_len=40,
                enable_chunked_prefill=chunked,
                scheduling_policy=order,
                tenant_order=tenant_order,
                admission=admission,
                guaranteed_share=share,
                watermark=watermark,
                max_lookahead=lookahead,
                queue_timeout_s=queue_timeout_s,
                quantum_tokens=2,
                max_equal_wait_ms=0,
                preemption_mode=policies[0],
                preemption_policy=policies[1],
                tenants=TENANTS,
            ),
            CacheConfig(num_pages=num_pages, num_host_pages=4, page_size=page_size),
            events=self.log,
        )
        self.executor = FakeExecutor(num_pages, page_size, num_host_pages=4, vocab_size=VOCAB_SIZE, step_duration_ns=1)

    @rule(
        target=SchedulerMachine.requests,
        prompt=PROMPTS,
        max_tokens=st.integers(1, 20),
        priority=st.sampled_from([0, 0, 1, 2]),
        tenant=st.sampled_from(["", "heavy", "light", "tight", "tight"]),
        ttft_ns=st.sampled_from([None, None, 1, 30]),
        total_ns=st.sampled_from([None, None, 5, 60]),
    )
    def add_for_tenant(self, prompt, max_tokens, priority, tenant, ttft_ns, total_ns):
        return self.add_request(
            prompt,
            max_tokens,
            False,
            0,
            0.0,
            priority=priority,
            tenant=tenant,
            ttft_deadline_ns=None if ttft_ns is None else self.now + ttft_ns,
            deadline_ns=None if total_ns is None else self.now + total_ns,
        )

    @rule(num_choices=st.integers(2, 4), length=st.integers(8, 20))
    def add_choices(self, num_choices, length):
        """Several choices of one prompt, which share its pages."""
        for _ in range(num_choices):
            self.add_request([0] * length, 4, False, 0, 0.0, tenant="heavy")

    @rule(
        order=st.sampled_from(ORDERS),
        tenant_order=st.sampled_from(["none", "fair"]),
        admission=st.sampled_from(ADMISSIONS),
        max_num_seqs=st.integers(1, 6),
        timeout=st.sampled_from([None, 5e-8]),
    )
    def reconfigure(self, order, tenant_order, admission, max_num_seqs, timeout):
        before = self.scheduler.config
        waiting = sorted(request.request_id for request in self.scheduler.state.waiting)
        changes = {
            "scheduling_policy": order,
            "tenant_order": tenant_order,
            "admission": admission,
            "max_num_seqs": max_num_seqs,
            "queue_timeout_s": timeout,
        }
        try:
            self.scheduler.reconfigure(changes, self.now)
            self.admissions.add(admission)
        except ConfigurationError:
            assert self.scheduler.config == before
        assert sorted(request.request_id for request in self.scheduler.state.waiting) == waiting

    @invariant()
    def the_books_agree(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        state = self.scheduler.state
        decodes = {}
        for request in state.decoding.values():
            key = (request.priority, request.tenant)
            decodes[key] = decodes.get(key, 0) + 1
        assert state.ledger._num_decodes == decodes
        assert sorted(s for each in state.ledger._decode_sequences.values() for s in each) == sorted(
            request.sequence for request in state.decoding.values()
        )
        for tier, counters in state.ledger.counters._tiers.items():
            waiting = {}
            for request in state.waiting:
                if request.priority == tier:
                    waiting[request.tenant] = waiting.get(request.tenant, 0) + 1
            assert counters.num_waiting == waiting

    @invariant()
    def the_queue_is_in_order(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        waiting = self.scheduler.state.waiting
        requests = list(waiting)
        assert len({request.request_id for request in requests}) == len(waiting) == len(requests)
        keys = [(not request.is_promoted, 0 if request.is_promoted else request.priority) for request in requests]
        assert keys == sorted(keys), "promoted requests first, then tiers"
        for tier in waiting.tiers:
            oldest = waiting.oldest(tier)
            held_back = {lane.tenant for lane in waiting._held_back}
            open_ones = [
                request.sequence
                for request in requests
                if request.priority == tier and not request.is_promoted and request.tenant not in held_back
            ]
            assert oldest is None or oldest.sequence <= min(open_ones, default=oldest.sequence)

    @invariant()
    def quotas_hold_at_admission(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        if self.admissions == {"reserve-full"}:
            assert self.scheduler.state.count_held_pages("tight") <= 6


OrderingMachine.TestCase.settings = settings(stateful_step_count=60, deadline=None)
TestOrdering = OrderingMachine.TestCase
