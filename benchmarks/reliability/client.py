"""A client that does what it is told to, well or badly: reads, dawdles, leaves.

Knows nothing of what is measured. One raw connection per request, because no client library misbehaves on purpose.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

COMPLETIONS = "/v1/completions"
_CONNECT_TIMEOUT_S = 30.0
_LAST_WORDS = (b"[DONE]", b"event: message_stop", b"event: response.completed", b"event: response.incomplete")
"""With which the streams of the APIs end."""


class Outcome(NamedTuple):
    """How a request ended. ``end`` is ``done``, ``error event``, ``refused``, ``left`` or ``cut``."""

    status: int
    end: str
    num_chunks: int = 0
    has_retry_after: bool = False
    duration_s: float = 0.0


async def request(
    url: str,
    body: Mapping[str, Any] | bytes,
    *,
    path: str = COMPLETIONS,
    headers: Mapping[str, str] | None = None,
    leave_after_chunks: int | None = None,
    pause_s: float = 0.0,
) -> Outcome:
    """Send a request and read its answer.

    Args:
        url: of the server.
        body: as JSON, or bytes as they are.
        path: where to.
        headers: further ones.
        leave_after_chunks: close the connection after so many; ``None`` reads to the end.
        pause_s: how long to wait before each read.
    """
    start_s = time.monotonic()
    address = urlsplit(url)
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
    except OSError:
        return Outcome(0, "cut")
    try:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", f"Host: {address.netloc}", f"Content-Length: {len(data)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode() + data)
        await writer.drain()
        return await _read(reader, start_s, leave_after_chunks, pause_s)
    except (ConnectionError, asyncio.IncompleteReadError):
        return Outcome(0, "cut", duration_s=time.monotonic() - start_s)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def _read(reader: asyncio.StreamReader, start_s: float, leave_after: int | None, pause_s: float) -> Outcome:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status, has_retry_after = int(head.split(b" ", 2)[1]), b"\r\nretry-after:" in head
    num_chunks, tail, end = 0, b"", "cut"
    while True:
        if leave_after is not None and num_chunks >= leave_after:
            end = "left"
            break
        if pause_s:
            await asyncio.sleep(pause_s)
        block = await reader.read(65_536)
        if not block:
            break
        num_chunks += block.count(b"data: {")
        tail = (tail + block)[-2000:]
    if end != "left":
        if status != 200:
            end = "refused"
        elif b'data: {"error":' in tail or b"event: error" in tail:
            end = "error event"
        elif b"\r\ncontent-length:" in head or any(mark in tail for mark in _LAST_WORDS):
            end = "done"
    return Outcome(status, end, num_chunks, has_retry_after, time.monotonic() - start_s)
