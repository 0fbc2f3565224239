"""An engine whose answers are scripted by the test. Knows nothing of scheduling."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from chairlift.config.sections import ServerSettings
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.byte_tokenizer import ByteTokenizer
from chairlift.engine.outputs import ChoiceDelta
from chairlift.server.app import create_app

Script = Callable[[Sequence[int], SamplingParams], AsyncIterator[ChoiceDelta]]


@dataclass
class Facts:
    name: str = "stub"
    max_model_len: int = 64
    vocab_size: int = ByteTokenizer.vocab_size


class Page:
    def render(self) -> bytes:
        return b"stub_metric 1\n"


async def letters(prompt: Sequence[int], sampling: SamplingParams) -> AsyncIterator[ChoiceDelta]:
    """Each choice says consecutive letters, beginning with its own index; half of the prompt was cached."""
    count = 4 if sampling.max_tokens is None else sampling.max_tokens
    for position in range(count):
        for index in range(sampling.n):
            await asyncio.sleep(0)
            letter = chr(ord("a") + index + position)
            reason = "length" if position == count - 1 else None
            yield ChoiceDelta(index, letter, (ord(letter),), position + 1, len(prompt) // 2, reason)


@dataclass
class StubStream:
    deltas: AsyncIterator[ChoiceDelta]
    num_aborts: int = 0

    def __aiter__(self) -> AsyncIterator[ChoiceDelta]:
        return self.deltas

    def abort(self) -> None:
        self.num_aborts += 1


@dataclass
class StubEngine:
    script: Script = letters
    refuse: Callable[[Sequence[int]], Exception | None] = lambda prompt: None
    is_healthy: bool = True
    is_draining: bool = False
    tokenizer: ByteTokenizer = field(default_factory=ByteTokenizer)
    model_info: Facts = field(default_factory=Facts)
    metrics: Page = field(default_factory=Page)
    streams: list[StubStream] = field(default_factory=list)
    submitted: list[dict] = field(default_factory=list)

    async def submit(self, prompt_token_ids: Sequence[int], sampling: SamplingParams, **options: object) -> StubStream:
        self.submitted.append({"prompt": list(prompt_token_ids), "sampling": sampling, **options})
        await asyncio.sleep(0)
        if error := self.refuse(prompt_token_ids):
            raise error
        self.streams.append(StubStream(self.script(prompt_token_ids, sampling)))
        return self.streams[-1]


def request(
    method: str,
    path: str,
    *,
    engine: StubEngine | None = None,
    server: ServerSettings | None = None,
    raise_faults: bool = True,
    **arguments: Any,
) -> httpx.Response:
    """One request to an application of its own."""

    async def send() -> httpx.Response:
        app = create_app(engine or StubEngine(), server or ServerSettings())
        transport = httpx.ASGITransport(app, raise_app_exceptions=raise_faults)
        async with httpx.AsyncClient(transport=transport, base_url="http://stub") as client:
            return await client.request(method, path, **arguments)

    return asyncio.run(send())


def post(path: str, body: object, **options: Any) -> httpx.Response:
    """POST a body: an object as JSON, text and bytes as they are."""
    if isinstance(body, str | bytes):
        return request("POST", path, content=body, **options)
    return request("POST", path, json=body, **options)
