"""What the guaranteed share costs; what it guarantees is tested in tests/property."""

from typing import cast

from chairlift.core.guaranteed_share import GuaranteedShare
from chairlift.core.waiting_queue import WaitingQueue


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
        assert list(share._credits) == list(range(num_tiers))
