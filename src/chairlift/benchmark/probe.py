"""Finds out what a server understands before anything is measured, by asking it a few short questions.

Knows nothing of the load that follows. OpenAI's API is spoken in dialects: whether prompts may be token ids, and what
is said about tokens while an answer streams, differs from server to server.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

import httpx
import msgspec

from chairlift.benchmark.client import Client, bearer
from chairlift.benchmark.clock import Clock
from chairlift.benchmark.connections import Connections
from chairlift.benchmark.prompts import WORDS, TextScale
from chairlift.benchmark.records import CallRecord
from chairlift.benchmark.wire import Prompt, UsageStyle, Wire, refusal_text
from chairlift.errors import ConfigurationError, EngineUnavailableError, InvalidRequestError
from chairlift.workload.lengths import FIRST_TOKEN_ID

VOCAB_SIZES = (32_000, 256)
"""Sizes to try, the smallest common one first: ids below it are in nearly every vocabulary."""

_REFUSALS = frozenset(f"HTTP {status}" for status in (400, 404, 422, 500, 501))
_NUM_TOKENS = 4
_NUM_WORDS = (16, 112)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What a server understands: how to write to it, and what it makes of prompts.

    ``vocab_size`` is absent if it wants text.
    """

    wire: Wire
    vocab_size: int | None
    scale: TextScale

    def to_json(self) -> dict[str, object]:
        """Return what was found out, by name."""
        return {
            "model": self.wire.model,
            "endpoint": self.wire.url,
            "prompts": "text" if self.vocab_size is None else "token ids",
            "vocab_size": self.vocab_size,
            "usage": self.wire.usage.value,
            "tokens_per_word": round(self.scale.tokens_per_word, 4),
            "overhead_tokens": round(self.scale.overhead_tokens, 2),
        }


async def find_model(http: Connections, name: str | None, key: str | None) -> str:
    """Return the name, or that of the server's first model.

    Raises:
        EngineUnavailableError: no server answers.
        InvalidRequestError: it has no models, or refuses the key.
    """
    if name is not None:
        return name
    try:
        response = await http.get("/v1/models", bearer(key))
    except httpx.RequestError as error:
        raise _nobody(http, error) from None
    if response.status_code != HTTPStatus.OK:
        raise InvalidRequestError(
            f"{http.base_url} does not list its models ({response.status_code}: {refusal_text(response.content)}); "
            "give one with --model"
        )
    try:
        return str(msgspec.json.decode(response.content)["data"][0]["id"])
    except (msgspec.DecodeError, KeyError, IndexError, TypeError):
        raise InvalidRequestError(f"{http.base_url} lists no model; give one with --model") from None


class Probe:
    """Asks short questions.

    Args:
        http: the connection.
        clock: what times are read from.
        keys: API keys by tenant, as a :class:`~.client.Client` takes them.
        tenant: in whose name to ask.
    """

    def __init__(
        self, http: Connections, clock: Clock, keys: Mapping[str, str] | None = None, tenant: str = ""
    ) -> None:
        self._http = http
        self._clock = clock
        self._keys = keys
        self._tenant = tenant

    async def find_dialect(self, wire: Wire, *, prompts: str = "auto", vocab_size: int | None = None) -> Dialect:
        """Find out how to write to the server.

        Args:
            wire: what is known; its usage style is the best one to try.
            prompts: ``ids``, ``text``, or ``auto`` for ids where the server takes them.
            vocab_size: ids are below this; found out if absent.

        Raises:
            EngineUnavailableError: no server answers.
            InvalidRequestError: it answers none of the questions.
        """
        wire = await self._find_usage(wire)
        if prompts != "text" and not wire.is_chat:
            for size in VOCAB_SIZES if vocab_size is None else (vocab_size,):
                ids = [FIRST_TOKEN_ID + (31 * place) % (size - FIRST_TOKEN_ID) for place in range(3)] + [size - 1]
                if (await self._ask(wire, ids)).is_ok:
                    return Dialect(wire=wire, vocab_size=size, scale=TextScale())
        if prompts == "ids":
            raise InvalidRequestError("the server takes no token ids as prompts here; use --prompts text")
        return Dialect(wire=wire, vocab_size=None, scale=await self._find_scale(wire))

    async def _find_usage(self, wire: Wire) -> Wire:
        """Try styles from the wanted one down to the first one that is accepted; note what is said in truth."""
        styles = list(UsageStyle)
        refused: CallRecord | None = None
        for style in styles[styles.index(wire.usage) :]:
            tried = replace(wire, usage=style)
            record = await self._ask(tried, _words(8))
            if record.is_ok:
                return tried
            refused = refused or record
            if record.error not in _REFUSALS:
                break
        assert refused is not None  # noqa: S101 - there are styles
        if refused.error == "connect":
            raise EngineUnavailableError(f"no server answers at {self._http.base_url}: {refused.message}")
        raise InvalidRequestError(
            f"{self._http.base_url} does not answer a first request to {wire.url}: {refused.error}: {refused.message}"
        )

    async def _find_scale(self, wire: Wire) -> TextScale:
        """Measure how many tokens words make; one token each if the server does not say."""
        counted: list[int] = []
        for num_words in _NUM_WORDS:
            record = await self._ask(wire, _words(num_words))
            if record.tally.num_prompt_tokens is None:
                return TextScale()
            counted.append(record.tally.num_prompt_tokens)
        few, many = _NUM_WORDS
        slope = (counted[1] - counted[0]) / (many - few)
        return TextScale(slope, counted[0] - slope * few) if slope > 0 else TextScale()

    async def _ask(self, wire: Wire, prompt: Prompt) -> CallRecord:
        client = Client(self._http, wire, self._clock, self._keys)
        record = CallRecord(number=0, stream=0, tier=0, tenant=self._tenant, due_ns=self._clock.now_ns())
        await client.answer(wire.body(prompt, _NUM_TOKENS), record)
        return record


def _nobody(http: Connections, error: Exception) -> EngineUnavailableError:
    return EngineUnavailableError(f"no server answers at {http.base_url}: {error}")


def _words(count: int) -> str:
    return " ".join(WORDS[place % len(WORDS)] for place in range(count))


def check_wire(extra: Mapping[str, Any], taken: Iterable[str] = ("prompt", "messages", "stream", "model")) -> None:
    """Refuse fields in ``--extra-body`` that the tool itself decides.

    Raises:
        ConfigurationError: one of them is there.
    """
    clashing: Sequence[str] = sorted(extra.keys() & set(taken))
    if clashing:
        raise ConfigurationError(f"--extra-body must not have {', '.join(clashing)}, which this tool sets")
