from chairlift.core.batching.backfill import count_needed_pages, count_spare_pages
from chairlift.core.request import BlockedOn
from tests.harness import Rig


def blocked_rig(num_small: int, max_tokens: int) -> tuple[Rig, int, list[int]]:
    """Twelve pages of four tokens: half of them in use for some time, and ten wanted by one who may not be passed."""
    rig = Rig(num_pages=12, max_num_seqs=8, max_num_batched_tokens=64, max_lookahead=0, prefix_caching=False)
    rig.add(20, max_tokens=9)
    rig.step()
    big = rig.add(40, max_tokens=2)
    return rig, big, [rig.add(4, max_tokens=max_tokens) for _ in range(num_small)]


def steps_until_started(rig: Rig, request_id: int) -> int:
    steps = 0
    while request_id in rig.scheduler.state.waiting:
        rig.step()
        steps += 1
    return steps


def test_what_is_spare_when_pages_can_be_had_goes_to_those_behind():
    alone, big, _ = blocked_rig(0, 1)
    started = steps_until_started(alone, big)
    rig, big, small = blocked_rig(4, 4)
    rig.step()
    assert [request_id in rig.scheduler.state.running for request_id in small] == [True, False, False, False]
    assert rig.scheduler.requests[small[1]].blocked_on is BlockedOn.RESERVED
    assert rig.scheduler.requests[big].blocked_on is BlockedOn.PAGES
    assert 1 + steps_until_started(rig, big) == started, "nobody made it wait longer"
    rig.run()
    assert len(rig.finished) == 6


def test_who_would_hold_more_than_is_spare_waits():
    rig, big, small = blocked_rig(2, 9)
    rig.step()
    assert [rig.scheduler.requests[request_id].blocked_on for request_id in small] == [BlockedOn.RESERVED] * 2
    while big in rig.scheduler.state.waiting:
        assert all(request_id in rig.scheduler.state.waiting for request_id in small)
        rig.step()
    rig.run()


def test_spare_pages_are_counted_when_enough_have_come_free():
    rig = Rig(num_pages=30, max_num_seqs=8, max_num_batched_tokens=64, prefix_caching=False)
    rig.add(20, max_tokens=5)
    rig.add(20, max_tokens=13)
    rig.step()
    state = rig.scheduler.state
    held = [len(request.pages) for request in state.running.values()]
    assert held == [5, 5]
    # The first one ends in 4 steps, in which the second one takes a page more.
    assert count_spare_pages(state, 3) == 5 - 3 - 1
    # Both have to end: nobody is left to grow.
    assert count_spare_pages(state, 7) == 10 - 7
    assert count_spare_pages(state, 11) == 0
    waiting = rig.add(10, max_tokens=7)
    assert count_needed_pages(state, rig.scheduler.requests[waiting]) == 4
