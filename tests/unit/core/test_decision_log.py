"""What is in the log, what is not, and that a replay notices every kind of difference."""

import json
from copy import deepcopy

import pytest

from chairlift.config.resolved import CacheConfig, SchedulerConfig, TenantConfig
from chairlift.core.decision_log import Entry, RecordingKeyer, read_configs, start_entry
from chairlift.core.logged_scheduler import LoggedScheduler
from chairlift.core.page_keys import DigestKeyer
from chairlift.core.replay import replay
from chairlift.core.request import FinishReason, Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.scheduler import Scheduler
from chairlift.core.stepper import Stepper
from chairlift.errors import ConfigurationError
from chairlift.execution.fake import FakeExecutor

PROMPT = [7001, 7002, 7003, 7004, 7005, 7006, 7007, 7008]


def run(
    *, num_requests: int = 3, secret: bytes = b"s", prompt_logprobs: int | None = None
) -> tuple[list[Entry], Scheduler]:
    """A few requests with a common prompt, one of them aborted, and the log of it."""
    entries: list[Entry] = []
    scheduler = LoggedScheduler(
        SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=16, max_model_len=64),
        CacheConfig(num_pages=16, page_size=4),
        write=lambda entry: entries.append(json.loads(json.dumps(entry))),
        secret=secret,
    )
    stepper = Stepper(scheduler, FakeExecutor(16, 4, vocab_size=9000, step_duration_ns=5_000_000))
    for request_id in range(num_requests):
        params = SamplingParams(max_tokens=12, prompt_logprobs=prompt_logprobs)
        scheduler.add(Request(request_id, PROMPT, params, seed=request_id), request_id)
    for step in range(60):
        if stepper.step(step * 5_000_000) is None:
            break
        if step == 4:
            scheduler.finish(0, FinishReason.ABORT)
    return entries, scheduler


def kinds(entries: list[Entry], kind: str) -> list[Entry]:
    return [entry for entry in entries if entry["kind"] == kind]


def test_a_log_replays_to_identical_plans() -> None:
    entries, _ = run()
    report = replay(entries)
    assert report.difference is None
    assert report.num_plans == len(kinds(entries, "plan")) > 10


def test_a_replay_knows_who_may_not_start_from_cached_pages() -> None:
    entries, scheduler = run(prompt_logprobs=0)
    assert scheduler.stats().prefix_hit_tokens_total == 0
    assert replay(entries).difference is None
    for entry in kinds(entries, "add"):
        del entry["prompt_logprobs"]
    assert replay(entries).difference is not None


def test_no_token_is_in_the_log() -> None:
    entries, scheduler = run()
    text = json.dumps(entries)
    assert not any(str(token) in text for token in PROMPT)
    assert scheduler.stats().generation_tokens_total > 10


def test_page_keys_are_worthless_without_the_secret() -> None:
    first, second = run(secret=b"one")[0], run(secret=b"two")[0]
    keys = [[entry["keys"] for entry in entries if "keys" in entry] for entries in (first, second)]
    assert keys[0] != keys[1]
    assert len(str(keys[0])) == len(str(keys[1]))


def test_equal_pages_have_equal_keys() -> None:
    recorder = RecordingKeyer(DigestKeyer(), b"s")
    root = recorder.root(None, None)
    recorder.extend(root, PROMPT, 4)
    recorder.extend(root, [*PROMPT[:4], 1, 2, 3, 4], 4)
    first, second = recorder.take()
    assert first[0] == second[0]
    assert first[1] != second[1]
    assert recorder.take() == []


def test_durations_and_fitted_values_are_in_the_log() -> None:
    entries, scheduler = run()
    commits = kinds(entries, "commit")
    assert all(commit["ns"] == 5_000_000 for commit in commits)
    fits = [commit["fit"] for commit in commits if "fit" in commit]
    assert len(fits) >= 2
    assert fits[-1][0] > 0
    assert len(fits[-1]) == 4
    assert scheduler.latency.is_ready


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("plan", lambda entry: entry["plan"]["chunks"][0].__setitem__(2, 1)),
        ("plan", lambda entry: entry["plan"].update(ended=[99])),
        ("plan", lambda entry: entry["plan"].update(decodes=7)),
        ("plan", lambda entry: entry.update(waiting=17)),
        ("plan", lambda entry: entry.update(plan=None)),
        ("add", lambda entry: entry.update(prompt=4)),
        ("add", lambda entry: entry.update(tier=5)),
        ("end", lambda entry: entry.update(id=1)),
        ("end", lambda entry: entry.update(id=77)),
        ("commit", lambda entry: entry.update(stopped=[0])),
        ("commit", lambda entry: entry.update(step=3)),
    ],
)
def test_every_change_to_a_log_is_noticed(kind, change) -> None:
    entries = deepcopy(run()[0])
    change(kinds(entries, kind)[0])
    difference = replay(entries).difference
    assert difference is not None
    assert difference.logged != difference.replayed


def test_missing_page_keys_are_noticed() -> None:
    entries = run()[0]
    entry = next(entry for entry in entries if "keys" in entry)
    del entry["keys"]
    difference = replay(entries).difference
    assert difference is not None
    assert "page keys" in difference.logged


def test_other_durations_give_other_fitted_values() -> None:
    entries = run()[0]
    for commit in kinds(entries, "commit"):
        commit["ns"] *= 2
    difference = replay(entries).difference
    assert difference is not None
    assert difference.what.startswith("fitted values")


def test_a_restarted_engine_goes_on_in_the_same_log() -> None:
    entries = run()[0]
    report = replay([*entries, *entries])
    assert report.difference is None
    assert report.num_runs == 2


def test_settings_come_back_as_they_were() -> None:
    scheduler = SchedulerConfig(
        scheduling_policy="shortest",
        target_tpot_ms=33.3,
        tenants={"a": TenantConfig(weight=2.5, max_kv_pages=9)},
        default_tenant=TenantConfig(max_num_queued_reqs=4),
    )
    cache = CacheConfig(num_pages=99, page_size=32, num_host_pages=3)
    assert read_configs(json.loads(json.dumps(start_entry(scheduler, cache)))) == (scheduler, cache)


def test_a_file_that_is_no_log_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no entry"):
        replay([])
    with pytest.raises(ConfigurationError, match="does not begin"):
        replay([{"kind": "plan", "t": 0}])
    with pytest.raises(ConfigurationError, match="version 99"):
        replay([{"kind": "start", "version": 99}])
    with pytest.raises(ConfigurationError, match="not those of this Chairlift"):
        replay([{**run()[0][0], "cache": {"num_pages": 4, "colour": "red"}}])
    with pytest.raises(ConfigurationError, match="kind 'dance'"):
        replay([run()[0][0], {"kind": "dance"}])
    with pytest.raises(ConfigurationError, match="without 'id'"):
        replay([run()[0][0], {"kind": "end", "reason": "abort"}])
