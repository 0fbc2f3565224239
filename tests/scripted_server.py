"""A server with OpenAI's API whose answers and their moments are written down. Knows nothing of pytest and sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx


def event(**fields: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text_event(text: str, finish: str | None = None, usage: tuple[int, int] | None = None) -> bytes:
    """A chunk of a text completion; ``usage`` is tokens of prompt and answer so far."""
    told = {} if usage is None else {"usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1]}}
    return event(choices=[{"index": 0, "text": text, "finish_reason": finish}], **told)


def chat_event(content: str | None = None, finish: str | None = None, **delta: Any) -> bytes:
    """A chunk of a chat."""
    given = delta if content is None else {"content": content, **delta}
    return event(choices=[{"index": 0, "delta": given, "finish_reason": finish}])


def usage_event(prompt: int, completion: int) -> bytes:
    """The chunk without choices that ends a stream with usage."""
    return event(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": completion})


DONE = b"data: [DONE]\n\n"


@dataclass
class Script:
    """An answer: pieces of the body, each after a pause in seconds. A piece that is an exception is raised."""

    pieces: Sequence[tuple[float, bytes | Exception]] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """A request that came."""

    at_s: float
    path: str
    body: dict[str, Any]
    headers: httpx.Headers


class ScriptedServer(httpx.AsyncBaseTransport):
    """Answers each request with the script that a function gives for it, and remembers the requests."""

    def __init__(self, script: Callable[[Asked], Script]) -> None:
        self._script = script
        self.asked: list[Asked] = []
        self.num_open = 0
        self.most_open = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        content = await request.aread()
        body = json.loads(content) if content else {}
        asked = Asked(asyncio.get_running_loop().time(), request.url.path, body, request.headers)
        self.asked.append(asked)
        script = self._script(asked)
        if script.pieces and isinstance(script.pieces[0][1], httpx.ConnectError):
            raise script.pieces[0][1]
        return httpx.Response(script.status, headers=script.headers, stream=_Stream(self, script))


class _Stream(httpx.AsyncByteStream):
    def __init__(self, server: ScriptedServer, script: Script) -> None:
        self._server = server
        self._script = script

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._server.num_open += 1
        self._server.most_open = max(self._server.most_open, self._server.num_open)
        try:
            for pause_s, piece in self._script.pieces:
                await asyncio.sleep(pause_s)
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            self._server.num_open -= 1


def steady(num_tokens: int, first_s: float, gap_s: float, prompt: int = 7) -> Script:
    """An answer of one token per chunk, at a steady pace."""
    pieces: list[tuple[float, bytes | Exception]] = [
        (first_s if number == 1 else gap_s, text_event("a", "length" if number == num_tokens else None))
        for number in range(1, num_tokens + 1)
    ]
    return Script([*pieces, (0.0, usage_event(prompt, num_tokens) + DONE)])
