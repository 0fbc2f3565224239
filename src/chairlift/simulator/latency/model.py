"""What a latency model is asked, and what it says about the machine behind it.

Knows nothing of where its numbers come from.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class StepShape(NamedTuple):
    """What a step holds, in the sums that its duration depends on.

    A chunk of length ``L`` that starts at ``x``, padding included, adds ``L`` rows, ``L * x + L * (L + 1) / 2`` pairs
    of a row and a token that it looks back at, and ``x + L`` tokens of context whose KV is read.
    """

    num_decodes: int = 0
    num_decode_context_tokens: int = 0
    """KV tokens that decodes read, each its own token included."""
    num_chunks: int = 0
    num_chunk_rows: int = 0
    num_chunk_pairs: int = 0
    num_chunk_context_tokens: int = 0
    num_sampled: int = 0
    num_pages_out: int = 0
    """Pages that move to the host tier before the rows are computed."""
    num_pages_in: int = 0

    @property
    def num_rows(self) -> int:
        """Rows of the forward pass."""
        return self.num_decodes + self.num_chunk_rows


class StepTime(NamedTuple):
    """How long a step takes, and how much of that (or beside it) pages are copied between device and host."""

    duration_ns: int
    copy_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """What a scheduler on this machine would be set up with; ``None`` where there is no limit or nothing is known."""

    name: str
    max_model_len: int
    num_kv_tokens: int | None = None
    """Tokens whose KV fits beside the weights."""
    kv_bytes_per_token: int | None = None
    host_bytes_per_s: float | None = None
    """Speed of copies of KV between device and host, one way."""
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    step_overhead_ns: int = 0
    """Between the end of a step and the start of the next one: scheduling, and messages to clients."""
    row_overhead_ns: int = 0
    """The part of it that grows with each row that yields a token."""
    request_overhead_ns: int = 0
    """Between a client's sending a request and the scheduler's getting it."""


class LatencyModel(Protocol):
    """Says how long steps take."""

    @property
    def facts(self) -> MachineFacts:
        """The machine and its limits."""
        ...

    def time(self, shape: StepShape, page_size: int) -> StepTime:
        """Return how long a step takes; ``page_size`` is that of the pages it copies. The same answer every time."""
        ...


class ConstantLatency:
    """Every step takes the same time: counts steps instead of measuring them."""

    def __init__(self, step_ns: int = 1_000_000, *, max_model_len: int = 1 << 20) -> None:
        self.facts = MachineFacts(name="constant", max_model_len=max_model_len)
        self._time = StepTime(step_ns)

    def time(self, shape: StepShape, page_size: int) -> StepTime:
        """Return the step's time, whatever it holds."""
        del shape, page_size
        return self._time
