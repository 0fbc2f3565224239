from collections.abc import Iterator

import httpx
import pytest

from tests.integration.server.server_process import ServerProcess


@pytest.fixture(scope="session")
def client() -> Iterator[httpx.Client]:
    """A client of a server with a short context on the fake executor."""
    flags = ("--max-model-len", "64", "--served-model-name", "toy", "--max-choices", "4", "--max-body-bytes", "4096")
    with ServerProcess(*flags) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client
