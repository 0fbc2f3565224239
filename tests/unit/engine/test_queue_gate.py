"""The cap on waiting work: exact, never in the way of a free slot, honest about when to come back."""

import pytest

from chairlift.config.resolved import CacheConfig, SchedulerConfig
from chairlift.config.sections import QueueSettings
from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.scheduler import Scheduler
from chairlift.engine.queue_gate import QueueGate
from chairlift.errors import OverloadedError

S = 1_000_000_000


def scheduler(num_waiting: int, num_prompt_tokens: int = 3) -> Scheduler:
    made = Scheduler(SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=64), CacheConfig(num_pages=64, page_size=4))
    for request_id in range(num_waiting):
        made.add(Request(request_id, [1] * num_prompt_tokens, SamplingParams()), 0)
    return made


def test_as_many_wait_as_the_cap_says_beside_the_free_slot() -> None:
    gate = QueueGate(QueueSettings(max_num_queued_reqs=2))
    gate.check(scheduler(2), 3)
    with pytest.raises(OverloadedError, match=r"3 requests wait, and --max-num-queued-reqs is 2"):
        gate.check(scheduler(3), 3)


def test_with_the_slot_taken_only_the_cap_counts() -> None:
    busy = scheduler(3)
    assert busy.plan(0) is not None
    assert (busy.num_running, busy.num_waiting) == (1, 2)
    QueueGate(QueueSettings(max_num_queued_reqs=3)).check(busy, 3)
    with pytest.raises(OverloadedError):
        QueueGate(QueueSettings(max_num_queued_reqs=2)).check(busy, 3)


def test_waiting_tokens_are_capped_but_never_for_a_free_slot() -> None:
    gate = QueueGate(QueueSettings(max_num_queued_tokens=10))
    gate.check(scheduler(0), 1000)
    gate.check(scheduler(2), 4)
    with pytest.raises(
        OverloadedError, match=r"6 tokens wait, this request brings 5, and --max-num-queued-tokens is 10"
    ):
        gate.check(scheduler(2), 5)


def test_zero_allows_no_waiting_at_all() -> None:
    gate = QueueGate(QueueSettings(max_num_queued_reqs=0))
    gate.check(scheduler(0), 3)
    with pytest.raises(OverloadedError):
        gate.check(scheduler(1), 3)


def test_without_caps_nothing_is_refused() -> None:
    QueueGate(QueueSettings()).check(scheduler(100), 10**9)


@pytest.mark.parametrize(("pause_ns", "retry_after_s"), [(S // 100, 1), (7 * S, 7), (500 * S, 60)])
def test_retry_after_is_the_pause_between_departures(pause_ns: int, retry_after_s: int) -> None:
    gate = QueueGate(QueueSettings(max_num_queued_reqs=0))
    for count in range(5):
        gate.departed(count * pause_ns)
    with pytest.raises(OverloadedError) as caught:
        gate.check(scheduler(1), 3)
    assert caught.value.retry_after_s == retry_after_s
