"""What cannot be served is said in one line that names the setting, without a traceback and with a status not 0.

Nothing is loaded where that shows before.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

EMBEDDED = ("--max-num-seqs", "1")
TOY = ("--executor", "fake")


def serve(*flags: str) -> tuple[int, str, list[str]]:
    """Exit status of a server that does not start, its last line, and the lines before that one."""
    command = [sys.executable, "-m", "chairlift", "serve", "--port", "0", *flags]
    # Nothing is fetched: what is not in the hub's cache on this machine cannot be had.
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert done.stdout == ""
    *before, last = done.stderr.splitlines()
    return done.returncode, last, before


def check(result: tuple[int, str, list[str]], status: int, *phrases: str) -> None:
    returned, last, before = result
    assert last.startswith("Error: "), "\n".join([*before, last])
    assert not [line for line in before if "Traceback" in line or " ERROR " in line or line.startswith("Error")]
    for phrase in phrases:
        assert phrase in last
    assert returned == status


@pytest.mark.parametrize(
    ("flags", "status", "phrases"),
    [
        (["--model", "/nonexistent"], 1, ["--model '/nonexistent'", "neither a file nor a folder"]),
        (["some/hub-name"], 1, ["--model", "'some/hub-name'", "hub"]),
        (["some/hub-name@main:model.gguf"], 1, ["--model", "'some/hub-name'", "hub"]),
        ([*EMBEDDED, "--kv-cache-memory", "900TiB"], 2, ["--kv-cache-memory 900TiB", "free"]),
        ([*EMBEDDED, "--kv-cache-memory", "much"], 2, ["--kv-cache-memory", "much"]),
        ([*EMBEDDED, "--swap-space", "900TiB"], 2, ["--swap-space 900TiB", "free"]),
        ([*EMBEDDED, "--max-model-len", "1000000000"], 2, ["--max-model-len is 1000000000", "8192"]),
        ([*TOY, "--kv-cache-memory", "900TiB"], 2, ["--kv-cache-memory is 900TiB"]),
        ([*TOY, "--host", "no-such-host.invalid"], 2, ["--host no-such-host.invalid"]),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else str(value),
)
def test_a_setting_that_cannot_work_is_named(flags: list[str], status: int, phrases: list[str]) -> None:
    check(serve(*flags), status, *phrases)


def test_a_port_in_use_is_said_before_a_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = serve(*EMBEDDED, "--port", str(port))
    check(result, 2, f"--port {port}", "in use")
    assert result[2] == []


@pytest.mark.parametrize(
    ("content", "phrase"),
    [
        (None, "No such file"),
        (b"[tenants\n", "is not TOML"),
        (b"\xff\xfe", "cannot be read"),
        (b"[tenants.a]\nwieght = 2\n", "did you mean weight"),
    ],
)
def test_a_tenants_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, phrase: str) -> None:
    path = tmp_path / "tenants.toml"
    if content is not None:
        path.write_bytes(content)
    result = serve(*TOY, "--tenants", str(path))
    check(result, 2, str(path), phrase)
    assert result[1].count(str(path)) == 1


def test_a_folder_is_no_tenants_file(tmp_path: Path) -> None:
    check(serve(*TOY, "--tenants", str(tmp_path)), 2, f"--tenants {tmp_path}", "Is a directory")
