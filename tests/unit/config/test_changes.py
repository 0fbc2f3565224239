import pytest

from chairlift.config.changes import (
    CHANGEABLE,
    QUEUE_FIELDS,
    SCHEDULER_FIELDS,
    TENANT_FIELDS,
    changes_again,
    check_changes,
    settings_in_force,
)
from chairlift.config.resolved import SchedulerConfig, TenantConfig
from chairlift.config.sections import QueueSettings
from chairlift.config.settings import settings_by_name
from chairlift.errors import ConfigurationError

SCHEDULER = SchedulerConfig(tenants={"a": TenantConfig(weight=2.0, max_kv_pages=5), "b": TenantConfig()})
QUEUE = QueueSettings(max_num_queued_reqs=4)


def test_every_changeable_setting_is_one_and_lands_where_it_belongs() -> None:
    assert set(CHANGEABLE) == {*SCHEDULER_FIELDS, *QUEUE_FIELDS, *TENANT_FIELDS}
    assert set(CHANGEABLE) - set(TENANT_FIELDS) <= set(settings_by_name())
    changes = check_changes({"watermark": 0.5, "max_ttft_ms": 100, "queue_timeout": 2}, SCHEDULER, QUEUE)
    assert changes.scheduler == {"watermark": 0.5, "queue_timeout_s": 2.0}
    assert changes.queue == QueueSettings(max_num_queued_reqs=4, max_ttft_ms=100.0, queue_timeout=2.0)


def test_null_takes_away_what_may_be_absent() -> None:
    changes = check_changes({"target_tpot_ms": None, "max_num_queued_reqs": None}, SCHEDULER, QUEUE)
    assert (changes.scheduler["target_tpot_ms"], changes.queue.max_num_queued_reqs) == (None, None)
    for name in ("watermark", "max_num_batched_tokens", "max_num_seqs"):
        with pytest.raises(ConfigurationError, match="needs a value, got null"):
            check_changes({name: None}, SCHEDULER, QUEUE)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("max_num_seqs", "4"),
        ("watermark", "0.5"),
        ("queue_timeout", "2"),
        ("target_tpot_ms", ""),
        ("quantum_tokens", "x"),
    ],
)
def test_a_text_is_no_number(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"must be a .*number, got the text '{text}'"):
        check_changes({name: text}, SCHEDULER, QUEUE)


def test_tenants_keep_what_is_not_said() -> None:
    given = {
        "tenants": {"a": {"weight": 3}, "b": None, "c": {"most_urgent_tier": 2}},
        "default_tenant": {"weight": 0.5},
    }
    fields = check_changes(given, SCHEDULER, QUEUE).scheduler
    assert fields["default_tenant"] == TenantConfig(weight=0.5)
    assert fields["tenants"] == {
        "a": TenantConfig(weight=3.0, max_kv_pages=5),
        "c": TenantConfig(weight=0.5, most_urgent_tier=2),
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"watermark": 1}, "--watermark must be at most 0.9, got 1"),
        ({"watermark": True}, "--watermark must be a finite number, got True"),
        ({"admission": "generous"}, "--admission must be one of optimistic"),
        ({"scheduling_policy": "fcsf"}, "got 'fcsf'; did you mean fcfs?"),
        ({"port": 1}, "--port cannot be changed while running"),
        ({"tenant": {}}, "there is no setting 'tenant'; did you mean tenants?"),
        ({"tenants": 3}, "tenants must be an object"),
        ({"tenants": {"a": 3}}, "tenants.a must be an object"),
        ({"tenants": {"a": {"keys": ["sk"]}}}, "tenants.a has no 'keys'"),
        ({"tenants": {"other": {}}}, "'other' is no tenant's name"),
        ({"default_tenant": None}, "default_tenant must be an object"),
        ({"tenants": {f"t{number}": {} for number in range(10_001)}}, "10000 is the limit"),
    ],
)
def test_what_cannot_be_changed_is_refused(given: dict, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_changes(given, SCHEDULER, QUEUE)
    assert said in caught.value.message


def test_a_fresh_engine_comes_to_the_same_settings() -> None:
    given = {"watermark": 0.5, "max_ttft_ms": 9, "tenants": {"a": None, "c": {"weight": 3}}}
    changes = check_changes(given, SCHEDULER, QUEUE)
    changed = SchedulerConfig(**{"tenants": SCHEDULER.tenants, **changes.scheduler})  # type: ignore[arg-type]
    again = changes_again(given, changed, changes.queue, SCHEDULER.tenants)
    repeated = check_changes(again, SCHEDULER, QUEUE)
    assert SchedulerConfig(**repeated.scheduler) == changed  # type: ignore[arg-type]
    assert repeated.queue == changes.queue
    assert settings_in_force(changed, repeated.queue)["tenants"] == {
        "b": settings_in_force(SCHEDULER, QUEUE)["default_tenant"],
        "c": {**settings_in_force(SCHEDULER, QUEUE)["default_tenant"], "weight": 3.0},  # type: ignore[dict-item]
    }


def test_tenants_that_were_not_changed_are_not_set_again() -> None:
    changed = check_changes({"watermark": 0.5}, SCHEDULER, QUEUE)
    now = SchedulerConfig(tenants=SCHEDULER.tenants, **changed.scheduler)  # type: ignore[arg-type]
    assert changes_again(["watermark"], now, QUEUE, SCHEDULER.tenants) == {"watermark": 0.5}


@pytest.mark.parametrize("name", ["queue_timeout", "max_ttft_ms", "target_tpot_ms", "max_equal_wait_ms"])
def test_no_time_is_so_long_that_nanoseconds_cannot_count_it(name: str) -> None:
    with pytest.raises(ConfigurationError, match="must be at most"):
        check_changes({name: 2**63 - 1}, SCHEDULER, QUEUE)
    if name != "max_equal_wait_ms":
        with pytest.raises(ConfigurationError, match="must be at most"):
            check_changes({name: 1e308}, SCHEDULER, QUEUE)
