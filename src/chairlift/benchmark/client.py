"""Sends one request to a server with OpenAI's API, and takes down when each piece of its answer came.

Knows nothing of why and when requests are sent.
"""

from collections.abc import Mapping
from http import HTTPStatus

import httpx

from chairlift.benchmark.clock import Clock
from chairlift.benchmark.connections import Connections
from chairlift.benchmark.records import NO_TOKENS, CallRecord
from chairlift.benchmark.sse import EventDecoder
from chairlift.benchmark.wire import DONE, Wire, error_text, parse_chunk, refusal_text


class Client:
    """A client of one server.

    Args:
        http: connections to the server.
        wire: how requests look.
        clock: what times are read from.
        keys: API keys by tenant; ``""`` is for tenants that have none.
    """

    def __init__(self, http: Connections, wire: Wire, clock: Clock, keys: Mapping[str, str] | None = None) -> None:
        self._http = http
        self._url = wire.url
        self._clock = clock
        self._keys = keys or {}

    async def answer(self, body: bytes, record: CallRecord) -> str:
        """Send a request, read its answer to the end and fill in the record; return the answer's text.

        A request that fails is no exception: the record says how.
        """
        record.sent_ns = self._clock.now_ns()
        text = ""
        try:
            headers = bearer(self._keys.get(record.tenant) or self._keys.get(""))
            async with self._http.post(self._url, body, headers) as response:
                if response.status_code == HTTPStatus.OK:
                    text = await self._read(response, record)
                else:
                    refusal = refusal_text(await response.aread())
                    record.fail(f"HTTP {response.status_code}", refusal)
        except httpx.ConnectTimeout as error:
            record.fail("connect", f"no connection in time: {error}")
        except httpx.TimeoutException as error:
            record.fail("timeout", type(error).__name__)
        except httpx.ConnectError as error:
            record.fail("connect", str(error))
        except httpx.RequestError as error:
            record.fail("connection broken", f"{type(error).__name__}: {error}")
        finally:
            record.end_ns = self._clock.now_ns()
            record.tally.settle()
        if record.is_ok and record.tally.num_tokens == 0:
            record.fail(NO_TOKENS, "the answer ended without a token")
        return text

    async def _read(self, response: httpx.Response, record: CallRecord) -> str:
        """Read events up to the end of the response, so that its connection can be used again."""
        decoder, texts = EventDecoder(), list[str]()
        is_done = False
        async for piece in response.aiter_bytes():
            now_ns = self._clock.now_ns()
            for data in decoder.feed(piece):
                is_done = self._take(data, now_ns, record, texts) or is_done
        for data in decoder.finish():
            is_done = self._take(data, self._clock.now_ns(), record, texts) or is_done
        if not is_done and record.tally.end_ns is None:
            record.fail("broken off", "the stream ended before the answer did")
        return "".join(texts)

    def _take(self, data: bytes, now_ns: int, record: CallRecord, texts: list[str]) -> bool:
        """Take one event; return whether it is the last."""
        if data == DONE:
            return True
        try:
            chunk = parse_chunk(data)
        except ValueError as error:
            record.fail("not a chunk", f"{error}: {data[:80]!r}")
            return False
        if chunk.error is not None:
            record.fail("error in stream", error_text(chunk.error))
        record.tally.take(chunk, now_ns)
        texts.append(chunk.answered())
        return False


def bearer(key: str | None) -> dict[str, str]:
    """Return the header that carries an API key."""
    return {"Authorization": f"Bearer {key}"} if key else {}
