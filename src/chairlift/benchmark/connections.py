"""Connections to one server, as many as there are requests on their way.

Knows nothing of what is sent over them. A pool of connections looks through all of them for each request, which at some
hundreds takes longer than everything else that this tool does. So there are many pools of few.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType

import httpx

POOL_SIZE = 8
"""Requests on their way in one pool."""
_CONNECT_TIMEOUT_S = 10.0
_KEEPALIVE_EXPIRY_S = 4.0
"""Servers commonly close idle connections after 5 seconds; one that is closing must not be taken for a new request."""


class _Pool:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.num_open = 0


class Connections:
    """HTTP clients that share the requests to a server. Use as an asynchronous context manager.

    Args:
        base_url: the server's address, which may end in ``/v1``.
        timeout_s: the longest pause of an answer.
        transport: what carries requests; the network if absent.
    """

    def __init__(self, base_url: str, *, timeout_s: float, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._timeout = httpx.Timeout(timeout_s, connect=min(_CONNECT_TIMEOUT_S, timeout_s), pool=None)
        self._transport = transport
        # Made once: reading the certificates takes longer than many requests.
        self._verify = httpx.create_ssl_context() if transport is None else False
        self._pools: list[_Pool] = []
        self._spare: list[_Pool] = []

    async def __aenter__(self) -> "Connections":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.gather(*(pool.http.aclose() for pool in self._pools))

    async def get(self, path: str, headers: Mapping[str, str]) -> httpx.Response:
        """Get something small.

        Raises:
            httpx.RequestError: no answer came.
        """
        return await self._spare_pool().http.get(path, headers=dict(headers))

    @asynccontextmanager
    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> AsyncGenerator[httpx.Response]:
        """Send a request, and give its answer to be read while it comes.

        Raises:
            httpx.RequestError: no answer came, here or while it is read.
        """
        pool = self._spare_pool()
        pool.num_open += 1
        if pool.num_open == POOL_SIZE:
            self._spare.remove(pool)
        try:
            async with pool.http.stream("POST", path, content=body, headers=dict(headers)) as response:
                yield response
        finally:
            if pool.num_open == POOL_SIZE:
                self._spare.append(pool)
            pool.num_open -= 1

    def _spare_pool(self) -> _Pool:
        """Return the one with room that was used last: what is left idle in it has been so for the shortest time."""
        if not self._spare:
            self._pools.append(_Pool(self._open()))
            self._spare.append(self._pools[-1])
        return self._spare[-1]

    def _open(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.base_url,
            timeout=self._timeout,
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=None, keepalive_expiry=_KEEPALIVE_EXPIRY_S
            ),
            # Compressed events would come in lumps.
            headers={"Accept-Encoding": "identity", "Content-Type": "application/json"},
            transport=self._transport,
            verify=self._verify,
        )
