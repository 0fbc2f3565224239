"""A full queue is refused by the API process, in the engine's words, and for as long as it is full.

The server has one slot, so that a request that never ends keeps everybody else waiting until it is told to leave.
"""

import os
import signal
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from tests.integration.server.server_process import ServerProcess, wait_until

COMPLETIONS = "/v1/completions"
SHORT = {"prompt": "short", "max_tokens": 2, "ignore_eos": True}
ENDLESS = {"prompt": "endless", "max_tokens": 60_000, "ignore_eos": True, "stream": True}
MESSAGES = [{"role": "user", "content": "hello"}]
CAP = 2
TENANTS = """
[tenants.search]
keys = ["sk-search"]
most_urgent_tier = -1

[tenants.batch]
keys = ["sk-batch"]
max_num_queued_reqs = 1
"""


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    file = tmp_path_factory.mktemp("tenants") / "tenants.toml"
    file.write_text(TENANTS)
    flags = ("--max-num-seqs", "1", "--guaranteed-share", "0", "--max-num-queued-reqs", str(CAP))
    flags = (*flags, "--max-model-len", "65536", "--kv-cache-memory", "256MiB", "--tenants", str(file))
    with ServerProcess(*flags, env={"CHAIRLIFT_API_KEY": "sk-plain"}) as process:
        yield process


@pytest.fixture
def client(crowded: ServerProcess) -> Iterator[httpx.Client]:
    """Afterwards nothing is left, and as many requests have ended as were received."""
    with httpx.Client(base_url=crowded.url, timeout=60, headers=bearer("sk-plain")) as client:
        yield client
        wait_until(crowded.is_idle, within_s=10)
        assert received(client) == sum(finished(client).values())


def received(client: httpx.Client) -> float:
    lines = client.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("chairlift_requests_received_total "))


def finished(client: httpx.Client) -> dict[str, float]:
    lines = client.get("/metrics").text.splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if line.startswith("chairlift_requests_finished_total{")]
    return {name: float(value) for name, value in pairs}


def refused(client: httpx.Client) -> float:
    return finished(client)['chairlift_requests_finished_total{reason="rejected"}']


@contextmanager
def streaming(client: httpx.Client, body: dict[str, object], key: str = "sk-plain") -> Generator[Iterator[str]]:
    with client.stream("POST", COMPLETIONS, json=body, headers=bearer(key)) as response:
        assert response.status_code == 200, response.read()
        lines = response.iter_lines()  # the response would be closed with it
        yield lines
        del lines


@contextmanager
def crowd(client: httpx.Client, server: ServerProcess, num_waiting: int, key: str = "sk-plain") -> Generator[ExitStack]:
    """The slot is taken and so many wait, as is known from the engine's own report; closed one by one if wanted."""
    with streaming(client, ENDLESS) as lines, ExitStack() as waiting:
        next(lines)
        for _ in range(num_waiting):
            waiting.enter_context(streaming(client, ENDLESS, key))
        wait_until(lambda: server.metric("chairlift_num_requests_waiting") == num_waiting, within_s=10)
        yield waiting


def test_a_full_queue_refuses_with_the_time_to_come_back(client: httpx.Client, crowded: ServerProcess) -> None:
    with crowd(client, crowded, CAP):
        before = refused(client)
        for path, body in (
            (COMPLETIONS, SHORT),
            (COMPLETIONS, {**SHORT, "prompt": "long " * 20_000}),
            ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2}),
            ("/v1/responses", {"input": "hello"}),
            ("/v1/embeddings", {"input": "hello"}),
        ):
            answer = client.post(path, json=body)
            assert answer.status_code == 503, path
            assert 1 <= int(answer.headers["Retry-After"]) <= 60
            assert answer.json()["error"] == {
                "message": f"{CAP} requests wait, and --max-num-queued-reqs is {CAP}; try again later",
                "type": "overloaded_error",
                "param": None,
                "code": None,
            }
        assert client.post(COMPLETIONS, json={**SHORT, "n": 3}).status_code == 503
        assert refused(client) == before + 8


