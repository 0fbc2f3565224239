"""The command's words and exit status."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from chairlift.cli.calibrate import calibrate
from chairlift.cli.replay import replay
from chairlift.config.load import load_settings
from chairlift.config.settings import Settings
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.build import build_engine
from chairlift.engine.messages import AddRequest, Choice
from chairlift.errors import ConfigurationError
from tests.harness import present


def make_log(path: Path, **settings: object) -> None:
    """Serve a few requests on the toy model with a log."""
    chosen: Settings = load_settings({"executor": "fake", "max_num_seqs": 4, "swap_space": "64MiB", **settings})
    built = build_engine(chosen, None, decision_log=str(path))
    for number in range(12):
        message = AddRequest(
            choices=(Choice(number, number),),
            prompt_token_ids=tuple(range(1, 40 + number)),
            sampling=SamplingParams(max_tokens=20),
            stop_token_ids=frozenset([3, 5]),
            priority=number % 2,
            tenant="ab"[number % 2],
        )
        assert present(built.runner.add(message, number)).error is None
    now_ns = 100
    while built.runner.step(now_ns) is not None:
        now_ns += 1_000_000
    built.close_log()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"pipeline_depth": 2, "tenant_order": "fair", "scheduling_policy": "shortest", "target_tpot_ms": 5},
        {"kv_cache_memory": "160KiB", "max_model_len": 128, "preemption_mode": "auto", "admission": "optimistic"},
    ],
)
def test_identical_plans_are_reported(tmp_path: Path, settings: dict) -> None:
    path = tmp_path / "log.jsonl"
    make_log(path, **settings)
    result = CliRunner().invoke(replay, [str(path)], standalone_mode=False)
    assert result.return_value == 0
    assert "plans of 1 run are identical" in result.output


def test_the_first_difference_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    make_log(path)
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    plan = [entry for entry in entries if entry["kind"] == "plan"][2]
    plan["plan"]["tokens"] += 1
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    result = CliRunner().invoke(replay, [str(path)], standalone_mode=False)
    assert result.return_value == 1
    assert f"Entry {entries.index(plan) + 1} of the log differs, after 3 plans: plan of step 2, tokens" in result.output
    assert f"logged:   {plan['plan']['tokens']}" in result.output
    assert f"replayed: {plan['plan']['tokens'] - 1}" in result.output


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("scheduler", {"tenants": [1]}),
        ("scheduler", {"default_tenant": 5}),
        ("cache", {"num_pages": 1.5}),
        ("cache", {"num_pages": 10**15}),
        ("cache", {"num_pages": "x"}),
    ],
)
def test_settings_that_no_scheduler_can_have_are_refused(tmp_path: Path, part: str, changes: dict) -> None:
    path = tmp_path / "log.jsonl"
    make_log(path)
    start, *entries = [json.loads(line) for line in path.read_text().splitlines()]
    start[part] |= changes
    path.write_text("".join(json.dumps(entry) + "\n" for entry in [start, *entries]))
    with pytest.raises(ConfigurationError, match="settings"):
        CliRunner().invoke(replay, [str(path)], standalone_mode=False, catch_exceptions=False)


@pytest.mark.parametrize(
    "entry", [{"kind": "commit", "step": 7, "ns": 5}, {"kind": "plan", "t": 0, "plan": {"step": 1}}, {"kind": "commit"}]
)
def test_calibrating_by_a_log_with_an_entry_that_does_not_fit_says_which(tmp_path: Path, entry: dict) -> None:
    path = tmp_path / "log.jsonl"
    make_log(path)
    start, *_ = path.read_text().splitlines()
    path.write_text(f"{start}\n{json.dumps(entry)}\n")
    options = ["--from-log", str(path), "-o", str(tmp_path / "model.json")]
    with pytest.raises(ConfigurationError, match="entry 2 of the decision log does not fit"):
        CliRunner().invoke(calibrate, options, standalone_mode=False, catch_exceptions=False)


def test_calibrating_into_no_folder_is_refused_before_anything_is_timed(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no folder"):
        CliRunner().invoke(
            calibrate, ["-o", str(tmp_path / "absent" / "x")], standalone_mode=False, catch_exceptions=False
        )
