"""What a request wants to see beside the text: log-probabilities and token ids. Knows nothing of endpoints."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chairlift.engine.outputs import ChoiceDelta
from chairlift.server.openai.logprobs import LogprobWriter, TokenTexts
from chairlift.server.openai.requests import ChatBody, CompletionBody, SamplingFields

_MANY_LOGPROBS = 256
_MANY_BYTES = 32_768
_PORTION = 256
"""Answers with more log-probabilities, or bytes of vectors, are written in a thread, so that other requests do not wait
for it. A stream writes log-probabilities of so many tokens, alternatives among them, in one go."""


@dataclass(frozen=True, slots=True)
class Extras:
    """What is shown of each choice; nothing by default.

    ``num_prompt_top`` alternatives beside the prompt's log-probabilities; ``None`` shows none of these.
    """

    logprobs: LogprobWriter
    has_token_ids: bool = False
    num_prompt_top: int | None = None

    @classmethod
    def of(cls, body: SamplingFields, codec: TokenTexts) -> "Extras":
        """What a request asks for."""
        num_top = None
        if isinstance(body, CompletionBody):
            num_top = body.logprobs
        elif isinstance(body, ChatBody) and body.logprobs:
            num_top = body.top_logprobs or 0
        writer = LogprobWriter(codec, num_top, as_ids=body.return_tokens_as_token_ids is True)
        return cls(writer, body.return_token_ids is True, body.prompt_logprobs)

    def has_news(self, delta: ChoiceDelta) -> bool:
        """Whether a delta without text has something to show."""
        return bool(delta.token_ids) and (self.has_token_ids or self.logprobs.is_wanted)


def is_heavy(deltas: Sequence[ChoiceDelta]) -> bool:
    """Whether writing these takes long enough for others to notice."""
    num_logprobs = sum(len(delta.logprobs) + len(delta.prompt_logprobs or ()) for delta in deltas)
    return num_logprobs > _MANY_LOGPROBS or sum(len(delta.embedding or b"") for delta in deltas) > _MANY_BYTES


def portions(deltas: Sequence[ChoiceDelta]) -> Iterator[Sequence[ChoiceDelta]]:
    """Split deltas that come together so that writing each part is quick; one delta is never split."""
    start = weight = 0
    for position, delta in enumerate(deltas):
        own = sum(1 + len(found.top) for found in delta.logprobs)
        if position > start and weight + own > _PORTION:
            yield deltas[start:position]
            start, weight = position, 0
        weight += own
    yield deltas[start:]
