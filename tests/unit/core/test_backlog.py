"""Sums of what waits are those of a list, and shares of others follow the weights."""

import hypothesis.strategies as st
from hypothesis import given

from chairlift.core.backlog import Amount, Backlog
from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams

REQUESTS = st.lists(
    st.tuples(st.integers(1, 50), st.integers(-1, 2), st.sampled_from("abc"), st.booleans()), max_size=40
)


def request(number: int, num_tokens: int, tier: int = 0, tenant: str = "") -> Request:
    return Request(number, [0] * num_tokens, SamplingParams(), priority=tier, tenant=tenant)


@given(REQUESTS)
def test_sums_are_those_of_a_list(drawn) -> None:
    backlog, kept = Backlog(), []
    for number, (num_tokens, tier, tenant, stays) in enumerate(drawn):
        made = request(number, num_tokens, tier, tenant)
        backlog.add(made)
        kept.append((made, stays))
    for made, stays in kept:
        if not stays:
            backlog.remove(made)
    waiting = [made for made, stays in kept if stays]
    for tenant in "abcd":
        own = [made for made in waiting if made.tenant == tenant]
        assert backlog.of_tenant(tenant) == Amount(len(own), sum(made.num_tokens for made in own))
    for tier in range(-2, 4):
        before = [made for made in waiting if made.priority <= tier]
        assert backlog.before(tier) == Amount(len(before), sum(made.num_tokens for made in before))
        # With weights that make every turn the others', everybody stands before a newcomer.
        turns = backlog.before_in_turn(tier, "d", 10**9, lambda _: 1.0)
        assert turns == backlog.before(tier)


def test_others_get_their_share_by_weight_while_the_newcomer_is_served() -> None:
    backlog = Backlog()
    for number in range(20):
        backlog.add(request(number, 10, tenant="many"))
    backlog.add(request(20, 5, tenant="little"))
    backlog.add(request(21, 40, tier=-1, tenant="urgent"))
    weights = {"many": 2.0}
    ahead = backlog.before_in_turn(0, "new", 30, lambda name: weights.get(name, 1.0))
    # 40 of the urgent, 60 of twice the weight, all 5 of the little.
    assert ahead == Amount(1 + 6 + 1, 40 + 60 + 5)


def test_very_many_tenants_are_taken_together() -> None:
    backlog = Backlog()
    for number in range(1000):
        backlog.add(request(number, 10, tenant=f"t{number}"))
    ahead = backlog.before_in_turn(0, "new", 5, lambda _: 1.0)
    assert ahead == Amount(500, 5000)
