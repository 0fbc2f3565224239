"""How tiers and tenants share the budget of a step's prompts."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from chairlift.core.budget_shares import BudgetShares, share_out
from chairlift.core.events import Scheduled
from chairlift.core.guaranteed_share import GuaranteedShare
from chairlift.core.policies.chunking import ShortestFirst
from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.views import PrefillView
from tests.harness import Rig


def prompt(length: int, *, tier: int = 0, tenant: str = "", promoted: bool = False) -> PrefillView:
    request = Request(0, [0], SamplingParams(), priority=tier, tenant=tenant)
    request.is_promoted = promoted
    return PrefillView(request, length, True)


def split(
    budget: int, *prompts: PrefillView, share: float = 0.05, weights: dict[str, float] | None = None
) -> list[int]:
    weight_of = None if weights is None else lambda tenant: weights.get(tenant, 1.0)
    return BudgetShares(ShortestFirst(), GuaranteedShare(share).part_for, weight_of).split(budget, prompts)


def test_the_most_urgent_tier_comes_first_and_the_others_keep_their_share():
    assert split(200, prompt(1000, tier=1), prompt(1000, tier=0)) == [10, 190]
    assert split(200, prompt(1000, tier=1), prompt(50, tier=0)) == [150, 50]
    assert split(200, prompt(1000, tier=1), prompt(1000, tier=0), share=0.0) == [0, 200]
    assert split(200, prompt(4, tier=1), prompt(1000, tier=0)) == [4, 196]


def test_a_promoted_prompt_has_its_part_whatever_else_there_is():
    assert split(200, prompt(1000), prompt(1000, tier=5, promoted=True), prompt(20, tier=5)) == [180, 12, 8]
    assert split(200, prompt(5000, promoted=True), prompt(10), prompt(20)) == [170, 10, 20]


def test_tenants_share_by_weight_and_what_one_leaves_goes_to_the_others():
    even = {}
    assert split(200, prompt(6000, tenant="b"), prompt(30, tenant="a"), weights=even) == [170, 30]
    assert split(200, prompt(6000, tenant="b"), prompt(600, tenant="a"), weights=even) == [100, 100]
    assert split(300, prompt(6000, tenant="b"), prompt(600, tenant="a"), weights={"b": 2.0}) == [200, 100]
    two_of_a = split(200, prompt(600, tenant="a"), prompt(600, tenant="b"), prompt(600, tenant="a"), weights=even)
    assert two_of_a[0] + two_of_a[2] == two_of_a[1] == 100


def test_many_tenants_do_not_cut_the_budget_into_crumbs():
    parts = split(128, *(prompt(100 + n, tenant=f"t{n}") for n in range(50)), weights={})
    assert sum(parts) == 128
    assert sum(part > 0 for part in parts) <= 5
    assert parts[0] > 0, "the first in order always advances"


@pytest.mark.parametrize("weights", [None, {}, {"a": 3.0, "b": 0.5}])
@given(
    budget=st.integers(0, 300),
    prompts=st.lists(
        st.tuples(st.integers(1, 400), st.integers(0, 3), st.sampled_from("abc"), st.booleans()), max_size=12
    ),
    share=st.sampled_from([0.0, 0.05, 0.5]),
)
def test_any_split_spends_what_is_wanted_and_no_more(weights, budget, prompts, share):
    views = [prompt(length, tier=tier, tenant=tenant, promoted=p) for length, tier, tenant, p in prompts]
    parts = split(budget, *views, share=share, weights=weights)
    assert len(parts) == len(views)
    assert all(0 <= part <= view.num_remaining_tokens for part, view in zip(parts, views, strict=True))
    assert sum(parts) == min(budget, sum(view.num_remaining_tokens for view in views))


@given(
    tokens=st.integers(0, 200),
    wanted=st.lists(st.integers(0, 100), min_size=1, max_size=8),
    weights=st.lists(st.floats(0.1, 10), min_size=8, max_size=8),
)
def test_sharing_out_is_max_min_fair_to_a_token(tokens, wanted, weights):
    weights = weights[: len(wanted)]
    shares = share_out(tokens, wanted, weights, 100)
    assert sum(shares) == min(tokens, sum(wanted))
    for i, mine in enumerate(shares):
        for j, other in enumerate(shares):
            if mine < wanted[i] and other:
                # Nobody who wants more has less for its weight than somebody else, but for a token of each.
                assert (mine + len(wanted)) / weights[i] >= (other - 1) / weights[j] - 1e-6


@given(
    tokens=st.integers(8, 500),
    wanted=st.lists(st.integers(1, 9000), min_size=1, max_size=8),
    weights=st.lists(st.sampled_from([1e-6, 0.001, 1.0, 1000.0, 1e6]), min_size=8, max_size=8),
)
def test_every_sharer_advances_however_small_its_weight(tokens, wanted, weights):
    assert min(share_out(tokens, wanted, weights[: len(wanted)], 8)) >= 1


@pytest.mark.parametrize("order", ["none", "fair"])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_short_prompt_beside_a_long_one_of_another_tenant_starts_within_three_steps(order, depth):
    rig = Rig(
        num_pages=1000,
        page_size=16,
        max_num_seqs=8,
        max_num_batched_tokens=256,
        max_model_len=8000,
        tenant_order=order,
        depth=depth,
    )
    rig.add(6000, max_tokens=4, tenant="b")
    rig.step()
    rig.step()
    before = rig.num_steps
    short = rig.add(120, max_tokens=4, tenant="a")
    while not rig.output[short]:
        rig.step()
    assert rig.num_steps - before <= 3
    chunks = [c.length for e in rig.log.of(Scheduled) for c in e.chunks]
    assert min(chunks) > 0
