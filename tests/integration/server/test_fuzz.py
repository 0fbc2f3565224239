"""Nonsense over HTTP, in short: what is generated from the OpenAPI document, and what no document describes.

``python -m benchmarks.reliability.fuzz`` and the command in docs/reliability.md do the same for long.
"""

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.reliability.bad_bodies import bad_bodies
from tests.integration.server.server_process import ServerProcess, wait_until

NUM_BAD_BODIES = 600
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.fixture(scope="module")
def small() -> Iterator[ServerProcess]:
    """A server whose answers are short, whatever is asked for."""
    with ServerProcess("--max-model-len", "64", "--max-choices", "4", "--log-level", "error") as process:
        yield process
        wait_until(process.is_idle, within_s=10)
        assert not any("Traceback" in line for line in process.log), "\n".join(process.log[-60:])


def test_bad_bodies_are_the_clients_fault(small: ServerProcess) -> None:
    bodies = bad_bodies(random.Random(5))
    received = small.metric("chairlift_requests_received_total")
    with httpx.Client(base_url=small.url, timeout=30) as client:
        for _ in range(NUM_BAD_BODIES):
            path, body = next(bodies)
            answer = client.post(path, content=body)
            # 504: a deadline, given by chance, that could not be met.
            assert answer.status_code < 500 or answer.status_code == 504, (path, body[:500], answer.text)
            if answer.status_code >= 400:
                assert answer.json()["error"]["message"], (path, body[:500])
    assert small.metric("chairlift_requests_received_total") > received


def test_what_the_openapi_document_allows_is_answered(small: ServerProcess, tmp_path: Path) -> None:
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "run", f"{small.url}/openapi.json"),
        *("--checks", CHECKS, "--phases", "examples,fuzzing", "--max-examples", "3"),
        *("--seed", "5", "--no-color", "--suppress-health-check", "all", "--generation-database", "none"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
