"""The benchmark's command line: what flags make, what is refused, and how results are compared."""

import json
import math
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from chairlift.benchmark.plan import LoadPlan
from chairlift.benchmark.probe import Dialect
from chairlift.benchmark.prompts import TextScale
from chairlift.benchmark.wire import Wire
from chairlift.cli.bench import offline
from chairlift.cli.bench_load import is_chat_load, parse_goodput, read_plan
from chairlift.cli.bench_serve import _target, _tenants, serve
from chairlift.cli.main import cli
from chairlift.errors import ConfigurationError

URL = "http://127.0.0.1:9"


def invoke(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(cli, ["bench", *arguments], catch_exceptions=False, env=env)


def flags(*arguments: str) -> dict[str, Any]:
    with serve.make_context("serve", ["--base-url", URL, *arguments]) as context:
        return context.params


def plan(*arguments: str) -> LoadPlan:
    return read_plan(flags(*arguments), [])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    row = '{"timestamp": %d, "input_length": 6, "output_length": 3, "hash_ids": [1]}\n'
    path.write_text("".join(row % (4000 * i) for i in range(5)))
    return path


def test_without_a_rate_so_many_requests_are_kept_on_their_way() -> None:
    (stream,) = plan("--max-concurrency", "7", "--num-prompts", "20").workload.streams
    assert (stream.concurrency, stream.num_requests, stream.rate_per_s) == (7, 20, None)
    (stream,) = plan("--num-prompts", "20").workload.streams
    assert stream.concurrency == 20
    assert plan("--max-concurrency", "7").limits.max_concurrency is None


def test_both_commands_take_the_number_of_requests_under_both_names() -> None:
    for flag in ("--num-prompts", "--num-requests"):
        assert flags(flag, "20")["num_prompts"] == 20
        with offline.make_context("offline", [flag, "20"]) as context:
            assert context.params["num_requests"] == 20


def test_burstiness_is_the_shape_of_the_gamma_distribution() -> None:
    made = plan("--request-rate", "5", "--burstiness", "0.25", "--max-concurrency", "3")
    (stream,) = made.workload.streams
    assert (stream.rate_per_s, stream.burstiness_cv, stream.concurrency) == (5.0, 2.0, None)
    assert made.limits.max_concurrency == 3


def test_the_plan_says_how_much_is_sent_and_when(trace: Path) -> None:
    ramp_up = ("--ramp-up-strategy", "linear", "--ramp-up-start-rps", "1", "--ramp-up-end-rps", "4")
    streams = ("--trace", f"{trace},name=a,concurrency=2", "--trace", f"{trace},name=b,rate=5")
    for arguments, said in (
        (("--num-prompts", "20"), "20 requests, all at once"),
        (("--num-prompts", "20", "--max-concurrency", "7"), "20 requests, 7 at a time"),
        (("--request-rate", "2.5", "--max-concurrency", "3"), "100 requests, 2.5 per second, 3 on their way at most"),
        (("--request-rate", "2", "--duration", "30"), "requests for 30 s, 2 per second"),
        ((*ramp_up, "--num-prompts", "50"), "50 requests, 1 to 4 per second"),
        (("--dataset-name", "conversations", "--num-prompts", "3"), "3 conversations, all at once"),
        (("--trace", str(trace), "--num-prompts", "5"), "5 requests, when the trace says"),
        ((*streams, "--num-prompts", "5"), "10 requests, a: 2 at a time, b: 5 per second"),
    ):
        assert plan(*arguments).describe() == said


def test_ramps() -> None:
    (stream,) = plan(
        "--ramp-up-strategy", "linear", "--ramp-up-start-rps", "1", "--ramp-up-end-rps", "4", "--num-prompts", "50"
    ).workload.streams
    assert [(point.at_s, point.rate_per_s) for point in stream.ramp] == [(0, 1), (20, 4)]
    (stream,) = plan("--ramp", "0:1/60:8").workload.streams
    assert [(point.at_s, point.rate_per_s) for point in stream.ramp] == [(0, 1), (60, 8)]


def test_lengths_of_random_prompts_have_a_range() -> None:
    (stream,) = plan(
        "--random-input-len", "100", "--random-output-len", "10", "--random-range-ratio", "0.5"
    ).workload.streams
    requests = plan_requests(stream)
    assert {request.num_prompt_tokens for request in requests} <= set(range(50, 151))
    assert {request.num_output_tokens for request in requests} <= set(range(5, 16))
    assert len({request.num_prompt_tokens for request in requests}) > 20


def plan_requests(stream: Any) -> list[Any]:
    from chairlift.workload.streams import Workload

    return list(Workload((stream,)).closed_loops()[0])


def test_a_trace_keeps_its_own_moments_unless_a_rate_is_given(trace: Path) -> None:
    made = plan("--dataset-name", "trace", "--dataset-path", str(trace), "--num-prompts", "5")
    assert [request.arrival_ns for request in made.workload.arrivals()] == [4_000_000_000 * i for i in range(5)]
    made = plan("--trace", f"{trace},tenant=a,tier=1", "--trace", f"{trace},name=two", "--request-rate", "2")
    assert [stream.tenant for stream in made.workload.streams] == ["a", ""]
    assert made.has_tiers
    assert all(stream.rate_per_s == 2 for stream in made.workload.streams)


def test_random_content_is_new_each_time_unless_it_is_to_be_the_same() -> None:
    dialect = Dialect(wire=Wire(is_chat=False, model="m"), vocab_size=500, scale=TextScale())

    def bodies(*arguments: str) -> set[bytes | None]:
        load = plan("--num-prompts", "3", "--random-input-len", "9", *arguments).load(dialect, run=1)
        return {call.body for call in load.closed_loops()[0]}

    assert bodies("--same-prompts") == bodies("--same-prompts")
    assert not bodies("--same-prompts") & bodies("--same-prompts", "--seed", "1")
    assert not bodies() & bodies()


def test_files_of_prompts_are_sent_once_and_as_chat(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "a"}\n{"turns": ["b", "c"]}\n')
    given = ("--dataset-name", "custom", "--dataset-path", str(path), "--output-len", "9")
    made = plan(*given)
    (stream,) = made.workload.streams
    assert (stream.num_requests, len(made.exchanges)) == (2, 2)
    assert is_chat_load(flags(*given))
    assert not is_chat_load(flags())


def test_token_ids_of_a_file_are_not_sent_as_chat(tmp_path: Path) -> None:
    path = tmp_path / "ids.jsonl"
    path.write_text('{"prompt": [1, 2, 3]}\n')
    given = ("--dataset-name", "custom", "--dataset-path", str(path))
    assert not _target(flags(*given), {}, plan(*given)).is_chat
    with pytest.raises(ConfigurationError, match="token ids, which --backend openai-chat cannot ask"):
        _target(flags(*given, "--backend", "openai-chat"), {}, plan(*given))


def test_objectives_are_read_in_one_text_or_several() -> None:
    expected = {"ttft_ms": 500.0, "tpot_ms": 50.0, "e2e_ms": 9000.0}
    assert parse_goodput(["ttft:500 tpot:50", "e2el:9000"]) == expected
    (stream,) = plan("--goodput", "ttft:500,tpot:50,e2el:9000").workload.streams
    assert stream.slo is not None
    assert (stream.slo.ttft_ms, stream.slo.tpot_ms, stream.slo.e2e_ms) == (500, 50, 9000)
    for wrong in ("ttft", "ttft:x", "itl:5", "ttft:-1", "ttft:inf"):
        with pytest.raises(ConfigurationError, match="--goodput takes ttft, tpot, e2el"):
            parse_goodput([wrong])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--base-url", "localhost:8000"], "must begin with http"),
        (["--burstiness", "2"], "--burstiness needs a --request-rate"),
        (["--request-rate", "0"], "not a positive number"),
        (["--request-rate", "fast"], "not a positive number"),
        (["--ramp-up-strategy", "linear"], "need each other"),
        (["--ramp", "0:1/9:2", "--request-rate", "3"], "a ramp takes no --request-rate"),
        (["--ramp", "sometimes"], "ramp of --dataset-name random must be"),
        (["--dataset-name", "custom"], "needs a --dataset-path"),
        (["--dataset-name", "custom", "--dataset-path", "/nowhere.jsonl"], "cannot be read"),
        (["--dataset-name", "mt-bench", "--trace", "x"], "give only one of"),
        (["--trace", "/nowhere.csv"], "cannot be read"),
        (["--duration", "5"], "--duration needs a rate"),
        (["--percentile-metrics", "ttfb"], "--percentile-metrics has no ttfb"),
        (["--metric-percentiles", "0"], "in (0, 100]"),
        (["--extra-body", "{"], "--extra-body is not JSON"),
        (["--extra-body", "[]"], "must be a JSON object"),
        (["--extra-body", '{"model": "x"}'], "--extra-body must not have model"),
        (["--api-key", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE, which is not set"),
        (["--tenant", "a", "--tenant", "a"], "each name once"),
        (["--json", "/nowhere/out.json"], "its folder does not exist"),
        (["--save-detailed"], "--save-detailed needs --json"),
        (["--prefix-file", "/nowhere"], "--prefix-file needs prompts that are text"),
        (["--goodput", "fast"], "--goodput takes"),
    ],
)
def test_what_cannot_work_is_one_clear_line(arguments: list[str], said: str) -> None:
    address = [] if "--base-url" in arguments else ["--base-url", URL]
    result = CliRunner().invoke(cli, ["bench", "serve", *address, *arguments])
    if isinstance(result.exception, ConfigurationError):
        assert said in result.exception.message
        assert "\n" not in result.exception.message
    else:
        assert result.exit_code == 2
        assert said in result.stderr


def test_no_server_is_one_clear_line() -> None:
    from chairlift.errors import EngineUnavailableError

    with pytest.raises(EngineUnavailableError, match=f"no server answers at {URL}"):
        invoke("serve", "--base-url", URL)


def test_keys_come_from_variables_and_are_in_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_ALL", "sk-all")
    monkeypatch.setenv("KEY_A", "sk-a")
    given = flags("--api-key", "KEY_ALL", "--tenant", "a=KEY_A", "--tenant", "b")
    keys, tenants = _tenants(given)
    assert keys == {"": "sk-all", "a": "sk-a"}
    assert tenants == ["a", "b"]
    assert "sk-" not in repr(_target(given, keys, plan()))


def result_file(path: Path, speeds: list[float], ttft: float, **settings: object) -> Path:
    def percentiles(value: float) -> dict[str, float]:
        return {"p50": value, "p90": value, "p95": value, "p99": value}

    runs = [
        {"output_tokens_per_s": speed, "ttft_ms": percentiles(ttft + place), "itl_ms": None, "num_failed": 0}
        for place, speed in enumerate(speeds)
    ]
    content = {
        "schema": "chairlift.bench.serve",
        "schema_version": 1,
        "label": path.stem,
        "settings": settings,
        "runs": runs,
    }
    path.write_text(json.dumps(content))
    return path


def test_results_are_compared_by_medians_and_judged_by_their_spread(tmp_path: Path) -> None:
    first = result_file(tmp_path / "a.json", [100, 110, 90], 50, seed=1)
    second = result_file(tmp_path / "b.json", [200, 220, 180], 51, seed=2)
    result = invoke("compare", str(first), str(second), "--json")
    (compared,) = json.loads(result.stdout)
    found = {one["quantity"]: one for one in compared["quantities"]}
    assert found["output tok/s"]["ratio"] == 2.0
    assert found["output tok/s"]["verdict"] == "better"
    assert found["output tok/s"]["first"] == {"median": 100, "min": 90, "max": 110}
    assert found["TTFT p50, ms"]["verdict"] == "within the spread"
    assert math.isclose(found["TTFT p50, ms"]["ratio"], 52 / 51)
    assert found["failed"]["ratio"] is None
    assert "ITL p50, ms" not in found
    assert compared["changed_settings"] == ["seed: 1 and 2"]
    shown = invoke("compare", str(second), str(first))
    assert "worse" in shown.stdout
    assert "not the same load: seed" in shown.stderr


def test_names_with_brackets_are_compared_as_they_are(tmp_path: Path) -> None:
    first, second = result_file(tmp_path / "a[/v1].json".replace("/", "b"), [100], 50), tmp_path / "b.json"
    changed = json.loads(first.read_text())
    second.write_text(json.dumps({**changed, "label": "x[/bold]\x1b[2J", "settings": {"name": "\x1b"}}))
    result = invoke("compare", str(first), str(second))
    assert result.exit_code == 0
    assert r"x[/bold]\x1b[2J (b.json) against a[bv1] (a[bv1].json)" in " ".join(result.stdout.split())
    assert "\x1b" not in result.stdout + result.stderr


def test_one_run_is_not_judged(tmp_path: Path) -> None:
    first, second = result_file(tmp_path / "a.json", [100], 50), result_file(tmp_path / "b.json", [300], 5)
    result = invoke("compare", str(first), str(second))
    assert "3.000" in result.stdout
    assert "better" not in result.stdout
    assert "--num-runs 3" in result.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "is no result"),
        ('{"schema": "other", "schema_version": 1}', "is no result"),
        ('{"schema": "chairlift.bench.serve", "schema_version": 2}', "version 2, and this tool reads up to version 1"),
        ('{"schema": "chairlift.bench.serve", "schema_version": 1, "runs": []}', "has no runs"),
    ],
)
def test_a_file_that_is_no_result_is_said(tmp_path: Path, text: str, said: str) -> None:
    good, bad = result_file(tmp_path / "a.json", [1], 1), tmp_path / "bad.json"
    bad.write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        invoke("compare", str(good), str(bad))
    with pytest.raises(ConfigurationError, match="needs two results"):
        invoke("compare", str(good))


def test_help_names_every_flag_with_its_meaning() -> None:
    for parameter in serve.params:
        assert isinstance(parameter, click.Option)
        assert parameter.help
