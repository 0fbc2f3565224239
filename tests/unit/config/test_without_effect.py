"""Settings that change nothing are named, with the reason; those that change something are not."""

from pathlib import Path

import pytest

from chairlift.config.load import load_settings
from chairlift.config.tenants import Tenants, read_tenants
from chairlift.config.without_effect import settings_without_effect

KEYS = '[tenants.a]\nkeys = ["sk-a"]\n'
NO_KEYS = "[tenants.b]\nweight = 2.0\n"


def told(values: dict[str, object], tenants: Tenants | None = None) -> list[str]:
    return settings_without_effect(load_settings(values, env={}), tenants)


def tenants_of(text: str, folder: Path) -> Tenants:
    path = folder / "tenants.toml"
    path.write_text(text)
    return read_tenants(path, {})


@pytest.mark.parametrize(
    ("name", "value", "beside", "why"),
    [
        ("fake_step_ms", 5.0, {}, "--executor is torch"),
        ("model", "some/model", {"executor": "fake"}, "--executor fake"),
        ("quantization", "q4", {"executor": "fake"}, "--executor fake"),
        ("kv_cache_dtype", "int8", {"executor": "fake"}, "--executor fake"),
        ("gpu_memory_utilization", 0.9, {"kv_cache_memory": "1GiB"}, "--kv-cache-memory 1GiB"),
        ("swap_space", "1GiB", {}, "--preemption-mode recompute"),
        ("quantum_tokens", 64, {}, "--scheduling-policy is fcfs"),
        ("max_equal_wait_ms", 64, {"scheduling_policy": "deadline"}, "--scheduling-policy is deadline"),
        ("long_prefill_token_threshold", 64, {"enable_chunked_prefill": False}, "--no-enable-chunked-prefill"),
        ("isolate_prefix_cache", True, {"enable_prefix_caching": False, "trust_user": True}, "shares no prefixes"),
        ("isolate_prefix_cache", True, {}, "--tenants, --tenant-header or --trust-user"),
        ("tenant_order", "fair", {}, "--tenants, --tenant-header or --trust-user"),
        ("log_prompt_chars", 9, {}, "--enable-log-requests"),
        ("max_batch_files", 9, {}, "without --batch-dir"),
        ("batch_concurrency", 9, {}, "without --batch-dir"),
    ],
)
def test_a_setting_that_changes_nothing_is_named_with_the_reason(
    name: str, value: object, beside: dict[str, object], why: str
) -> None:
    (line,) = told({name: value, **beside})
    assert line.startswith(f"--{name.replace('_', '-')} has no effect: ")
    assert why in line


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"model": "some/model", "quantization": "q4", "gpu_memory_utilization": 0.9, "num_threads": 2},
        {"executor": "fake", "fake_step_ms": 5.0, "kv_cache_memory": "1GiB"},
        {"swap_space": "1GiB", "preemption_mode": "swap"},
        {"swap_space": "1GiB", "preemption_mode": "auto"},
        {"swap_space": "0GiB"},
        {"quantum_tokens": 64, "scheduling_policy": "preemptive"},
        {"long_prefill_token_threshold": 64},
        {"isolate_prefix_cache": True, "tenant_order": "fair", "trust_user": True},
        {"isolate_prefix_cache": True, "tenant_header": "X-Tenant"},
        {"log_prompt_chars": 9, "enable_log_requests": True},
        {"batch_concurrency": 9, "batch_dir": "folder"},
    ],
    ids=str,
)
def test_what_changes_something_is_not_named(values: dict[str, object]) -> None:
    assert told(values) == []


def test_tenants_are_told_apart_by_keys_alone_where_every_key_names_one(tmp_path: Path) -> None:
    tenants = tenants_of(KEYS, tmp_path)
    assert told({"tenant_order": "fair", "isolate_prefix_cache": True}, tenants) == []
    (line,) = told({"trust_user": True}, tenants)
    assert line.startswith("--trust-user has no effect: every key of --tenants")
    assert told({"trust_user": True, "api_key": "sk"}, tenants) == []


def test_a_tenant_that_no_request_can_be_of_is_named(tmp_path: Path) -> None:
    tenants = tenants_of(KEYS + NO_KEYS, tmp_path)
    (line,) = told({}, tenants)
    assert line.startswith("[tenants] b of --tenants: no request can be theirs")
    assert told({"tenant_header": "X-Tenant", "api_key": "sk"}, tenants) == []
