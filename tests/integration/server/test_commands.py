"""``chairlift generate`` and ``chairlift chat`` as programs, on the fake executor."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.server.server_process import ServerProcess


def run(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "chairlift", *words]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)


def test_generate_answers_a_file_in_order_and_names_bad_lines(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [json.dumps({"prompt": f"p{n}", "id": n, "max_tokens": 1 + n % 7}) for n in range(300)]
    lines[17] = '{"prompt": 5}'
    source.write_text("\n".join(lines))
    done = run("generate", "--executor", "fake", "-i", str(source), "-o", str(target), "--temperature", "0")
    assert done.returncode == 1
    assert "line 18: " in done.stderr
    assert "300/300" in done.stderr
    answers = [json.loads(line) for line in target.read_text().splitlines()]
    assert [answer["line"] for answer in answers] == list(range(1, 301))
    assert "error" in answers.pop(17)
    assert [answer["id"] for answer in answers] == [n for n in range(300) if n != 17]
    assert all(len(answer["outputs"]) == 1 for answer in answers)


def test_generate_reads_a_pipe() -> None:
    done = run("generate", "--executor", "fake", text='{"prompt": "x", "max_tokens": 2, "ignore_eos": true}\n')
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outputs"][0]["num_output_tokens"] == 2


@pytest.mark.parametrize("suffix", ["", "/v1"])
def test_chat_says_the_same_here_and_at_a_server(server: ServerProcess, suffix: str) -> None:
    flags = ("--temperature", "0", "--max-tokens", "20", "--system", "be brief")
    talk = "hello\nand now?\n"
    here = run("chat", "--executor", "fake", *flags, text=talk)
    there = run("chat", "--base-url", server.url + suffix, *flags, text=talk)
    assert (here.returncode, there.returncode) == (0, 0), here.stderr + there.stderr
    assert here.stdout == there.stdout
    assert here.stdout.strip()


def test_chat_says_when_nobody_answers() -> None:
    done = run("chat", "--base-url", "http://127.0.0.1:9", text="hello\n")
    assert done.returncode == 1
    assert "http://127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr
