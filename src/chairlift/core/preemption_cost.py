"""What it costs to take a running request's pages away, in each of the ways there are.

Knows nothing of queues or requests: it is told counts, step sizes and durations, and equal calls give equal answers.

Costs are time of the machine, in nanoseconds:

- *recompute*: the tokens that are computed again, at the prefill rate that the latency model has learnt;
- *swap*: the pages that are copied out and, later, back in; tokens that found no host page are computed again;
- *tail*: the tokens of the dropped pages only, and the part of the pool that lies idle while the rest is kept for a
  request that waits, if others could use it.
"""

from typing import NamedTuple

from chairlift.core.events import PreemptionMode
from chairlift.core.step_latency import StepLatencyModel

_SEED_NS_PER_TOKEN = 40_000.0
"""Prefill of one token before any step told better: an 8B model on a large GPU."""
_SEED_HOST_BYTES_PER_S = 16e9
"""Copies between device and host before any copy told better: half of a PCIe 4.0 x16 link."""
_SEED_COPY_PART = 0.125
"""One way of a copy as a part of computing the same tokens, where not even the size of a page is known."""
_SEED_OUTPUT_TOKENS = 128.0
_RATE = 0.1
"""Weight of the newest observation."""


class Loss(NamedTuple):
    """What a preemption takes from one request, counted for each way of doing it."""

    num_recomputed_tokens: int
    """Computed again if all its pages go, less what is shared or will probably be found in the prefix tree."""
    num_computed_tokens: int
    num_pages: int
    """Pages that hold these."""
    num_tail_tokens: int
    """Computed again if only as many of its last pages go as are needed now."""
    num_kept_pages: int
    """Pages that only it holds and keeps then."""


class Situation(NamedTuple):
    """What a preempted request will come back to."""

    num_pool_pages: int
    num_free_host_pages: int
    num_running: int
    num_context_tokens: int
    """Context that the running decodes read in a step."""
    num_waiting_before: int
    """Requests that will be admitted before it comes back."""
    is_pool_wanted: bool
    """Whether somebody could use pages that it keeps."""


class PreemptionCosts:
    """Prices preemptions by rates that are fitted while running.

    Args:
        latency: what steps take.
        page_size: tokens of a page.
        page_bytes: KV bytes of a page, if known; for the first guess of the time of a copy.
        host_bytes_per_s: speed of the link to host memory, if known; for the same.
    """

    def __init__(
        self,
        latency: StepLatencyModel,
        page_size: int,
        page_bytes: int | None = None,
        host_bytes_per_s: float | None = None,
    ) -> None:
        self._latency = latency
        self._page_size = page_size
        speed = host_bytes_per_s or _SEED_HOST_BYTES_PER_S
        self._copy_ns_per_page: float | None = None if page_bytes is None else page_bytes / speed * 1e9
        self._num_copies_seen = 0
        self._output_tokens = _SEED_OUTPUT_TOKENS

    @property
    def ns_per_token(self) -> float:
        """What computing one more prompt token takes, before any context is read."""
        per_token = self._latency.coefficients_ns[1]
        return per_token if per_token > 0 else _SEED_NS_PER_TOKEN

    @property
    def copy_ns_per_page(self) -> float:
        """What copying a page takes, one way."""
        if self._copy_ns_per_page is None:
            return self._page_size * self.ns_per_token * _SEED_COPY_PART
        return self._copy_ns_per_page

    def observe_copies(self, num_pages: int, duration_ns: int) -> None:
        """Take in how long a step's copies took, both ways together."""
        if num_pages <= 0 or duration_ns <= 0:
            return
        seen = duration_ns / num_pages
        self._num_copies_seen += 1
        rate = max(_RATE, 1.0 / self._num_copies_seen)
        known = self._copy_ns_per_page
        self._copy_ns_per_page = seen if known is None else known + rate * (seen - known)

    def observe_end(self, num_output_tokens: int) -> None:
        """Take in how long the output of a request was that ended by itself."""
        self._output_tokens += _RATE * (num_output_tokens - self._output_tokens)

    def recompute_ns(self, num_tokens: int, num_before: int = 0) -> float:
        """Return the time to compute so many tokens again, the first of which has ``num_before`` before it."""
        context = num_tokens * num_before + num_tokens * (num_tokens + 1) / 2
        return num_tokens * self.ns_per_token + context * self._latency.coefficients_ns[2]

    def copy_ns(self, num_pages: int) -> float:
        """Return the time to copy so many pages, one way."""
        return num_pages * self.copy_ns_per_page

    def price(self, mode: PreemptionMode, loss: Loss, situation: Situation) -> float:
        """Return what it costs to preempt a request in this way."""
        computed = loss.num_computed_tokens
        if mode == "recompute":
            return self.recompute_ns(loss.num_recomputed_tokens, computed - loss.num_recomputed_tokens)
        if mode == "tail":
            kept_part = loss.num_kept_pages / situation.num_pool_pages if situation.is_pool_wanted else 0.0
            again_ns = self.recompute_ns(loss.num_tail_tokens, computed - loss.num_tail_tokens)
            return again_ns + kept_part * self._wait_ns(situation)
        num_pages = min(loss.num_pages, situation.num_free_host_pages)
        num_lost_tokens = max(0, computed - num_pages * self._page_size)
        return 2 * self.copy_ns(num_pages) + self.recompute_ns(num_lost_tokens, computed - num_lost_tokens)

    def choose(self, loss: Loss, situation: Situation) -> tuple[PreemptionMode, float]:
        """Return the cheapest way and its cost, and recomputing unless another way saves more than one page of tokens.

        A request's last tokens, which fill no page, are always computed again. It is not for their sake that thousands
        of pages stay with a request that waits, and out of reach of the prefix cache.
        """
        best: PreemptionMode = "recompute"
        best_ns = self.price(best, loss, situation)
        margin_ns = self.recompute_ns(self._page_size, loss.num_computed_tokens)
        other_modes: tuple[PreemptionMode, ...] = ("tail", "swap") if situation.num_free_host_pages else ("tail",)
        for mode in other_modes:
            cost_ns = self.price(mode, loss, situation)
            if cost_ns < best_ns - (margin_ns if best == "recompute" else 0.0):
                best, best_ns = mode, cost_ns
        return best, best_ns

    def _wait_ns(self, situation: Situation) -> float:
        """Estimate how long a preempted request waits: until as many of the running end as come before it."""
        step_ns = self._latency.predict_ns(max(1, situation.num_running), situation.num_context_tokens)
        steps_to_next_end = self._output_tokens / max(1, situation.num_running)
        return step_ns * steps_to_next_end * (1 + situation.num_waiting_before)
