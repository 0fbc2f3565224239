"""What a workload consists of: requests with lengths, arrival times and the content of their prompts as runs of ids.

Knows nothing of schedulers or of where requests come from.

A prompt without runs is shared with nobody. One with runs is made of pieces, and two prompts that begin with the same
pieces begin alike; a piece's id must stand for everything before it as well (a hash of the prefix, or a name that
occurs in one conversation only)::

    0 ............ 3683 ........ 3705 ............ 3742
    | run (1, 3683)| run (40, 22)| run (41, 37)    |
"""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

MAX_CONTENT_ID = 2**32 - 1
MAX_OUTPUT_TOKENS = 2**31 - 1
"""Of one request."""
UNSHARED_ID = 0
"""Of a run that nobody else has."""


class ContentRun(NamedTuple):
    """``num_tokens`` consecutive tokens of the content ``content_id``: :data:`UNSHARED_ID`, or in ``[1, 2**32)``."""

    content_id: int
    num_tokens: int


class WorkRequest(NamedTuple):
    """One request. ``arrival_ns`` counts from the start of the workload; ``stream`` is its stream's place in it.

    ``follow_up`` arrives some time after this one has ended: the next call of a conversation. Its own ``arrival_ns``
    means nothing.
    """

    arrival_ns: int
    num_prompt_tokens: int
    num_output_tokens: int
    runs: Sequence[ContentRun] = ()
    stream: int = 0
    follow_up: "WorkRequest | None" = None
    tier: int | None = None
    """Instead of the stream's."""
    tenant: str | None = None
    """Instead of the stream's."""


def compact_prompt(request: WorkRequest) -> "bytearray | array[int]":
    """Return tokens that stand for the prompt: each is the id of the run it belongs to, or 0 if nobody shares it."""
    if not request.runs:
        return bytearray(request.num_prompt_tokens)
    tokens = array("I")
    for run in request.runs:
        tokens.extend(array("I", [run.content_id]) * run.num_tokens)
    return tokens


def distinct_prompt(request: WorkRequest, number: int, vocab_size: int) -> list[int]:
    """Return tokens for a real engine: equal runs give equal tokens, and a prompt without runs is like no other.

    ``number`` is the request's own number.
    """
    own_id = MAX_CONTENT_ID - number
    runs = request.runs or (ContentRun(own_id, request.num_prompt_tokens),)
    return [
        # A multiplicative mix: neighbouring ids and positions must not give neighbouring tokens.
        (((run.content_id or own_id) * 2_654_435_761 + position * 40_503 + 97) >> 7) % vocab_size
        for run in runs
        for position in range(run.num_tokens)
    ]
