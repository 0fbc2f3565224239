"""OpenAI's API as a client writes and reads it: bodies of requests, and the chunks of streamed answers.

Knows nothing of connections and of time. Fields that no answer needs to have are optional here: servers differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

import msgspec

DONE = b"[DONE]"

Message = Mapping[str, Any]
Prompt = str | Sequence[int]
"""What /v1/completions continues: text or token ids."""


class UsageStyle(Enum):
    """What a server says about tokens in a stream, from best to worst."""

    EACH_CHUNK = "each chunk"
    AT_THE_END = "at the end"
    NONE = "never"

    def stream_options(self) -> dict[str, object]:
        """Return the fields that ask for it."""
        if self is UsageStyle.NONE:
            return {}
        options = {"include_usage": True}
        if self is UsageStyle.EACH_CHUNK:
            options["continuous_usage_stats"] = True
        return {"stream_options": options}


class PromptTokensDetails(msgspec.Struct):
    """Where prompt tokens came from."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """Tokens of a request, so far or in all."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptTokensDetails | None = None


class Delta(msgspec.Struct):
    """What is new in a message. Reasoning has two names in the field."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None

    def text(self) -> str:
        """Return everything that was generated, whatever it is for."""
        calls = "" if not self.tool_calls else msgspec.json.encode(self.tool_calls).decode()
        return (self.reasoning_content or self.reasoning or "") + (self.content or "") + calls


class Choice(msgspec.Struct):
    """What is new in a choice: of a text completion ``text``, of a chat ``delta``."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct):
    """One event of a stream."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None

    def generated(self) -> str:
        """Return all text of the chunk."""
        return "".join(choice.text or ("" if choice.delta is None else choice.delta.text()) for choice in self.choices)

    def answered(self) -> str:
        """Return the text that goes into the next turn of a conversation: reasoning does not."""
        return "".join(
            choice.text or ("" if choice.delta is None else choice.delta.content or "") for choice in self.choices
        )

    @property
    def ends(self) -> bool:
        """Whether a choice ends here."""
        return any(choice.finish_reason is not None for choice in self.choices)


_decode = msgspec.json.Decoder(Chunk).decode
_encode = msgspec.json.Encoder().encode


def parse_chunk(data: bytes) -> Chunk:
    """Read an event.

    Raises:
        ValueError: it is no chunk of an answer.
    """
    return _decode(data)


def refusal_text(body: bytes, longest: int = 200) -> str:
    """Return what an answer that is no success says: the message of its error, else how it begins."""
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body[:longest].decode(errors="replace").strip()
    return error_text(content, longest)


def error_text(content: object, longest: int = 200) -> str:
    """Return the message within an error of any of the usual forms."""
    for _ in range(3):
        if not isinstance(content, dict):
            break
        fields = cast("dict[str, object]", content)
        content = next((fields[key] for key in ("error", "message", "detail") if fields.get(key)), str(fields))
    return str(content)[:longest]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """How requests to one server look. ``extra`` is put into every body, and wins."""

    is_chat: bool
    model: str
    usage: UsageStyle = UsageStyle.EACH_CHUNK
    ignores_eos: bool = False
    temperature: float | None = 0.0
    has_tiers: bool = False
    """Whether to send each request's tier, which servers without tiers may refuse."""
    path: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def url(self) -> str:
        """Path of the endpoint."""
        return self.path or ("/v1/chat/completions" if self.is_chat else "/v1/completions")

    def body(
        self,
        prompt: "Prompt | Sequence[Message]",
        max_tokens: int | None,
        *,
        tier: int | None = None,
        user: str | None = None,
    ) -> bytes:
        """Return the body of a request. A chat takes a text for its one message, and completions the messages' text."""
        fields: dict[str, Any] = {"model": self.model, "stream": True, **self.usage.stream_options()}
        if self.is_chat:
            fields["messages"] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        else:
            fields["prompt"] = _joined(prompt)
        if max_tokens is not None:
            fields["max_completion_tokens" if self.is_chat else "max_tokens"] = max_tokens
        if self.temperature is not None:
            fields["temperature"] = self.temperature
        if self.ignores_eos:
            fields["ignore_eos"] = True
        if self.has_tiers and tier is not None:
            fields["priority"] = tier
        if user:
            fields["user"] = user
        return _encode({**fields, **self.extra})


def _joined(prompt: "Prompt | Sequence[Message]") -> Prompt:
    if isinstance(prompt, str):
        return prompt
    texts: list[str] = []
    for part in prompt:
        if isinstance(part, int):
            return prompt  # pyright: ignore[reportReturnType] - a prompt is all ids or all messages
        texts.append(str(part.get("content") or ""))
    return "\n\n".join(texts)
