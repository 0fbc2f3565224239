"""What a committed step brought, to requests and as a whole.

Knows nothing of how it came about.
"""

from typing import NamedTuple

from chairlift.core.request import FinishReason
from chairlift.core.step_plan import PromptLogprobs, StepResult, TokenLogprobs


class RequestUpdate(NamedTuple):
    """What a step brought to one request: new tokens, and how it ended if it did."""

    request_id: int
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    stop_token: int | None
    num_cached_tokens: int
    logprobs: TokenLogprobs | None
    prompt_logprobs: PromptLogprobs | None = None
    embedding: bytes | None = None
    """As executors give it, with the end of a pooled request."""


class CommittedStep(NamedTuple):
    """A step's size and use. ``num_useful_slots`` of the slots did something for a request that still lived."""

    updates: list[RequestUpdate]
    num_prefill_tokens: int
    num_decode_tokens: int
    num_padding_tokens: int
    num_wasted_rows: int
    num_useful_slots: int


class StepOutcome(NamedTuple):
    """A committed step: what it brought to requests, its size, and how many slots did something useful."""

    step: int
    updates: list[RequestUpdate]
    result: StepResult
    num_prefill_tokens: int
    num_decode_tokens: int
    num_padding_tokens: int
    num_wasted_rows: int
    num_useful_slots: int
