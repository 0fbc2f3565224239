"""Every ``curl`` line of the documentation, and its batch with OpenAI's client, work as they stand there.

The server has the toy model.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.docs.pages import Block, blocks
from tests.integration.server.server_process import ServerProcess

BLOCKS = [block for block in blocks() if block.language in {"bash", "text"} and block.body.startswith("curl ")]
DOCUMENTED_URL = "http://127.0.0.1:8000"
KEYS = {"CHAIRLIFT_ADMIN_API_KEY": "an-administrators-key"}

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess("--batch-dir", str(tmp_path_factory.mktemp("batches")), env=KEYS) as process:
        yield process


def test_the_readme_has_a_line_to_try() -> None:
    assert "README.md" in {block.page.name for block in BLOCKS}


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_curl_line_works_as_it_is_written(block: Block, server: ServerProcess) -> None:
    assert DOCUMENTED_URL in block.body
    script = block.body.replace(DOCUMENTED_URL, server.url).replace("curl ", "curl --silent --fail-with-body ")
    done = subprocess.run(
        ["bash", "-euc", script], capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **KEYS}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("{")


def test_the_batch_works_as_it_is_written(server: ServerProcess) -> None:
    (block,) = (block for block in blocks() if "client.batches.create" in block.body)
    assert DOCUMENTED_URL in block.body
    script = block.body.replace(DOCUMENTED_URL, server.url)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0].startswith("completed BatchRequestCounts(completed=2, failed=0, total=2")
    assert sorted(line[:3] for line in said if line.startswith("a-")) == ["a-0", "a-1"]


def test_the_line_that_a_server_prints_works(server: ServerProcess) -> None:
    line = next(line for line in server.announcement if line.startswith("curl"))
    script = line.replace("curl ", "curl --silent --fail-with-body ", 1)
    done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"role":"assistant"' in done.stdout
