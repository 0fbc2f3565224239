"""Who answers in ``chairlift chat``: a server over HTTP, or an engine of our own. Knows nothing of terminals."""

from collections.abc import AsyncIterator, Generator
from contextlib import AbstractContextManager, contextmanager
from http import HTTPStatus
from typing import Any, Protocol

import httpx
import msgspec
from anyio.from_thread import BlockingPortal, start_blocking_portal

from chairlift.cli.server_errors import error_message
from chairlift.config.settings import Settings
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.outputs import ChoiceDelta
from chairlift.errors import ChairliftError, EngineUnavailableError, InvalidRequestError
from chairlift.server.engine_port import Engine, TokenStream

Messages = list[dict[str, Any]]

_CONNECT_TIMEOUT_S = 5.0


class ChatBackend(Protocol):
    """Something that answers a conversation."""

    @property
    def model(self) -> str:
        """Name of what answers."""
        ...

    def answer(self, messages: Messages) -> Generator[str]:
        """Pieces of the assistant's next turn; closing the generator stops it.

        Raises:
            ChairliftError: there is no answer, or it broke off.
        """
        ...


class HttpBackend:
    """A server with OpenAI's API."""

    def __init__(self, client: httpx.Client, model: str, sampling: dict[str, Any]) -> None:
        self.model = model
        self._client = client
        self._sampling = sampling

    def answer(self, messages: Messages) -> Generator[str]:
        """Stream from /v1/chat/completions."""
        body = {"model": self.model, "messages": messages, "stream": True, **self._sampling}
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != HTTPStatus.OK:
                    raise InvalidRequestError(error_message(response.read(), response.status_code))
                for line in response.iter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        yield _text_of(msgspec.json.decode(line.removeprefix("data: ")))
        except httpx.HTTPError as error:
            raise EngineUnavailableError(f"the server does not answer: {error}") from None


@contextmanager
def open_http_backend(
    base_url: str, api_key: str | None, model: str | None, sampling: dict[str, Any]
) -> Generator[ChatBackend]:
    """Connect to a server; without a name its first model answers. ``base_url`` may end in ``/v1``.

    Raises:
        ChairliftError: the server cannot be reached or refuses the key.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S)
    root = base_url.rstrip("/").removesuffix("/v1")
    with httpx.Client(base_url=root, headers=headers, timeout=timeout) as client:
        yield HttpBackend(client, model or _first_model(client), sampling)


class EngineBackend:
    """An engine in a thread of its own, so that the terminal may block while it works."""

    def __init__(self, engine: Engine, portal: BlockingPortal, sampling: SamplingParams) -> None:
        self.model = engine.model_info.name
        self._engine = engine
        self._portal = portal
        self._sampling = sampling

    def answer(self, messages: Messages) -> Generator[str]:
        """Stream from the engine."""
        codec = self._engine.tokenizer
        token_ids = codec.encode(codec.apply_chat_template(messages), add_special_tokens=False)
        stream: TokenStream = self._portal.call(self._engine.submit, token_ids, self._sampling)
        try:
            deltas = aiter(stream)
            while (delta := self._portal.call(_next_or_none, deltas)) is not None:
                yield delta.text
        finally:
            self._portal.call(stream.abort)


@contextmanager
def open_engine_backend(settings: Settings, sampling: dict[str, Any]) -> Generator[ChatBackend]:
    """Load a model and answer with it.

    Raises:
        ChairliftError: the model cannot be served.
    """
    params = SamplingParams(**sampling)
    with start_blocking_portal() as portal:
        engine = portal.call(AsyncEngine, settings)
        try:
            portal.call(engine.start)
            yield EngineBackend(engine, portal, params)
        finally:
            portal.call(engine.stop, 0.0)


def open_backend(
    settings: Settings, base_url: str | None, sampling: dict[str, Any]
) -> AbstractContextManager[ChatBackend]:
    """The backend that the flags ask for."""
    if base_url is None:
        return open_engine_backend(settings, sampling)
    return open_http_backend(base_url, settings.server.api_key, settings.model.model, sampling)


async def _next_or_none(deltas: AsyncIterator[ChoiceDelta]) -> ChoiceDelta | None:
    return await anext(deltas, None)


def _first_model(client: httpx.Client) -> str:
    try:
        response = client.get("/v1/models")
    except httpx.HTTPError as error:
        raise EngineUnavailableError(f"no server answers at {client.base_url}: {error}") from None
    if response.status_code != HTTPStatus.OK:
        raise InvalidRequestError(error_message(response.content, response.status_code))
    models: list[dict[str, str]] = response.json()["data"]
    if not models:
        raise InvalidRequestError(f"the server at {client.base_url} has no model")
    return models[0]["id"]


def _text_of(chunk: dict[str, Any]) -> str:
    if "error" in chunk:
        raise ChairliftError(chunk["error"].get("message", "the server failed"))
    return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
