"""Stopping work at the moment its client leaves. Knows nothing of what the work is."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientLeftError(Exception):
    """The client closed its connection before it had its answer."""


async def run_while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work``, but cancel it as soon as the client disconnects; the request body must have been read.

    Raises:
        ClientLeftError: the client left first; ``work`` has been cancelled and has ended.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeftError
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
