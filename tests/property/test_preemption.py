"""Whoever gives way, to whom and how: every request gets the tokens it would get alone, and all come to an end."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import initialize, invariant

from chairlift.config.resolved import CacheConfig, SchedulerConfig
from chairlift.core.events import Preempted
from chairlift.core.scheduler import Scheduler
from chairlift.execution.fake import FakeExecutor
from tests.harness import VOCAB_SIZE
from tests.property.test_scheduler import SchedulerMachine


class PreemptionMachine(SchedulerMachine):
    """The scheduler's machine with tiny pools, few or no host pages, and every way of giving way."""

    @initialize(
        num_pages=st.integers(4, 12),
        num_host_pages=st.sampled_from([0, 1, 3, 8, 40]),
        page_size=st.sampled_from([1, 2, 4]),
        max_num_seqs=st.integers(1, 5),
        spare_tokens=st.integers(0, 12),
        depth=st.sampled_from([1, 2]),
        mode=st.sampled_from(["recompute", "swap", "tail", "auto"]),
        victim=st.sampled_from(["last-admitted", "cheapest"]),
        order=st.sampled_from(["fcfs", "preemptive", "shortest", "lpm"]),
        admission=st.sampled_from(["reserve-prompt", "optimistic", "reserve-full"]),
        max_preemptions=st.integers(0, 3),
        quantum=st.integers(1, 4),
        lookahead=st.integers(0, 2),
        caching=st.booleans(),
        copy_ns=st.sampled_from([0, 1, 10**9]),
    )
    def start(
        self,
        num_pages,
        num_host_pages,
        page_size,
        max_num_seqs,
        spare_tokens,
        depth,
        mode,
        victim,
        order,
        admission,
        max_preemptions,
        quantum,
        lookahead,
        caching,
        copy_ns,
    ) -> None:
        self.prepare(depth, page_size)
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_seqs + page_size + spare_tokens,
                max_model_len=40,
                max_lookahead=lookahead,
                preemption_mode=mode,
                preemption_policy=victim,
                scheduling_policy=order,
                admission=admission,
                max_preemptions=max_preemptions,
                quantum_tokens=quantum,
                max_equal_wait_ms=0,
            ),
            CacheConfig(
                num_pages=num_pages, num_host_pages=num_host_pages, page_size=page_size, enable_prefix_caching=caching
            ),
            events=self.log,
        )
        self.executor = FakeExecutor(
            num_pages,
            page_size,
            num_host_pages=num_host_pages,
            vocab_size=VOCAB_SIZE,
            step_duration_ns=1000,
            copy_duration_ns=copy_ns,
        )

    @invariant()
    def displacements_are_bounded(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        counts: dict[int, int] = {}
        for event in self.log.of(Preempted):
            counts[event.request_id] = counts.get(event.request_id, 0) + (event.cause != "pages")
        assert max(counts.values(), default=0) <= self.scheduler.config.max_preemptions

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "scheduler"):
            stats = self.scheduler.stats()
            assert stats.num_free_host_pages == stats.num_host_pages
            assert not self.scheduler.state.kept.holders
            assert stats.swapped_in_pages_total <= stats.swapped_out_pages_total


PreemptionMachine.TestCase.settings = settings(stateful_step_count=60, deadline=None)
TestPreemption = PreemptionMachine.TestCase
