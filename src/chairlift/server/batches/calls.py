"""One line of a batch as a request to an endpoint of this server, without a connection.

Knows nothing of files.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from chairlift.errors import ChairliftError, DrainingError, EngineUnavailableError, OverloadedError
from chairlift.server.access import Caller
from chairlift.server.errors import error_response
from chairlift.server.openai.chat import create_chat_completion
from chairlift.server.openai.completions import create_completion
from chairlift.server.openai.embeddings import create_embedding
from chairlift.server.openai.responses_api import create_response

LOWEST_TIER = 2**31 - 1
"""Whatever else waits comes first; the guaranteed share of a tier sees to it that a batch ends in the end."""

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


class BatchLine(msgspec.Struct):
    """A line of the input: one request."""

    custom_id: str
    url: str
    body: dict[str, Any]
    method: str = "POST"


async def call(app: FastAPI, line: BatchLine, caller: Caller) -> tuple[int, Any]:
    """Status and body of the answer to a line. Waits while the server has no room for it.

    Raises:
        DrainingError: the server shuts down; the line is to be sent again after its next start.
    """
    wait_s = 0.1
    num_failures = 0
    while True:
        try:
            response = await ENDPOINTS[line.url](_to_request(app, line, caller))
        except DrainingError:
            raise
        except (OverloadedError, EngineUnavailableError) as error:
            num_failures += isinstance(error, EngineUnavailableError)
            if num_failures > MAX_FAILURES:
                return _read(error_response(error))
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, MAX_RETRY_S)
        except ChairliftError as error:
            return _read(error_response(error))
        else:
            return _read(response)


def _read(response: Response) -> tuple[int, Any]:
    return response.status_code, msgspec.json.decode(bytes(response.body))


def _to_request(app: FastAPI, line: BatchLine, caller: Caller) -> Request:
    body = {key: value for key, value in line.body.items() if key != "stream"}
    priority: Any = body.get("priority")
    body["priority"] = LOWEST_TIER if priority is None else priority
    raw = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(raw)).encode())]
    messages = iter([cast("Message", {"type": "http.request", "body": raw, "more_body": False})])

    async def receive() -> Message:
        message = next(messages, None)
        if message is None:
            await asyncio.Event().wait()  # nobody ever leaves
            raise AssertionError
        return message

    scope = {
        "type": "http",
        "method": "POST",
        "path": line.url,
        "query_string": b"",
        "headers": headers,
        "app": app,
        "state": {"caller": caller, "arrival_ns": time.monotonic_ns()},
    }
    return Request(scope, receive)
