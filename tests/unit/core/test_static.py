"""Static batching wastes exactly what the articles say it wastes, and still gives every request its own tokens."""

import pytest

from chairlift.config.resolved import TenantConfig
from chairlift.core.events import Scheduled
from chairlift.core.request import BlockedOn
from tests.harness import Rig, alone

EIGHT = (20, 45, 210, 33, 8, 67, 400, 12)


def utilization(lengths, slots, batching, num_pages=2000) -> float:
    """Useful slot-steps over all slot-steps; steps that only compute prompts are left out."""
    rig = Rig(
        num_pages=num_pages,
        page_size=16,
        max_num_seqs=slots,
        max_num_batched_tokens=64,
        max_model_len=2048,
        batching=batching,
    )
    for length in lengths:
        # The prompt's step yields the first token, so one more makes the decodes as many as the article counts.
        rig.add(1, max_tokens=length + 1)
    useful = steps = 0
    while (outcome := rig.step()) is not None:
        if outcome.num_decode_tokens:
            useful += outcome.num_useful_slots
            steps += 1
    return useful / (steps * slots)


@pytest.mark.parametrize(
    ("lengths", "expected"), [(EIGHT, 795 / 3200), ((200, 10, 60, 35), 305 / 800)], ids=["eight", "four"]
)
def test_the_articles_figures(lengths, expected):
    assert utilization(lengths, len(lengths), "static") == expected


def test_continuous_batching_keeps_the_slots_of_the_same_lengths_useful():
    assert utilization(EIGHT * 10, 8, "continuous") > 0.8
    assert utilization(EIGHT * 3, 8, "static") < 0.25


@pytest.mark.parametrize("depth", [1, 2])
def test_groups_are_frozen_padded_and_right(depth):
    rig = Rig(num_pages=100, max_num_seqs=3, max_num_batched_tokens=64, batching="static", depth=depth)
    prompts = [[n * 50 + i for i in range(3 + 4 * n)] for n in range(7)]
    lengths = [2, 9, 4, 1, 7, 3, 5]
    ids = [rig.add(prompt, max_tokens=n) for prompt, n in zip(prompts, lengths, strict=True)]
    rig.run()
    for request_id, prompt, length in zip(ids, prompts, lengths, strict=True):
        assert rig.output[request_id] == alone(prompt, length)
    chunks = [chunk for event in rig.log.of(Scheduled) for chunk in event.chunks]
    widths = [chunk.length + chunk.padding for chunk in chunks]
    assert widths == [11, 11, 11, 23, 23, 23, 27]
    decodes = [len(event.decodes) for event in rig.log.of(Scheduled) if event.decodes]
    assert set(decodes[:8]) == {3}, "finished members go on executing until the longest ends"


def test_every_member_reserves_the_groups_maximum():
    rig = Rig(num_pages=30, max_num_seqs=4, max_num_batched_tokens=64, batching="static")
    for length in (5, 30, 8, 9):
        rig.add(4, max_tokens=length)
    rig.step()
    # 4 + 30 - 1 tokens are 9 pages of 4: three members fit into 30 pages.
    assert rig.scheduler.num_running == 3
    assert rig.scheduler.stats().num_leased_pages == 27
    rig.run()


def test_an_abort_does_not_end_the_group_for_others():
    rig = Rig(num_pages=100, batching="static", max_num_batched_tokens=64)
    gone, stays = rig.add(4, max_tokens=30), rig.add(list(range(6)), max_tokens=10)
    for _ in range(4):
        rig.step()
    assert rig.scheduler.abort(gone)
    rig.run()
    assert rig.output[stays] == alone(list(range(6)), 10)


def test_members_of_a_group_stay_within_their_tenants_quota():
    rig = Rig(
        num_pages=100,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        batching="static",
        tenants={"small": TenantConfig(max_kv_pages=6)},
    )
    small = [rig.add([n, 2, 3, 4], max_tokens=9, tenant="small") for n in range(3)]
    others = [rig.add([n, 2, 3, 4], max_tokens=9, tenant="large") for n in range(10, 13)]
    rig.step()
    # 4 + 9 - 1 tokens are 3 pages: two members of the small tenant have its 6 pages.
    assert set(rig.scheduler.state.running) == {*small[:2], *others[:2]}
    assert rig.scheduler.requests[small[2]].blocked_on is BlockedOn.QUOTA
    long = rig.add([20, 2, 3, 4], max_tokens=21, tenant="large")
    rig.run()
    assert all(len(rig.output[request_id]) == 9 for request_id in (*small, *others))
    assert len(rig.output[long]) == 21


def test_a_request_that_would_stretch_a_group_beyond_a_tenants_quota_waits_for_the_next():
    rig = Rig(
        num_pages=100,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        batching="static",
        tenants={"small": TenantConfig(max_kv_pages=6)},
    )
    small = [rig.add([n, 2, 3, 4], max_tokens=9, tenant="small") for n in range(2)]
    long = rig.add([20, 2, 3, 4], max_tokens=21)
    short = rig.add([21, 2, 3, 4], max_tokens=5)
    rig.step()
    assert set(rig.scheduler.state.running) == {*small, short}
    rig.run()
    assert len(rig.output[long]) == 21
