import pytest

from chairlift.benchmark.fairness import shares_of
from chairlift.benchmark.records import CallRecord

S = 1_000_000_000


def record(tenant: str, due_s: float, end_s: float, every_s: float = 1.0) -> CallRecord:
    """A token each ``every_s`` seconds from ``due_s`` on, before ``end_s``."""
    made = CallRecord(
        number=0,
        stream=0,
        tier=0,
        tenant=tenant,
        due_ns=int(due_s * S),
        sent_ns=int(due_s * S) or 1,
        end_ns=int(end_s * S),
    )
    at_s = due_s + every_s / 2
    while at_s < end_s:
        made.tally.times_ns.append(int(at_s * S))
        made.tally.counts.append(1)
        at_s += every_s
    return made


def test_only_tokens_count_that_came_while_everybody_wanted_some() -> None:
    # a: [0, 10), b: [4, 8) and [12, 14). Both want something in [4, 8): a gets 4 tokens there, b 8.
    shares = shares_of([record("a", 0, 10), record("b", 4, 8, 0.5), record("b", 12, 14)], {})
    assert shares.contended_s == pytest.approx(4)
    assert shares.tokens == {"a": 4, "b": 8}
    assert shares.jain_index == pytest.approx((4 + 8) ** 2 / (2 * (16 + 64)))


def test_weights_say_what_is_even() -> None:
    shares = shares_of([record("a", 0, 10), record("b", 0, 10, 0.5)], {"b": 2.0})
    assert shares.jain_index == pytest.approx(1.0)


def test_overlapping_requests_of_a_tenant_are_one_stretch() -> None:
    shares = shares_of([record("a", 0, 3), record("a", 2, 6), record("b", 1, 5)], {})
    assert shares.contended_s == pytest.approx(4)


def test_one_tenant_or_none_at_a_time_says_nothing_about_fairness() -> None:
    assert shares_of([record("a", 0, 3)], {}).jain_index is None
    assert shares_of([record("a", 0, 3), record("b", 4, 5)], {}).jain_index is None
    assert shares_of([], {}).jain_index is None
