"""One connection over a pair of sockets: what its requests see, and when it is cut off."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from chairlift.config.sections import ConnectionSettings
from chairlift.server import http_protocol

HALF_A_BODY = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n01234"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Echo:
    """Answers with the request's body once it is here, and counts requests whose client left before."""

    def __init__(self) -> None:
        self.num_left = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, has_more = b"", True
        while has_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.num_left += 1
                return
            body, has_more = body + message["body"], message["more_body"]
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def connected(
    app: Any,
) -> AsyncIterator[tuple[http_protocol.GuardedProtocol, asyncio.StreamReader, asyncio.StreamWriter]]:
    """The server's side of a connection, and both directions of the client's."""
    config, state, loop = (
        uvicorn.Config(app, lifespan="off", log_config=None),
        ServerState(),
        asyncio.get_running_loop(),
    )
    make: Callable[..., Any] = http_protocol.guarded_protocol(ConnectionSettings())
    ours, theirs = socket.socketpair()
    _, protocol = await loop.connect_accepted_socket(
        lambda: make(config=config, server_state=state, app_state={}, _loop=loop), ours
    )
    reader, writer = await asyncio.open_connection(sock=theirs)
    try:
        yield protocol, reader, writer
    finally:
        writer.close()
        protocol._socket.abort()
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=5)
        assert not state.tasks


def test_a_request_that_is_refused_at_the_end_is_over_for_the_application_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_protocol, "_LAST_LINGER_S", 600.0)

    async def refuse() -> None:
        app = Echo()
        async with connected(app) as (protocol, reader, _):
            protocol.data_received(HALF_A_BODY)
            (task,) = protocol.tasks
            protocol.shutdown()
            assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
            await asyncio.wait((task,), timeout=5)
            assert app.num_left == 1  # though the client has not closed its side

    asyncio.run(refuse())
    assert not caplog.records


def test_what_an_application_says_after_a_refusal_reaches_nobody(caplog: pytest.LogCaptureFixture) -> None:
    may_answer = asyncio.Event()

    async def stubborn(scope: Scope, receive: Receive, send: Send) -> None:
        await may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def refuse() -> None:
        async with connected(stubborn) as (protocol, reader, _):
            protocol.data_received(HALF_A_BODY)
            protocol.shutdown()
            may_answer.set()
            received = await reader.read()
            assert received.count(b"HTTP/1.1") == 1
            assert b" 503 " in received

    asyncio.run(refuse())
    assert not caplog.records


def test_a_body_that_is_still_on_its_way_is_not_cut_off_by_the_answer_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_protocol, "_LINGER_S", 0.0)
    monkeypatch.setattr(http_protocol.GuardedProtocol, "_linger_s", 0.0)

    async def answer_both() -> bytes:
        async with connected(Echo()) as (_, reader, writer):
            writer.write(GET + HALF_A_BODY)
            received = await reader.readuntil(b"\r\n\r\n")
            writer.write(b"56789")
            return received + await reader.readuntil(b"0123456789")

    assert asyncio.run(answer_both()).count(b"HTTP/1.1 200 ") == 2


def test_a_client_that_leaves_has_left_all_that_it_asked_for() -> None:
    async def leave() -> None:
        left: list[str] = []
        began = asyncio.Event()

        async def unending(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            began.set()
            left.append((await receive())["type"])

        async with connected(unending) as (protocol, _, writer):
            protocol.data_received(GET + GET)
            (task,) = protocol.tasks
            await began.wait()
            writer.close()
            await asyncio.wait((task,), timeout=5)
            assert left == ["http.disconnect"]

    asyncio.run(leave())
