"""What the runner does with the socket it listens on."""

import asyncio
import contextlib
import resource
import socket

import pytest
import uvloop

from chairlift.server.runner import accepting_sockets, bind

_CLIENTS = 96
_FEW_TURNS = 12
"""Turns of the event loop in which that many clients are taken, at 16 per turn and with some to spare."""


async def _turns_until_taken(listener: socket.socket) -> int:
    num_taken = 0

    class Taken(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            nonlocal num_taken
            num_taken += 1

    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        for sock in accepting_sockets(listener):
            server = await loop.create_server(Taken, sock=sock, backlog=2 * _CLIENTS)
            await stack.enter_async_context(server)
        for _ in range(_CLIENTS):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        turns = 0
        while num_taken < _CLIENTS:
            turns += 1
            await asyncio.sleep(0)
        return turns


def test_a_turn_of_the_event_loop_takes_many_connections() -> None:
    with bind("127.0.0.1", 0) as listener:
        assert uvloop.run(_turns_until_taken(listener)) <= _FEW_TURNS


def test_who_may_open_few_files_keeps_them_for_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (70, 70))
    with bind("127.0.0.1", 0) as listener, contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(sock) for sock in accepting_sockets(listener)]
        assert len(sockets) == 2
