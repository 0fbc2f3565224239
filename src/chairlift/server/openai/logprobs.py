r"""Log-probabilities as OpenAI's two endpoints and vLLM write them. Knows nothing of where they come from.

A token's own bytes are written, so joined bytes are the text's bytes. Where a token is only part of a character, its
text is U+FFFD in chat, which has the bytes beside it, and ``bytes:\xe2\x82`` in text completions, which has not.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from chairlift.core.step_plan import TokenLogprobs
from chairlift.engine.tokenizer import Detokenizer
from chairlift.server.openai.responses import (
    ChatLogprobs,
    ChatTokenLogprob,
    ChatTopLogprob,
    CompletionLogprobs,
    PromptLogprob,
)

LOWEST_LOGPROB = -9999.0
"""JSON has no infinity; this is what vLLM writes for a token that is impossible."""


class TokenTexts(Protocol):
    """The part of a tokenizer that is needed here."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text."""
        ...

    def detokenizer(self, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True) -> Detokenizer:
        """Return what turns tokens into text one by one."""
        ...


class LogprobWriter:
    """Writes log-probabilities of tokens.

    Args:
        codec: knows the tokens.
        num_top: alternatives to show; ``None`` shows no log-probabilities of the output at all.
        as_ids: write tokens as ``token_id:N``.
    """

    def __init__(self, codec: TokenTexts, num_top: int | None, *, as_ids: bool = False) -> None:
        self._codec = codec
        self._num_top = num_top
        self._as_ids = as_ids

    @property
    def is_wanted(self) -> bool:
        """Whether the request wants to see the output's."""
        return self._num_top is not None

    def chat(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> ChatLogprobs | None:
        """Those of some output tokens, for /v1/chat/completions."""
        if self._num_top is None:
            return None
        return ChatLogprobs(
            [
                self._chat_token(token_id, found, self._num_top)
                for token_id, found in zip(token_ids, logprobs, strict=True)
            ]
        )

    def completion(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None], offsets: Sequence[int]
    ) -> CompletionLogprobs | None:
        """Those of some tokens, for /v1/completions; ``None`` in ``logprobs`` is the first token of a prompt."""
        if self._num_top is None:
            return None
        return CompletionLogprobs(
            text_offset=list(offsets),
            token_logprobs=[None if found is None else _finite(found.token_logprob) for found in logprobs],
            tokens=[self._name(token_id) for token_id in token_ids],
            top_logprobs=[
                None if found is None else self._completion_top(token_id, found, self._num_top)
                for token_id, found in zip(token_ids, logprobs, strict=True)
            ],
        )

    def prompt(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], num_top: int
    ) -> list[dict[str, PromptLogprob] | None]:
        """Those of a whole prompt, as vLLM has them: by token id, nothing for the first token."""
        return [
            None,
            *(
                self._prompt_token(token_id, found, num_top)
                for token_id, found in zip(token_ids[1:], logprobs, strict=True)
            ),
        ]

    def _chat_token(self, token_id: int, found: TokenLogprobs, num_top: int) -> ChatTokenLogprob:
        top = [ChatTopLogprob(*self._shown(token), _finite(logprob)) for token, logprob in found.top[:num_top]]
        return ChatTokenLogprob(*self._shown(token_id), _finite(found.token_logprob), top)

    def _completion_top(self, token_id: int, found: TokenLogprobs, num_top: int) -> dict[str, float]:
        top = {self._name(token): _finite(logprob) for token, logprob in found.top[:num_top]}
        top.setdefault(self._name(token_id), _finite(found.token_logprob))
        return top

    def _prompt_token(self, token_id: int, found: TokenLogprobs, num_top: int) -> dict[str, PromptLogprob]:
        shown = {
            str(token): PromptLogprob(_finite(logprob), rank, self._text(token))
            for rank, (token, logprob) in enumerate(found.top[:num_top], 1)
        }
        shown.setdefault(str(token_id), PromptLogprob(_finite(found.token_logprob), found.rank, self._text(token_id)))
        return shown

    def _shown(self, token_id: int) -> tuple[str, list[int]]:
        text, piece = _spelled(self._codec, token_id)
        return (f"token_id:{token_id}" if self._as_ids else text), piece

    def _name(self, token_id: int) -> str:
        if self._as_ids:
            return f"token_id:{token_id}"
        piece = self._codec.token_bytes(token_id)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)

    def _text(self, token_id: int) -> str:
        return self._codec.token_bytes(token_id).decode(errors="replace")


@lru_cache(maxsize=16_384)
def _spelled(codec: TokenTexts, token_id: int) -> tuple[str, list[int]]:
    """A token's text and bytes; kept, since the likely tokens are the same few again and again. Not to be changed."""
    piece = codec.token_bytes(token_id)
    return piece.decode(errors="replace"), list(piece)


def token_offsets(codec: TokenTexts, token_ids: Sequence[int], text: str) -> list[int]:
    """Where each of a text's tokens begins in it: characters before it.

    A special token that the tokenizer added is no part of the text, while one that was written out is.
    """
    offsets, shown = _walk(codec.detokenizer((), skip_special_tokens=False), token_ids)
    return offsets if shown == text else _walk(codec.detokenizer((), skip_special_tokens=True), token_ids)[0]


def _walk(detokenizer: Detokenizer, token_ids: Sequence[int]) -> tuple[list[int], str]:
    offsets: list[int] = []
    parts: list[str] = []
    num_chars = 0
    for token_id in token_ids:
        offsets.append(num_chars)
        parts.append(detokenizer.push(token_id))
        num_chars += len(parts[-1])
    parts.append(detokenizer.flush())
    return offsets, "".join(parts)


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
