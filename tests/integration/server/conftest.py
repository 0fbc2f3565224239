from collections.abc import Iterator

import httpx
import pytest

from tests.integration.server.server_process import ServerProcess, wait_until


@pytest.fixture(scope="session")
def running_server() -> Iterator[ServerProcess]:
    with ServerProcess() as process:
        yield process


@pytest.fixture
def server(running_server: ServerProcess) -> Iterator[ServerProcess]:
    """A running server, which must be idle, healthy and able to answer after the test."""
    yield running_server
    wait_until(running_server.is_idle, within_s=10)
    with httpx.Client(base_url=running_server.url, timeout=30) as client:
        assert client.get("/health").status_code == 200
        answer = client.post("/v1/completions", json={"prompt": "after", "max_tokens": 4, "ignore_eos": True}).json()
        assert answer["usage"]["completion_tokens"] == 4


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client
