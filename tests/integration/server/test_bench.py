"""``chairlift bench serve`` as a program against servers in processes of their own."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.server.server_process import ServerProcess, wait_until

SHORT = ("--random-input-len", "20", "--random-output-len", "8", "--ignore-eos")
LONG = ("--num-prompts", "100000", "--max-concurrency", "4", "--random-input-len", "8", "--random-output-len", "200")


def command(url: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "chairlift", "bench", "serve", "--base-url", url, *words]


def bench(url: str, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(url, *words), capture_output=True, text=True, timeout=120, check=False, env=env)


def test_a_closed_loop_counts_every_token_and_writes_a_page(server: ServerProcess, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    words = ("--num-prompts", "40", "--max-concurrency", "4", "--goodput", "ttft:60000", "--json", "-")
    done = bench(server.url + "/v1", *SHORT, *words, "--save-detailed", "--report", str(page))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["schema"], result["schema_version"]) == ("chairlift.bench.serve", 1)
    assert result["target"]["prompts"] == "token ids"
    (run,) = result["runs"]
    assert (run["num_ok"], run["num_failed"]) == (40, 0)
    assert (run["num_prompt_tokens"], run["num_output_tokens"]) == (40 * 20, 40 * 8)
    assert run["itl_ms"]["count"] == 40 * 7
    assert run["token_counts"] == {"said with each chunk": 40}
    assert run["slo_attainment"] == 1.0
    assert run["output_tokens_per_s"] == pytest.approx(40 * 8 / run["duration_s"], rel=1e-4)
    assert len(run["requests"]) == 40
    assert all(sum(one["chunk_tokens"]) == 8 for one in run["requests"])
    text = page.read_text()
    assert text.count("<svg") == 2
    assert not re.search(r"(src|href)=[\"']?http", text)
    assert "TTFT" in done.stderr


def test_chats_of_several_turns_and_runs_and_a_rate(server: ServerProcess) -> None:
    words = ("--dataset-name", "conversations", "--num-turns", "3", "--num-prompts", "4", "--request-rate", "50")
    done = bench(server.url, *SHORT, *words, "--num-runs", "2", "--num-warmups", "2", "--json", "-")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["target"]["endpoint"] == "/v1/chat/completions"
    said = f"Sending 4 conversations, 50 per second, to {server.url}, 2 times"
    assert done.stderr.splitlines()[0] == said
    assert done.stderr.count(said) == 1
    assert [run["num_ok"] for run in result["runs"]] == [12, 12]


def test_tenants_have_keys_of_their_own(tmp_path: Path) -> None:
    import os

    file = tmp_path / "tenants.toml"
    file.write_text('[tenants.a]\nkeys = ["sk-a"]\n[tenants.b]\nkeys = ["sk-b"]\n')
    words = ("--tenant", "a=KEY_A", "--tenant", "b=KEY_B", "--num-prompts", "40", "--max-concurrency", "8")
    env = {**os.environ, "KEY_A": "sk-a", "KEY_B": "sk-b"}
    with ServerProcess("--tenants", str(file)) as server:
        done = bench(server.url, *SHORT, *words, "--json", "-", env=env)
    assert done.returncode == 0, done.stderr
    assert "sk-" not in done.stdout + done.stderr
    assert server.announcement[-1].endswith('"Authorization: Bearer $KEY"')
    (run,) = json.loads(done.stdout)["runs"]
    assert [(one["name"], one["num_ok"]) for one in run["tenants"]] == [("a", 20), ("b", 20)]
    assert run["jain_index"] > 0.8


def test_ctrl_c_gives_the_results_so_far(server: ServerProcess, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    before = server.metric('chairlift_requests_finished_total{reason="length"}')
    with subprocess.Popen(
        command(server.url, *LONG, "--ignore-eos", "--json", str(path)), stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until(
            lambda: server.metric('chairlift_requests_finished_total{reason="length"}') > before + 20, within_s=60
        )
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    (run,) = json.loads(path.read_text())["runs"]
    assert run["is_interrupted"]
    assert run["num_ok"] > 0
    assert 1 <= run["num_interrupted"] <= 4
    assert run["num_failed"] == 0


def test_a_server_that_dies_gives_errors_by_kind(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    words = ("--num-prompts", "2000", "--max-concurrency", "4", "--random-input-len", "8", "--random-output-len", "200")
    with (
        ServerProcess() as server,
        subprocess.Popen(
            command(server.url, *words, "--ignore-eos", "--json", str(path)), stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        wait_until(lambda: server.metric('chairlift_requests_finished_total{reason="length"}') > 20, within_s=60)
        server.process.kill()
        _, said = process.communicate(timeout=100)
    assert "Traceback" not in said
    assert process.returncode == 0
    (run,) = json.loads(path.read_text())["runs"]
    assert run["num_ok"] >= 10
    assert run["num_ok"] + run["num_failed"] == 2000
    assert "connect" in run["errors"]
    assert run["errors"].keys() <= {"connect", "connection broken", "broken off"}


def test_bad_arguments_and_nobody_there_are_one_line() -> None:
    done = bench("http://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"Error: no server answers at http://127.0.0.1:9.*\n", done.stderr)
    done = bench("http://127.0.0.1:9", "--burstiness", "2")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
