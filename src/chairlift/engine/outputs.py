"""What callers of an engine get back; the names are those that vLLM users know.

Knows nothing of transports.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What is new in one choice of a request since the last delta.

    ``text`` never holds part of a stop string or half a character; joined over all deltas of an ``index`` it is the
    choice's text. The last delta of a choice has a ``finish_reason`` (``stop``, ``length`` or ``abort``);
    ``stop_reason`` is the stop string or stop token id that ended it, ``None`` for the model's own end token.
    ``num_output_tokens`` counts the choice's tokens so far; ``num_cached_tokens`` the prompt tokens that came from
    the prefix cache (``None`` until known, then constant).
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    num_output_tokens: int
    num_cached_tokens: int | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One finished choice."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list[int])
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class RequestOutput:
    """One finished request with all its choices."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int = 0
    finished: bool = True
