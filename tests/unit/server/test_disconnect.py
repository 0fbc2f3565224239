"""A client that leaves, at the level of ASGI: no sockets, no waiting."""

import asyncio
import json
from collections.abc import AsyncIterator, MutableMapping, Sequence
from typing import Any

import pytest

from chairlift.config.sections import ServerSettings
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.outputs import ChoiceDelta
from chairlift.server.app import create_app
from chairlift.server.disconnect import ClientLeftError, run_while_connected
from tests.unit.server.stub_engine import StubEngine


async def one_letter_then_nothing(prompt: Sequence[int], sampling: SamplingParams) -> AsyncIterator[ChoiceDelta]:
    yield ChoiceDelta(0, "a", (97,), 1)
    await asyncio.Event().wait()


async def call_and_leave(engine: StubEngine, body: dict, when: asyncio.Event, *, more_body: bool = False) -> list[dict]:
    """Send a request, and disconnect when the event is set. Returns what was sent to the client."""
    sent: list[dict] = []
    incoming = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": more_body}]

    async def receive() -> dict:
        if incoming:
            return incoming.pop()
        await when.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(dict(message))
        if message.get("body"):
            when.set()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/completions",
        "raw_path": b"/v1/completions",
        "query_string": b"",
        "headers": [],
    }
    app = create_app(engine, ServerSettings())
    await asyncio.wait_for(app(scope, receive, send), timeout=10)
    return sent


@pytest.mark.parametrize("prompt", ["x", ["x", "y"]])
def test_b30_a_streaming_client_that_leaves_aborts_its_requests(prompt: object) -> None:
    engine = StubEngine(script=one_letter_then_nothing)

    async def run() -> list[dict]:
        return await call_and_leave(engine, {"prompt": prompt, "stream": True}, asyncio.Event())

    sent = asyncio.run(run())
    assert b'"a"' in sent[1]["body"]
    assert all(stream.num_aborts >= 1 for stream in engine.streams)


def test_b30_a_client_that_leaves_while_it_waits_aborts_its_request() -> None:
    reached = asyncio.Event()

    async def nothing(prompt: Sequence[int], sampling: SamplingParams) -> AsyncIterator[ChoiceDelta]:
        reached.set()
        await asyncio.Event().wait()
        yield ChoiceDelta(0, "", (), 0)

    engine = StubEngine(script=nothing)

    async def run() -> list[dict]:
        return await call_and_leave(engine, {"prompt": "x"}, reached)

    sent = asyncio.run(run())
    assert engine.streams[0].num_aborts >= 1
    assert sent[0]["status"] == 499


@pytest.mark.parametrize("body", [{"prompt": "x"}, {"prompt": "x", "stream": True}])
def test_a_client_that_leaves_in_the_middle_of_its_request_is_no_fault_of_the_server(body: dict) -> None:
    engine = StubEngine()

    async def run() -> list[dict]:
        when = asyncio.Event()
        when.set()
        return await call_and_leave(engine, body, when, more_body=True)

    assert asyncio.run(run())[0]["status"] == 499
    assert not engine.submitted


def test_work_is_cancelled_and_has_ended_when_the_client_left() -> None:
    ended = False

    async def work() -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended = True

    async def receive() -> dict:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientLeftError):
        asyncio.run(run_while_connected(receive, work()))
    assert ended


def test_errors_of_the_work_come_through_as_they_are() -> None:
    async def work() -> None:
        raise KeyError("x")

    async def receive() -> dict:
        await asyncio.Event().wait()
        return {}

    with pytest.raises(KeyError):
        asyncio.run(run_while_connected(receive, work()))
