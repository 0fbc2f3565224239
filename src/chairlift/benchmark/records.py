"""What is taken down about a request: when it was due and sent, when its pieces came, and how it ended.

Knows nothing of connections. All times are nanoseconds of the benchmark's clock.

::

    due ........ ready ...... sent ............ first chunk .. chunk ...... last chunk .. end
    | client queue | lateness  | time to first token |   gaps between tokens    |
    (--max-concurrency) (the tool's own)
"""

from array import array
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from chairlift.benchmark.wire import Chunk

INTERRUPTED = "interrupted"
NO_TOKENS = "no tokens"


class TokenCounts(Enum):
    """How many tokens each chunk of an answer had, from best to worst known."""

    PER_CHUNK = "said with each chunk"
    ONE_EACH = "one per chunk"
    SPREAD = "spread over chunks"
    ESTIMATED = "estimated"


class AnswerTally:
    """Chunks of one answer: when each came, and how many tokens it had.

    A chunk counts if it has text, or if the server says with it that there are more tokens than before. The first
    message of a chat stream, which only names the role, does not.
    """

    def __init__(self) -> None:
        self.times_ns: array[int] = array("q")
        self.counts: array[int] = array("q")
        self.basis = TokenCounts.ESTIMATED
        self.num_tokens = 0
        self.num_prompt_tokens: int | None = None
        self.num_cached_tokens: int | None = None
        self.end_ns: int | None = None
        """When the chunk with the reason of the end came."""
        self._sizes: list[int] = []
        self._totals: list[int] = []
        self._final_total: int | None = None
        self._last_total = 0
        self._says_totals = True

    def take(self, chunk: Chunk, now_ns: int) -> None:
        """Count a chunk that came now."""
        if not chunk.choices:
            self._take_usage(chunk)
            return
        size, before = len(chunk.generated()), self._last_total
        self._take_usage(chunk)
        has_total = chunk.usage is not None and chunk.usage.completion_tokens is not None
        if size or (has_total and self._last_total > before):
            self.times_ns.append(now_ns)
            self._sizes.append(size)
            self._totals.append(self._last_total)
            self._says_totals = self._says_totals and has_total
        if chunk.ends:
            self.end_ns = now_ns

    def settle(self) -> None:
        """Decide how many tokens each chunk had, now that there are no more.

        Servers that say it only at the end leave open how the tokens were spread if there are more of them than chunks
        (a token that is part of a character has no text); they are spread by how much text each chunk had.
        """
        if not self.times_ns and self._final_total and self.end_ns is not None:
            self.times_ns.append(self.end_ns)  # tokens without any text: they are here when the answer ends
            self._sizes.append(0)
            self._says_totals = False
        num_chunks = len(self.times_ns)
        total = self._final_total
        if total is None or not num_chunks:
            self.num_tokens, self.counts = num_chunks, array("q", [1] * num_chunks)
        elif self._says_totals and self._totals[-1] == total:
            self.basis, self.num_tokens = TokenCounts.PER_CHUNK, total
            self.counts = array("q", [after - before for before, after in pairwise([0, *self._totals])])
        elif total == num_chunks:
            self.basis, self.num_tokens, self.counts = TokenCounts.ONE_EACH, total, array("q", [1] * total)
        else:
            self.basis, self.num_tokens, self.counts = TokenCounts.SPREAD, total, array("q", spread(total, self._sizes))

    def _take_usage(self, chunk: Chunk) -> None:
        usage = chunk.usage
        if usage is None:
            return
        if usage.completion_tokens is not None:
            self._last_total = self._final_total = usage.completion_tokens
        if usage.prompt_tokens is not None:
            self.num_prompt_tokens = usage.prompt_tokens
        if usage.prompt_tokens_details is not None and usage.prompt_tokens_details.cached_tokens is not None:
            self.num_cached_tokens = usage.prompt_tokens_details.cached_tokens


def spread(total: int, sizes: list[int]) -> list[int]:
    """Spread tokens over chunks in proportion to their sizes, at least one each if there are enough."""
    least = 1 if total >= len(sizes) else 0
    rest, whole = total - least * len(sizes), sum(sizes)
    counts: list[int] = []
    passed, given = 0, 0
    for index, size in enumerate(sizes, start=1):
        passed += size
        upto = round(rest * passed / whole) if whole else rest * index // len(sizes)
        counts.append(least + upto - given)
        given = upto
    return counts


@dataclass(slots=True, kw_only=True)
class CallRecord:
    """One request from the moment it was due until its end. ``error`` is a kind, and absent if all went well."""

    number: int
    stream: int
    tier: int
    tenant: str
    due_ns: int
    ready_ns: int = 0
    """When it could be sent: as due, or as soon as ``--max-concurrency`` let it."""
    sent_ns: int = 0
    end_ns: int = 0
    error: str | None = None
    message: str = ""
    turn: int = 0
    """Place in its conversation, from 0."""
    num_wanted_tokens: int | None = None
    tally: AnswerTally = field(default_factory=AnswerTally)

    def fail(self, kind: str, message: str = "") -> None:
        """Note why it did not end well; the first reason stands."""
        if self.error is None:
            self.error, self.message = kind, message

    @property
    def is_ok(self) -> bool:
        """Whether it was answered in full."""
        return self.error is None

    @property
    def ttft_ns(self) -> int:
        """From sending to the first chunk with tokens."""
        return self.tally.times_ns[0] - self.sent_ns

    @property
    def tpot_ns(self) -> float | None:
        """Time per output token after the first: (last - first) / (tokens - 1); absent if there is one token."""
        times = self.tally.times_ns
        return (times[-1] - times[0]) / (self.tally.num_tokens - 1) if self.tally.num_tokens > 1 else None

    @property
    def e2e_ns(self) -> int:
        """From sending to the chunk that ends the answer."""
        last_ns = self.tally.times_ns[-1]
        return (last_ns if self.tally.end_ns is None else max(last_ns, self.tally.end_ns)) - self.sent_ns

    def gaps_ns(self) -> tuple[list[float], list[int]]:
        """Gaps between tokens, and how often each occurs: one less than there are tokens, last minus first together.

        A chunk of k tokens makes k gaps, each a k-th of the time since the chunk before it. Tokens that come with the
        first one have waited for nothing.
        """
        gaps: list[float] = []
        counts: list[int] = []
        times, tokens = self.tally.times_ns, self.tally.counts
        if tokens and tokens[0] > 1:
            gaps.append(0.0)
            counts.append(tokens[0] - 1)
        carried_ns = 0
        for (before, after), count in zip(pairwise(times), tokens[1:], strict=True):
            carried_ns += after - before
            if count:
                gaps.append(carried_ns / count)
                counts.append(count)
                carried_ns = 0
        return gaps, counts

    def pauses_ns(self) -> list[int]:
        """Times between chunks, whatever they carry: what somebody who reads along sees."""
        return [after - before for before, after in pairwise(self.tally.times_ns)]
