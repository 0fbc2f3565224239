"""What is counted by tier and tenant, against a plain list of what happened."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chairlift.config.resolved import TenantConfig, TenantTable
from chairlift.observability.accounts import Objectives
from chairlift.observability.label_cap import OTHER, LabelCap
from chairlift.observability.metrics import FINISH_REASONS, MAX_OTHER_TENANTS, MAX_OTHER_TIERS, Metrics
from chairlift.observability.recorder import Recorder
from chairlift.observability.request_record import RequestRecord

MS = 1_000_000
ENDS = st.sampled_from([reason for reason in FINISH_REASONS if reason != "rejected"])


class CountingMachine(RuleBasedStateMachine):
    """Requests of many tenants and tiers come, get tokens and end in every way, while time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.recorder = Recorder(Metrics(), TenantTable(by_name={"known": TenantConfig(most_urgent_tier=-1)}))
        self.now_ns = 0
        self.live: list[tuple[RequestRecord, int]] = []
        self.has_tokens: set[tuple[RequestRecord, int]] = set()
        self.ends: Counter[str] = Counter()
        self.num_received = self.num_firsts = self.num_later = 0

    @rule(
        tenant=st.sampled_from(["", "known"]) | st.integers(0, 60).map(str),
        tier=st.integers(-1, 30),
        num_choices=st.integers(1, 3),
        is_accepted=st.booleans(),
        limit_s=st.none() | st.just(0.05),
    )
    def arrive(self, tenant: str, tier: int, num_choices: int, is_accepted: bool, limit_s: float | None) -> None:
        record = self.recorder.request(
            tier, tenant, Objectives(limit_s), num_prompt_tokens=3, num_choices=num_choices, arrival_ns=self.now_ns
        )
        self.num_received += num_choices
        if is_accepted:
            self.live.extend((record, choice) for choice in range(num_choices))
        else:
            record.refused(is_missed=True)
            self.ends["rejected"] += num_choices

    @rule(seconds=st.sampled_from([0.01, 1.0, 700.0]))
    def pass_time(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1000 * MS)
        self.recorder.compare_service(self.now_ns)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), num_tokens=st.integers(1, 4))
    def generate(self, data: st.DataObject, num_tokens: int) -> None:
        record, choice = data.draw(st.sampled_from(self.live))
        record.tokens(choice, num_tokens, self.now_ns)
        if (record, choice) in self.has_tokens:
            self.num_later += num_tokens
        else:
            self.has_tokens.add((record, choice))
            self.num_firsts += 1

    @precondition(lambda self: self.live)
    @rule(data=st.data(), reason=ENDS)
    def end(self, data: st.DataObject, reason: str) -> None:
        record, choice = data.draw(st.sampled_from(self.live))
        self.live.remove((record, choice))
        record.ended(choice, reason, self.now_ns)
        self.ends[reason] += 1

    @invariant()
    def everything_is_counted_once_and_labels_are_few(self) -> None:
        totals: Counter[str] = Counter()
        labels: dict[str, set[str]] = {"tier": set(), "tenant": set()}
        for family in self.recorder.metrics.registry.collect():
            for sample in family.samples:
                reason = f"/{sample.labels['reason']}" if "reason" in sample.labels else ""
                totals[sample.name.removeprefix("chairlift_") + reason] += sample.value  # type: ignore[assignment]
                for label, values in labels.items():
                    values.update({sample.labels[label]} if label in sample.labels else ())
        assert totals["requests_received_total"] == self.num_received
        assert {reason: totals[f"requests_finished_total/{reason}"] for reason in FINISH_REASONS} == {
            reason: self.ends[reason] for reason in FINISH_REASONS
        }
        assert totals["time_to_first_token_seconds_count"] == self.num_firsts
        assert totals["inter_token_latency_seconds_count"] == self.num_later
        assert totals["tenant_time_to_first_token_seconds_count"] <= self.num_firsts
        assert 0 <= totals["fairness_jain_ratio"] <= 1 + 1e-9
        assert len(labels["tenant"]) <= MAX_OTHER_TENANTS + 3  # known, default and other
        assert len(labels["tier"]) <= MAX_OTHER_TIERS + 3  # 0, -1 and other

    @invariant()
    def who_has_unfinished_requests_has_an_account(self) -> None:
        accounts = self.recorder._accounts._accounts.values()
        assert sum(account.num_unfinished for account in accounts) == len(self.live)


TestCounting = CountingMachine.TestCase
TestCounting.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)


def test_the_cap_holds_and_known_names_never_lose_their_label() -> None:
    removed: list[str] = []
    cap = LabelCap({"a"}, 3, idle_s=10, on_removed=removed.append)
    labels = [cap.label(name, 0) for name in ("a", "b", "c", "d", "e", "b", "a")]
    assert labels == ["a", "b", "c", "d", OTHER, "b", "a"]
    assert cap.label("e", 10 * 10**9) == "e"
    assert removed == ["c"]  # b was used after it
    cap.add_known(["d"])
    assert [cap.label(name, 10 * 10**9) for name in ("f", "d", "a")] == ["f", "d", "a"]
