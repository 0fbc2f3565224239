"""Virtual counters by themselves, and the service that two backlogged tenants get from the scheduler."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from chairlift.config.resolved import TenantConfig
from chairlift.core.events import Scheduled, TokensEmitted
from chairlift.core.fairness import VirtualCounters
from tests.harness import Rig


def even(tenant: str) -> float:
    return 1.0


def test_a_returning_tenant_is_lifted_to_the_least_served_one_that_waits():
    counters = VirtualCounters(even)
    counters.start_waiting(0, "busy")
    counters.start_waiting(0, "other")
    counters.charge(0, "busy", 100)
    counters.charge(0, "other", 70)
    counters.start_waiting(0, "late")
    assert counters.value(0, "late") == 70
    counters.start_waiting(1, "late")
    assert counters.value(1, "late") == 0, "tiers do not compete"


def test_nobody_is_lifted_past_what_it_has_and_nobody_saves_up_while_idle():
    counters = VirtualCounters(even)
    counters.start_waiting(0, "a")
    counters.charge(0, "a", 50)
    counters.stop_waiting(0, "a")
    counters.start_waiting(0, "b")
    counters.start_waiting(0, "a")
    assert counters.value(0, "b") == counters.value(0, "a"), "nobody waited: b starts where a stood"
    counters.charge(0, "b", 30)
    counters.stop_waiting(0, "b")
    counters.charge(0, "a", 20)
    counters.start_waiting(0, "b")
    assert counters.value(0, "b") - counters.value(0, "a") == 10


def test_a_tenant_that_went_ahead_is_remembered_until_the_others_have_caught_up():
    counters = VirtualCounters(even)
    for tenant in ("greedy", "steady"):
        counters.start_waiting(0, tenant)
    counters.charge(0, "greedy", 500)
    counters.stop_waiting(0, "greedy")
    counters.start_waiting(0, "greedy")
    assert counters.value(0, "greedy") == 500
    counters.stop_waiting(0, "greedy")
    counters.charge(0, "steady", 600)
    counters.start_waiting(0, "new")
    counters.stop_waiting(0, "new")
    assert len(counters) == 1, "greedy and new have nothing on steady any more"


def test_a_million_tenants_leave_nothing_behind():
    counters = VirtualCounters(even)
    counters.start_waiting(0, "always")
    for number in range(20_000):
        tenant = f"t{number}"
        counters.start_waiting(0, tenant)
        counters.charge(0, tenant, 10 + number % 7)
        counters.stop_waiting(0, tenant)
    assert len(counters) <= VirtualCounters.MAX_IDLE + 2
    counters.charge(0, "always", 100)
    counters.start_waiting(0, "last")
    counters.stop_waiting(0, "last")
    assert len(counters) == 1


@given(
    st.lists(
        st.tuples(st.sampled_from(["wait", "leave", "charge"]), st.sampled_from("abcd"), st.integers(1, 30)),
        max_size=60,
    )
)
def test_counters_against_the_definition(moves):
    counters, model = VirtualCounters(even), Definition()
    for kind, tenant, amount in moves:
        if kind == "wait":
            model.wait(tenant)
            counters.start_waiting(0, tenant)
        elif tenant in model.waiting:
            if kind == "leave":
                model.leave(tenant)
                counters.stop_waiting(0, tenant)
            else:
                model.values[tenant] += amount
                counters.charge(0, tenant, amount)
        for other, value in model.values.items():
            least = 0.0 if other in model.waiting else model.floor
            assert max(counters.value(0, other), least) == max(value, least)


class Definition:
    """Counters of one tier as the paper defines them, for ever and slowly."""

    def __init__(self):
        self.values: dict[str, float] = {}
        self.waiting: dict[str, int] = {}
        self.floor = 0.0

    def wait(self, tenant):
        if tenant not in self.waiting:
            if self.waiting:
                self.floor = max(self.floor, min(self.values[other] for other in self.waiting))
            self.values[tenant] = max(self.values.get(tenant, 0.0), self.floor)
        self.waiting[tenant] = self.waiting.get(tenant, 0) + 1

    def leave(self, tenant):
        self.waiting[tenant] -= 1
        if self.waiting[tenant]:
            return
        del self.waiting[tenant]
        lowest = min(self.values[other] for other in self.waiting) if self.waiting else self.values[tenant]
        self.floor = max(self.floor, lowest)
        if not self.waiting and max(self.values.values()) <= self.floor:
            # Nobody is before anybody: only differences mean anything, so counting starts anew.
            self.values, self.floor = {}, 0.0


def serve(
    weights: dict[str, float], lengths: dict[str, list[tuple[int, int]]], num_steps: int, **scheduler: Any
) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Keep two tenants backlogged; return the counters' values after each step, and tokens per tenant."""
    rig = Rig(
        num_pages=60,
        page_size=16,
        prefix_caching=False,
        scheduling_policy="fcfs",
        tenants={name: TenantConfig(weight=weight) for name, weight in weights.items()},
        **scheduler,
    )
    served = dict.fromkeys(weights, 0.0)
    owner: dict[int, str] = {}
    added = dict.fromkeys(weights, 0)
    series = []
    for _ in range(num_steps):
        for tenant in weights:
            while rig.scheduler.state.waiting.backlog.of_tenant(tenant).num_requests < 3:
                prompt, output = lengths[tenant][added[tenant] % len(lengths[tenant])]
                owner[rig.add(prompt, max_tokens=output, tenant=tenant)] = tenant
                added[tenant] += 1
        rig.step()
        counters = rig.scheduler.state.ledger.counters
        series.append({tenant: counters.value(0, tenant) for tenant in weights})
    for event in rig.log.events:
        if isinstance(event, Scheduled):
            for chunk in event.chunks:
                served[owner[chunk.request_id]] += chunk.length
        elif isinstance(event, TokensEmitted):
            for request_id in event.request_ids:
                served[owner[request_id]] += 2
    return series, served


