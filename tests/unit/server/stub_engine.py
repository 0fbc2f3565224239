"""An engine whose answers are scripted by the test. Knows nothing of scheduling."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from chairlift.config.resolved import TenantTable
from chairlift.config.sections import ServerSettings
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.byte_tokenizer import ByteTokenizer
from chairlift.engine.messages import Listed, RequestStatus
from chairlift.engine.outputs import ChoiceDelta
from chairlift.engine.terms import Terms
from chairlift.errors import OverloadedError
from chairlift.server.access import Access
from chairlift.server.app import create_app

Script = Callable[[Sequence[int], SamplingParams], AsyncIterator[ChoiceDelta]]


@dataclass
class Facts:
    name: str = "stub"
    max_model_len: int = 64
    vocab_size: int = ByteTokenizer.vocab_size
    embedding_size: int = 16


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
    live_choices: list[tuple[int, int]] = field(default_factory=list)
    num_aborts: int = 0

    def __aiter__(self) -> AsyncIterator[ChoiceDelta]:
        return self.deltas

    def abort(self) -> None:
        self.num_aborts += 1


def status(request_id: int) -> RequestStatus:
    """A request that waits for pages."""
    return RequestStatus(
        request_id=request_id,
        phase="waiting",
        tier=0,
        tenant="",
        blocked_on="pages",
        reason="3 pages are missing",
        waited_s=1.5,
        position=2,
        num_tokens_ahead=30,
        num_prompt_tokens=7,
        num_output_tokens=0,
        max_tokens=16,
        num_computed_tokens=0,
        num_kv_pages=0,
        num_preemptions=0,
    )


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
    tenants: TenantTable = field(default_factory=TenantTable)
    engine_ids: Iterator[int] = field(default_factory=lambda: itertools.count(100))
    explained: list[list[int]] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    configured: list[dict] = field(default_factory=list)

    may_turn_away = False

    def turn_away(self, terms: Terms, num_choices: int) -> OverloadedError | None:
        return None

    async def submit(
        self, prompt_token_ids: Sequence[int], sampling: SamplingParams, terms: Terms | None = None
    ) -> StubStream:
        self.submitted.append({"prompt": list(prompt_token_ids), "sampling": sampling, "terms": terms or Terms()})
        await asyncio.sleep(0)
        if error := self.refuse(prompt_token_ids):
            raise error
        ids = [(index, next(self.engine_ids)) for index in range(sampling.n)]
        self.streams.append(StubStream(self.script(prompt_token_ids, sampling), ids))
        return self.streams[-1]

    async def explain(self, request_ids: Sequence[int]) -> list[RequestStatus | None]:
        self.explained.append(list(request_ids))
        return [None if request_id in self.ended else status(request_id) for request_id in request_ids]

    async def list_requests(self, limit: int) -> Listed:
        ids = [request_id for stream in self.streams for _, request_id in stream.live_choices]
        return Listed(0, tuple(status(request_id) for request_id in ids[:limit]), (), len(ids), 0)

    async def reset_prefix_cache(self) -> bool:
        return not self.streams

    async def configure(self, changes: Mapping[str, object]) -> Mapping[str, object]:
        self.configured.append(dict(changes))
        return {"scheduling_policy": "fcfs", **changes}


def request(
    method: str,
    path: str,
    *,
    engine: StubEngine | None = None,
    server: ServerSettings | None = None,
    access: Access | None = None,
    raise_faults: bool = True,
    **arguments: Any,
) -> httpx.Response:
    """One request to an application of its own."""

    async def send() -> httpx.Response:
        app = create_app(engine or StubEngine(), server or ServerSettings(), access)
        transport = httpx.ASGITransport(app, raise_app_exceptions=raise_faults)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **arguments)

    return asyncio.run(send())


def post(path: str, body: object, **options: Any) -> httpx.Response:
    """POST a body: an object as JSON, text and bytes as they are."""
    if isinstance(body, str | bytes):
        return request("POST", path, content=body, **options)
    return request("POST", path, json=body, **options)
