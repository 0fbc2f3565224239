"""One line of a batch as a request to an endpoint of this server, without a connection.

Knows nothing of files.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from chairlift.errors import ChairliftError, DrainingError, EngineUnavailableError, OverloadedError
from chairlift.server.access import Caller
from chairlift.server.context import ServerContext
from chairlift.server.errors import error_response
from chairlift.server.openai.chat import create_chat_completion
from chairlift.server.openai.completions import create_completion
from chairlift.server.openai.embeddings import create_embedding
from chairlift.server.openai.responses_api import create_response

logger = logging.getLogger(__name__)

MAX_RETRY_S = 10.0
MAX_FAILURES = 5
"""Times the engine may fail at a line, or be down when it is sent; it may be full for as long as it likes."""

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


async def call(app: FastAPI, url: str, load: Callable[[], Awaitable[bytes]], caller: Caller) -> tuple[int, bytes]:
    """Status and body of the answer to a line. Waits while the server has no room for it.

    Args:
        app: the application.
        url: the endpoint.
        load: reads the request's body; called again for every try, so that none is kept while it waits.
        caller: who is behind it; see :func:`caller_of_batch`.

    Raises:
        DrainingError: the server shuts down; the line is to be sent again after its next start.
        OSError: the body cannot be read any more.
    """
    context: ServerContext = app.state.context
    wait_s = 0.1
    num_failures = 0
    while True:
        try:
            response = await ENDPOINTS[url](_to_request(app, url, await load(), caller))
        except (DrainingError, OSError):
            raise
        except (OverloadedError, EngineUnavailableError) as error:
            if context.engine.is_draining:
                raise DrainingError("the server is shutting down") from error
            num_failures += isinstance(error, EngineUnavailableError)
            if num_failures <= MAX_FAILURES:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, MAX_RETRY_S)
                continue
            response = error_response(error)
        except ChairliftError as error:
            response = error_response(error)
        except Exception as error:
            # As over HTTP: a fault of ours at one request is no fault of the others.
            logger.exception("a request of a batch failed")
            response = error_response(error)
        return response.status_code, bytes(response.body)


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