sizes = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=4)


@settings(max_examples=25, deadline=None)
@given(a=sizes, b=sizes, num_seqs=st.integers(2, 6), weight=st.sampled_from([1.0, 2.0]))
def test_counters_of_two_backlogged_tenants_stay_within_the_bound(a, b, num_seqs, weight):
    series, _ = serve(
        {"a": weight, "b": 1.0},
        {"a": a, "b": b},
        80,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=num_seqs + 16,
        tenant_order="fair",
        guaranteed_share=0.0,
    )
    # One admission too many, and the outputs of all that run: what the counters cannot foresee.
    largest = max(prompt for prompt, _ in a + b) + 2 * num_seqs * max(output for _, output in a + b)
    assert max(abs(values["a"] - values["b"]) for values in series) <= largest


@pytest.mark.parametrize("order", ["none", "fair"])
def test_ten_times_as_many_requests_bring_ten_times_the_service_only_without_fairness(order):
    rig = Rig(num_pages=80, max_num_seqs=8, max_num_batched_tokens=64, tenant_order=order, prefix_caching=False)
    owner = {}
    for number in range(440):
        tenant = "few" if number % 11 == 10 else "many"
        owner[rig.add(16, max_tokens=8, tenant=tenant)] = tenant
    while rig.scheduler.state.waiting.backlog.of_tenant("few").num_requests and rig.num_steps < 200:
        rig.step()
    tokens = {"many": 0, "few": 0}
    for event in rig.log.of(TokensEmitted):
        for request_id in event.request_ids:
            tokens[owner[request_id]] += 1
    x, y = tokens["many"], tokens["few"]
    jain = (x + y) ** 2 / (2 * (x * x + y * y))
    assert jain >= 0.99 if order == "fair" else jain < 0.7


def test_weights_of_two_to_one_give_service_of_two_to_one():
    _, served = serve(
        {"a": 2.0, "b": 1.0},
        {"a": [(20, 10)], "b": [(20, 10)]},
        1500,
        max_num_seqs=6,
        max_num_batched_tokens=32,
        tenant_order="fair",
    )
    assert served["a"] / served["b"] == pytest.approx(2.0, rel=0.02)


def test_work_that_a_preemption_repeats_is_free():
    def charged(num_pages: int) -> tuple[float, int]:
        rig = Rig(num_pages=num_pages, max_num_batched_tokens=32, tenant_order="fair")
        charges = record_charges(rig)
        for _ in range(4):
            rig.add(8, max_tokens=24, tenant="t")
        rig.run()
        return sum(charges), rig.scheduler.stats().preemptions_total

    relaxed, none = charged(200)
    pressed, some = charged(17)
    assert none == 0
    assert some > 0
    assert relaxed == pressed == 4 * (8 + 2 * 24)


def test_cached_prompt_tokens_are_charged_by_the_factor():
    rig = Rig(max_num_batched_tokens=64)
    charges = record_charges(rig)
    rig.add(list(range(41)), max_tokens=1, tenant="t")
    rig.run()
    assert charges == [41, 2]
    rig.add(list(range(41)), max_tokens=1, tenant="t")
    rig.run()
    assert charges[2:] == [pytest.approx(1 + 40 * VirtualCounters.CACHED_FACTOR), 2]


def record_charges(rig: Rig) -> list[float]:
    """Every charge from now on, as it comes."""
    charges: list[float] = []
    counters = rig.scheduler.state.ledger.counters
    charge = counters.charge

    def recorded(tier: int, tenant: str, num_weighted_tokens: float) -> None:
        charges.append(num_weighted_tokens)
        charge(tier, tenant, num_weighted_tokens)

    counters.charge = recorded  # type: ignore[method-assign]
    return charges
