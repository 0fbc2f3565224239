import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chairlift.cli.main import cli
from chairlift.errors import ConfigurationError
from tests.unit.workload.test_decision_log_trace import STEP_NS, serve

LENGTHS = "20,45,210,33,8,67,400,12"
TRACE = '{"timestamp": %d, "input_length": %d, "output_length": %d, "hash_ids": [%d, %d]}\n'


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["simulate", *arguments], catch_exceptions=False)


def simulate(*arguments: str) -> dict:
    result = invoke(*arguments, "--json", "-")
    assert result.exit_code == 0
    return json.loads(result.stdout)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(TRACE % (i // 5 * 3000, 600 + i, 20 + i % 30, 1, 10 + i) for i in range(40)))
    return path


@pytest.mark.parametrize(("lengths", "slots", "utilization"), [(LENGTHS, 8, 0.2484375), ("200,10,60,35", 4, 0.38125)])
def test_static_batching_wastes_exactly_what_arithmetic_says(lengths: str, slots: int, utilization: float) -> None:
    options = ("--output-lengths", lengths, "--max-num-seqs", str(slots), "--batching", "static")
    assert simulate(*options)["slot_utilization"] == utilization
    assert simulate(*options)["num_steps"] == max(map(int, lengths.split(",")))


def test_continuous_batching_keeps_slots_full() -> None:
    found = simulate("--output-lengths", LENGTHS, "--max-num-seqs", "8", "--num-requests", "800")
    assert found["slot_utilization"] >= 0.97
    assert found["num_finished"] == 800
    assert found["num_output_tokens"] == 79_500
    perfect = 79_500 / (8 * 10_172)
    assert found["slot_utilization"] <= perfect + 1e-9


def test_jumping_changes_no_number(trace: Path) -> None:
    options = ("--trace", str(trace), "--num-requests", "60")
    jumped, stepped = simulate(*options), simulate(*options, "--no-jump")
    assert jumped.pop("num_jumped_steps") > 0
    assert stepped.pop("num_jumped_steps") == 0
    del jumped["wall_s"], stepped["wall_s"]
    assert jumped == stepped


def test_runs_are_compared_and_streams_told_apart(trace: Path) -> None:
    found = simulate(
        "--trace", f"{trace},name=chat,tier=0,tenant=x,slo=500/30,rate=20",
        "--trace", f"{trace},name=batch,tier=1,tenant=y,concurrency=8",
        "--compare", "fcfs,shortest+fair,preemption-mode=tail", "--max-num-seqs", "8",
    )  # fmt: skip
    runs = found["runs"]
    assert [run["label"] for run in runs] == ["fcfs", "shortest+fair", "preemption-mode=tail"]
    assert [stream["name"] for stream in runs[0]["streams"]] == ["chat", "batch"]
    assert runs[0]["streams"][0]["slo_attainment"] is not None
    assert runs[0]["streams"][1]["slo_attainment"] is None
    assert all(run["num_finished"] == 80 for run in runs)
    assert all(run["num_cached_tokens"] > 512 * 60 for run in runs)


def test_tiers_can_be_taken_away_to_see_what_they_do(trace: Path) -> None:
    # The urgent stream comes last and finds the queue full of the other.
    found = simulate(
        "--trace", f"{trace},name=batch,tier=1,concurrency=40", "--trace", f"{trace},name=chat,tier=0,rate=40",
        "--compare", "fcfs,fcfs+no-tiers", "--max-num-seqs", "4",
    )  # fmt: skip
    tiers, none = ({s["name"]: s["ttft_ms"]["p50"] for s in run["streams"]} for run in found["runs"])
    assert tiers["chat"] < 0.5 * none["chat"]
    assert tiers["batch"] > none["batch"]


def test_a_report_is_one_page_with_plots_that_fetches_nothing(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    options = ("--trace", str(trace), "--compare", "fcfs,fair", "--report", str(page))
    assert invoke(*options).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") == 3  # latencies, and one over time for each run
    for words in ("Time to first token", "Gap between two tokens", "KV pages in use", "Waiting, by stream", "fair"):
        assert words in text
    fetched = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(https?:[^"')\s]+)""", text)
    assert [url for url in fetched if "w3.org" not in url] == []
    assert "<script" not in text
    assert invoke(*options).exit_code == 0
    assert page.read_text(encoding="utf-8") == text, "the same runs give the same bytes"


def test_a_sweep_shows_the_knee(trace: Path, tmp_path: Path) -> None:
    page, numbers = tmp_path / "report.html", tmp_path / "sweep.json"
    result = invoke(
        "--trace", f"{trace},concurrency=40,num_requests=80", "--sweep", "max_num_seqs=1,4,16",
        "--report", str(page), "--json", str(numbers),
    )  # fmt: skip
    assert result.exit_code == 0
    assert "TPOT, ms" in page.read_text(encoding="utf-8")
    assert "max_num_seqs" in page.read_text(encoding="utf-8")
    assert ": 1 to 16 slots, 8192 tokens per step" in page.read_text(encoding="utf-8")
    runs = json.loads(numbers.read_text(encoding="utf-8"))["runs"]
    assert [run["max_num_seqs"] for run in runs] == [1, 4, 16]
    tpot = [run["tpot_ms"]["p50"] for run in runs]
    assert tpot == sorted(tpot)
    assert runs[2]["output_tokens_per_s"] > 3 * runs[0]["output_tokens_per_s"]


def test_a_sweep_over_sizes_of_memory_is_drawn_in_gib(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    swept = ("--sweep", "kv_cache_memory=512MiB,2GiB", "--report", str(page))
    assert invoke("--trace", f"{trace},num_requests=5", "--max-model-len", "2048", *swept).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert "kv_cache_memory, GiB" in text
    assert ">0.5<" in text


@pytest.mark.filterwarnings("error")
def test_names_are_shown_as_they_are(trace: Path, tmp_path: Path) -> None:
    names = ["[/v2]", "_hidden", "$\\frac{1$", "[bold]", "\x1b[2Jx", "<b>&", "你好"]
    page, numbers = tmp_path / "r[v2].html", tmp_path / "r[v2].json"
    streams = "\n".join(f"[[stream]]\nname={json.dumps(name)}\noutput_lengths=[3, 4]" for name in names)
    workload = tmp_path / "w[1].toml"
    workload.write_text(streams, encoding="utf-8")
    result = invoke("--workload", str(workload), "--json", str(numbers), "--report", str(page))
    assert result.exit_code == 0
    assert [stream["name"] for stream in json.loads(numbers.read_text())["streams"]] == names
    text = page.read_text(encoding="utf-8")
    assert "\x1b" not in result.stderr + text
    for name in ("[/v2]", "_hidden", "$\\frac{1$", "[bold]", "\\x1b[2Jx", "你好"):
        assert f"│ {name} " in result.stderr
        assert f">{name}</td>" in text
        assert f">{name}</text>" in text, "in the legend"


def test_a_file_is_written_before_anything_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("chairlift.cli.simulate._show", fail)
    with pytest.raises(BrokenPipeError):
        invoke("--output-lengths", "5,6", "--json", str(tmp_path / "n.json"))
    assert json.loads((tmp_path / "n.json").read_text())["num_finished"] == 2


def test_refused_requests_are_said_with_their_reasons(tmp_path: Path) -> None:
    path, page = tmp_path / "t.jsonl", tmp_path / "r.html"
    path.write_text(
        "".join(f'{{"input_length": {n}, "output_length": 5}}\n' for n in (9, 5000, 6000, 5000, 7000, 8000))
    )
    result = invoke("--trace", f"{path},name=long", "--max-model-len", "4096", "--json", "-", "--report", str(page))
    warning = "run: 5 of 6 requests of long were refused: the prompt has 5000 tokens and at least 1 output token is"
    assert f"warning: {warning}" in " ".join(result.stderr.split())
    assert warning in page.read_text(encoding="utf-8")
    found = json.loads(result.stdout)
    assert [re.findall(r"\d+", reason)[0] for reason in found["first_refusals"]] == ["5000", "6000", "7000"]
    assert "refused" not in invoke("--trace", f"{path},name=long", "--max-model-len", "9000").stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "exactly one of"),
        (("--output-lengths", "1", "--compare", "fcfs+shortest"), "'fcfs+shortest' says scheduling_policy twice"),
        (("--output-lengths", "1", "--compare", ""), "--compare '' has a run without a setting"),
        (("--output-lengths", "1", "--compare", "fcfs,"), "--compare 'fcfs,' has a run without a setting"),
        (("--output-lengths", "1", "--compare", "fcfs,fair,fcfs"), "--compare has 'fcfs' twice"),
        (("--output-lengths", "1", "--sweep", ""), "--sweep '' is not of the form"),
        (("--output-lengths", "1", "--sweep", "max_num_seqs=8,16,8"), "--sweep has '8' twice"),
        (
            ("--output-lengths", "1", "--compare", "max_num_seqs=4,max-num-seqs=5", "--sweep", "max_num_seqs=8,16"),
            "--compare and --sweep both say max_num_seqs",
        ),
        (("--output-lengths", "5,2147483648"), "'lengths' has an output length of 2147483648 tokens, and one"),
        (("--output-lengths", "1,x"), "whole numbers"),
        (("--output-lengths", "1", "--compare", "fastest"), "no setting's choice"),
        (("--output-lengths", "1", "--compare", "speed=1"), "no setting 'speed'"),
        (("--output-lengths", "1", "--sweep", "max_num_seqs"), "not of the form"),
        (("--output-lengths", "1", "--sweep", "batching=static,continuous", "--report", "x.html"), "needs numbers"),
        (("--output-lengths", "1", "--latency-model", "x@y"), "there is no sheet"),
        (("--workload", "w.toml", "--rate", "3"), "cannot be given beside --workload"),
        (("--output-lengths", "1", "--kv-cache-memory", "1GiB"), "does not say what KV takes"),
        (("--output-lengths", "1", "--compare", "swap"), "needs --swap-space"),
        (("--output-lengths", "1", "--latency-model", "llama-3.1-8b@h100", "--sweep", "max_num_seqs=x"), "got 'x'"),
        (("--output-lengths", "1", "--latency-model", "llama-3.1-8b@h100", "--sweep", "page_size=1.5"), "got '1.5'"),
        (
            ("--output-lengths", "1", "--latency-model", "llama-3.1-8b@h100", "--page-size", "10000000"),
            "--page-size is 10000000, but Llama 3.1 8B on H100 SXM, roofline has memory for",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        invoke(*arguments)


def test_a_decision_log_is_a_latency_model_and_a_trace(tmp_path: Path) -> None:
    log, model = tmp_path / "log.jsonl", tmp_path / "served.json"
    served = serve(log)
    result = CliRunner().invoke(cli, ["calibrate", "--from-log", str(log), "-o", str(model)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "error of the fit 0.0%" in result.output
    found = simulate("--trace", str(log), "--latency-model", str(model))
    assert found["num_finished"] == len(served)
    assert found["machine"] == "as served in log.jsonl"
    assert found["itl_ms"]["p50"] == pytest.approx(STEP_NS / 1e6, rel=0.05)


@pytest.mark.parametrize("flag", ["--json", "--report"])
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, flag: str) -> None:
    with pytest.raises(ConfigurationError, match="absent/out cannot be written: No such file"):
        invoke("--output-lengths", "5,6", flag, str(tmp_path / "absent" / "out"))


def test_what_is_wrong_with_the_last_run_is_said_before_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chairlift.cli.simulate.Simulation", None)
    with pytest.raises(ConfigurationError, match="--max-num-seqs must be at least 1, got 0"):
        invoke("--output-lengths", "5,6", "--sweep", "max_num_seqs=4,0")


def test_a_length_beyond_all_memory_is_refused_like_any_prompt_that_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"input_length": 100000000000000, "output_length": 5}\n{"input_length": 9, "output_length": 5}\n')
    found = simulate("--trace", str(path))
    assert (found["num_refused"], found["num_finished"]) == (1, 1)


def test_without_any_time_to_wait_what_has_a_slot_at_once_is_served() -> None:
    found = simulate("--output-lengths", "5,6,7", "--max-num-seqs", "2", "--queue-timeout", "0")
    assert (found["num_finished"], found["ends"]) == (2, {"timeout": 1})


def test_more_requests_at_a_time_than_there_are_is_no_more_work() -> None:
    assert simulate("--output-lengths", "5,6", "--concurrency", str(10**9))["num_finished"] == 2


def test_hash_ids_that_stand_for_their_blocks_alone_are_served_too(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    row = '{"timestamp": %d, "input_length": 2560, "output_length": 5, "hash_ids": [1, %d, 3, 4, 5]}\n'
    path.write_text(row % (0, 2) + row % (9000, 7))
    found = simulate("--trace", str(path))
    assert (found["num_finished"], found["num_cached_tokens"]) == (2, 512)


def test_contents_of_two_traces_are_never_taken_for_each_other(trace: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(trace.read_text())

    def cached(second: Path) -> int:
        return simulate("--trace", f"{trace},name=a", "--trace", f"{second},name=b")["num_cached_tokens"]

    alone = simulate("--trace", str(trace))["num_cached_tokens"]
    assert cached(other) <= 2 * alone < cached(trace)
