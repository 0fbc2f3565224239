"""One line of a batch as a request to an endpoint of this server, without a connection.

Knows nothing of files.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import cast

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from chairlift.errors import (
    ChairliftError,
    DrainingError,
    EngineDiedError,
    EngineDownError,
    EngineUnavailableError,
    OverloadedError,
)
from chairlift.server.access import Caller
from chairlift.server.context import ServerContext
from chairlift.server.errors import error_response
from chairlift.server.openai.chat import create_chat_completion
from chairlift.server.openai.completions import create_completion
from chairlift.server.openai.embeddings import create_embedding
from chairlift.server.openai.responses_api import create_response

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 10.0
MAX_DEATHS_IN_COMPANY = 2
"""Deaths of the engine at which a line may run beside others; from then on it runs alone."""
MAX_FAILURES = 3
"""Times that the engine may fail at a line, or die while it is alone, until that is the line's answer.

It may be full, or down when the line is sent, for as long as it likes.
"""

Endpoint = Callable[[Request], Awaitable[Response]]
ENDPOINTS: Mapping[str, Endpoint] = {
    "/v1/chat/completions": create_chat_completion,
    "/v1/completions": create_completion,
    "/v1/responses": create_response,
    "/v1/embeddings": create_embedding,
}


def caller_of_batch(key_number: int | None, tenant: str | None) -> Caller:
    """Who sends the requests of a batch: its tenant, but not its key as such.

    ``--batch-concurrency`` says how many run at a time; they take nothing of the ``--max-concurrent-requests`` that the
    key has for requests that somebody waits for.
    """
    return Caller(None if key_number is None else -1 - key_number, tenant)


class LineCaller:
    """Sends lines, and sends them again while the server has no room for them, or no engine.

    Where the engine dies, any of the lines that it had may be why. They are sent again, and those that were there at
    several deaths one at a time, while no other line runs; only at a death while it was alone is a line to blame.

    Args:
        app: the application.
    """

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._room = _Room()

    async def call(self, url: str, load: Callable[[], Awaitable[bytes]], caller: Caller) -> tuple[int, bytes]:
        """Status and body of the answer to a line. Whoever does not want to wait for it any longer cancels this.

        Args:
            url: the endpoint.
            load: reads the request's body; called again for every try, so that none is kept while it waits.
            caller: who is behind it; see :func:`caller_of_batch`.

        Raises:
            DrainingError: the server shuts down; the line is to be sent again after its next start.
            OSError: the body cannot be read any more.
        """
        context: ServerContext = self._app.state.context
        pause_s = FIRST_PAUSE_S
        num_deaths = num_failures = 0
        while True:
            is_alone = num_deaths >= MAX_DEATHS_IN_COMPANY
            try:
                async with self._room.alone() if is_alone else self._room.shared():
                    response = await self._send(url, await load(), caller)
            except (OverloadedError, EngineUnavailableError) as error:
                if context.engine.is_draining or isinstance(error, DrainingError):
                    raise DrainingError("the server is shutting down") from error
                num_deaths += isinstance(error, EngineDiedError)
                num_failures += _is_to_blame(error, is_alone=is_alone)
                if num_failures < MAX_FAILURES:
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, MAX_PAUSE_S)
                    continue
                response = error_response(error)
            return response.status_code, bytes(response.body)

    async def _send(self, url: str, body: bytes, caller: Caller) -> Response:
        """Send a line once; errors that another try might not have are raised."""
        try:
            return await ENDPOINTS[url](_to_request(self._app, url, body, caller))
        except (OverloadedError, EngineUnavailableError, OSError):
            raise
        except ChairliftError as error:
            return error_response(error)
        except Exception as error:
            # As over HTTP: a fault of ours at one request is no fault of the others.
            logger.exception("a request of a batch failed")
            return error_response(error)


class _Room:
    """Where lines run side by side, or one of them alone. Whoever comes first goes in first."""

    def __init__(self) -> None:
        self._door = asyncio.Lock()
        self._num_inside = 0
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    @asynccontextmanager
    async def shared(self) -> AsyncGenerator[None]:
        """Be in it with others."""
        async with self._door:
            self._num_inside += 1
            self._is_empty.clear()
        try:
            yield
        finally:
            self._num_inside -= 1
            if not self._num_inside:
                self._is_empty.set()

    @asynccontextmanager
    async def alone(self) -> AsyncGenerator[None]:
        """Be in it once all others have left, and let nobody in meanwhile."""
        async with self._door:
            await self._is_empty.wait()
            yield


def _is_to_blame(error: ChairliftError, *, is_alone: bool) -> bool:
    """Whether an error speaks against the line that had it, rather than of the server as it was at that time."""
    if isinstance(error, EngineDiedError):
        return is_alone
    return isinstance(error, EngineUnavailableError) and not isinstance(error, EngineDownError)


def _to_request(app: FastAPI, url: str, body: bytes, caller: Caller) -> Request:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    messages = iter([cast("Message", {"type": "http.request", "body": body, "more_body": False})])

    async def receive() -> Message:
        message = next(messages, None)
        if message is None:
            await asyncio.Event().wait()  # nobody ever leaves
            raise AssertionError
        return message

    scope = {
        "type": "http",
        "method": "POST",
        "path": url,
        "query_string": b"",
        "headers": headers,
        "app": app,
        "state": {"caller": caller, "arrival_ns": time.monotonic_ns()},
    }
    return Request(scope, receive)
