"""What the guaranteed share costs; what it guarantees is tested in tests/property."""

from collections import Counter
from typing import cast

from chairlift.core.guaranteed_share import MAX_TIERS, GuaranteedShare
from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.waiting_queue import WaitingQueue
from tests.harness import Rig


class Tiers(list[int]):
    """May be walked through, but not searched for each of its own members."""

    def __contains__(self, tier: object) -> bool:
        raise AssertionError("clients choose their tiers: with thousands of them this search stops the server")


class Waiting:
    """A queue in which every tier waits and nobody can be promoted."""

    def __init__(self, num_tiers: int) -> None:
        self.tiers = Tiers(range(num_tiers))

    def __len__(self) -> int:
        return len(self.tiers)

    def oldest(self, tier: int) -> None:
        return None


def test_tiers_that_come_and_go_are_followed_without_a_search_for_each() -> None:
    share = GuaranteedShare(0.05)
    for num_tiers in (3, 50, 2):
        share.settle(10, cast("WaitingQueue", Waiting(num_tiers)), lambda tier, sequence: 0)
        assert sorted(share._credits) == list(range(num_tiers))


class Endless(Waiting):
    """A queue in which every tier always has more requests."""

    def __init__(self, num_tiers: int) -> None:
        super().__init__(num_tiers)
        self.num_promoted: Counter[int] = Counter()

    def oldest(self, tier: int) -> Request:  # type: ignore[override]
        return Request(0, [1] * 10, SamplingParams(), priority=tier)

    def promote(self, request: Request, turn: float) -> None:
        self.num_promoted[request.priority] += 1


def test_however_many_tiers_wait_everyone_is_promoted() -> None:
    share, waiting = GuaranteedShare(0.05), Endless(3 * MAX_TIERS)
    for _ in range(2000):
        share.settle(100, cast("WaitingQueue", waiting), lambda tier, sequence: 0)
    counts = waiting.num_promoted
    assert len(counts) == 3 * MAX_TIERS
    assert max(counts.values()) <= min(counts.values()) + 2


def test_a_client_that_spreads_its_requests_over_many_tiers_gets_little_more_than_with_one() -> None:
    assert part_of_less_urgent(num_tiers=1) < 0.08
    # Four shares of 5 % as prompts, and the outputs that follow these.
    assert 0.1 < part_of_less_urgent(num_tiers=31) < 0.4


def part_of_less_urgent(num_tiers: int) -> float:
    """Which part of the tokens goes to tiers behind one that always has more than enough to do."""
    rig = Rig(num_pages=400, max_num_seqs=4, max_num_batched_tokens=64)
    given = {True: 0, False: 0}
    owners: dict[int, int] = {}
    for _ in range(600):
        waiting = Counter(request.priority for request in rig.scheduler.state.waiting)
        for tier in range(num_tiers + 1):
            for _ in range(8 - waiting[tier] if tier == 0 else 1 - waiting[tier]):
                owners[rig.add(16, max_tokens=16, priority=tier)] = tier
        before = {request_id: len(tokens) for request_id, tokens in rig.output.items()}
        rig.step()
        for request_id, tokens in rig.output.items():
            num_new = len(tokens) - before.get(request_id, 0)
            num_prompt = 16 if request_id not in before and num_new else 0
            given[owners[request_id] > 0] += num_new + num_prompt
    return given[True] / sum(given.values())