def test_messages_are_refused_in_their_own_shape(client: httpx.Client, crowded: ServerProcess) -> None:
    model = client.get("/v1/models").json()["data"][0]["id"]
    with crowd(client, crowded, CAP):
        answer = client.post("/v1/messages", json={"messages": MESSAGES, "max_tokens": 2, "model": model})
    assert (answer.status_code, answer.json()["type"]) == (503, "error")
    assert answer.json()["error"]["type"] == "overloaded_error"
    assert int(answer.headers["Retry-After"]) >= 1


def test_the_engine_is_not_asked(client: httpx.Client, crowded: ServerProcess) -> None:
    """It is stopped, and could not answer. What it said last holds for a second, so a slow machine gets some tries."""
    engine = crowded.engine_process_id()
    answer: httpx.Response | None = None
    with crowd(client, crowded, CAP):
        for _ in range(10):
            os.kill(engine, signal.SIGSTOP)
            try:
                answer = client.post(COMPLETIONS, json=SHORT, timeout=1)
                break
            except httpx.ReadTimeout:
                continue
            finally:
                os.kill(engine, signal.SIGCONT)
        assert answer is not None
        assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)


def test_as_soon_as_there_is_room_the_next_one_gets_it(client: httpx.Client, crowded: ServerProcess) -> None:
    with crowd(client, crowded, CAP) as waiting:
        assert client.post(COMPLETIONS, json=SHORT).status_code == 503
        waiting.pop_all().close()
        wait_until(lambda: crowded.metric("chairlift_num_requests_waiting") < CAP, within_s=10)
        with streaming(client, {**SHORT, "stream": True}):
            pass


def test_a_tier_that_is_more_urgent_is_asked_for(client: httpx.Client, crowded: ServerProcess) -> None:
    """It displaces the one that runs. The same tenant's other requests are refused."""
    with crowd(client, crowded, CAP):
        urgent = client.post(COMPLETIONS, json={**SHORT, "priority": -1}, headers=bearer("sk-search"))
        assert urgent.status_code == 200, urgent.text
        assert client.post(COMPLETIONS, json=SHORT, headers=bearer("sk-search")).status_code == 503
        raised = client.post(COMPLETIONS, json={**SHORT, "priority": -1})
        assert raised.status_code == 503, "nobody else may be as urgent"


def test_a_full_tenant_keeps_nobody_else_out(client: httpx.Client, crowded: ServerProcess) -> None:
    with crowd(client, crowded, 1, "sk-batch"):
        answer = client.post(COMPLETIONS, json=SHORT, headers=bearer("sk-batch"))
        assert answer.status_code == 503
        assert answer.json()["error"]["message"] == (
            "1 request of this tenant waits, and its max_num_queued_reqs is 1 (--tenants); try again later"
        )
        with streaming(client, {**SHORT, "stream": True}, "sk-search"):
            pass


def test_what_is_wrong_anyway_is_still_told_so(client: httpx.Client, crowded: ServerProcess) -> None:
    with crowd(client, crowded, CAP):
        assert client.post(COMPLETIONS, json=SHORT, headers=bearer("sk-none")).status_code == 401
        assert client.post(COMPLETIONS, json={**SHORT, "n": "many"}).status_code == 400
        assert client.post(COMPLETIONS, json={**SHORT, "model": "other"}).status_code == 404
        assert client.post(COMPLETIONS, content=b"{").status_code == 400
        nothing = client.post(COMPLETIONS, json={**SHORT, "max_tokens": 0, "echo": True})
        assert nothing.status_code == 200, "it generates nothing, so it need not wait"


def test_a_streamed_body_is_refused_or_read_as_ever(client: httpx.Client, crowded: ServerProcess) -> None:
    """Without a length nothing of it is read before the refusal."""
    with crowd(client, crowded, CAP):
        body = iter([b'{"prompt": "in pieces", ', b'"max_tokens": 2}'])
        assert client.post(COMPLETIONS, content=body).status_code == 503
    wait_until(crowded.is_idle, within_s=10)
    body = iter([b'{"prompt": "in pieces", ', b'"max_tokens": 2}'])
    assert client.post(COMPLETIONS, content=body).status_code == 200
