"""What callers of an engine get back; the names are those that vLLM users know.

Knows nothing of transports.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from chairlift.core.step_plan import TokenLogprobs


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What is new in one choice of a request since the last delta.

    ``text`` never holds part of a stop string or half a character; joined over all deltas of an ``index`` it is the
    choice's text. The last delta of a choice has a ``finish_reason`` (``stop``, ``length`` or ``abort``);
    ``stop_reason`` is the stop string or stop token id that ended it, ``None`` for the model's own end token.
    ``num_output_tokens`` counts the choice's tokens so far; ``num_cached_tokens`` the prompt tokens that came from
    the prefix cache (``None`` until known, then constant).

    ``text_offsets`` has one entry for each token: the place in the choice's text where the token's own text begins.
    ``logprobs`` has one if log-probabilities were asked for. ``prompt_logprobs``, if asked for, come once, in the
    choice's first delta: one for each prompt token but the first.

    ``embedding`` is what a pooled request was for, in its only delta: float32 numbers in little-endian order.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    num_output_tokens: int
    num_cached_tokens: int | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    text_offsets: tuple[int, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    embedding: bytes | None = None


@dataclass(frozen=True, slots=True)
class Logprob:
    """How likely the model found a token; ``rank`` is 1 for the most likely one."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


Logprobs = Mapping[int, Logprob]
"""A token and the most likely alternatives, by token id."""


@dataclass(slots=True)
class CompletionOutput:
    """One finished choice; ``logprobs``, if asked for, have one entry for each token."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list[int])
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    cumulative_logprob: float | None = None
    logprobs: list[Logprobs] | None = None


@dataclass(slots=True)
class EmbeddingOutput:
    """The vector of one prompt."""

    embedding: list[float] = field(default_factory=list[float])

    @property
    def hidden_size(self) -> int:
        """Its numbers."""
        return len(self.embedding)


@dataclass(slots=True)
class EmbeddingRequestOutput:
    """One prompt and its vector."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: EmbeddingOutput = field(default_factory=EmbeddingOutput)
    num_cached_tokens: int = 0
    finished: bool = True


@dataclass(slots=True)
class RequestOutput:
    """One finished request with all its choices; of ``prompt_logprobs`` the first is ``None``, as nothing precedes."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int = 0
    finished: bool = True
    prompt_logprobs: list[Logprobs | None] | None = None


def describe_token(token_id: int, found: TokenLogprobs, token_text: Callable[[int], str]) -> Logprobs:
    """Return the log-probabilities at one place as vLLM has them: the token's own, and those of the alternatives."""
    described = {token: Logprob(logprob, rank, token_text(token)) for rank, (token, logprob) in enumerate(found.top, 1)}
    if token_id not in described:
        described = {token_id: Logprob(found.token_logprob, found.rank, token_text(token_id)), **described}
    return described
