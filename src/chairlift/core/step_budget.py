"""How many tokens the next step may have, so that those who decode in it do not wait too long for their next one.

Knows nothing of requests: it is told how many decode and how much context they read.
"""

from collections import deque

from chairlift.core.step_latency import StepLatencyModel

_NS_PER_MS = 1_000_000
_MOST_MARGIN = 0.1
_LEAST_TOKENS = 4
"""Fewer prompt tokens are not worth a place beside the decodes."""
_PROGRESS_EVERY = 4
"""If not even so few fit, prompts still get a page in every so many steps."""
_MOST_GROWTH = 1.25
_NUM_RECENT = 16
_GAP_RATE = 0.1
_MOST_GAP = 0.25


class StepBudget:
    """Lowers a step's token budget until the step should last no longer than the target.

    - A step in which nobody decodes has no gap to keep short: it may use the whole budget.
    - Prompts always advance. They get what fits beside the decodes, however little of a page that is; if next to
      nothing does, because the decodes alone already take about as long as the target or longer, they get one page in
      every fourth step. Three of four steps are then as short as the decodes allow, and no budget can make them
      shorter: fewer slots (``--max-num-seqs``) can.
    - Until the latency model knows anything, prompts get one page beside decodes. After that a step has at most a
      quarter more tokens than the largest of the last steps with both, and so takes at most about a quarter longer.
      Where the time of a step has a knee, the model may be wrong about what lies beyond it.
    - After a step that took longer than the target, prompts get at most as much less than in it as it took too long:
      what slows one step down (a neighbour on the machine, a wrong model) often slows the next one, too, and the model
      follows only over some steps.

    The target is lowered by the model's usual error (at most a tenth) and by the time that passes between steps.

    Args:
        latency: what steps take.
        page_size: tokens of a page.
    """

    def __init__(self, latency: StepLatencyModel, page_size: int) -> None:
        self._latency = latency
        self._page_size = page_size
        self._num_denied = 0
        self._planned_ns: int | None = None
        self._duration_ns: int | None = None
        self._gap_ns = 0.0
        self._recent_tokens: deque[int] = deque(maxlen=_NUM_RECENT)
        self._last_mixed = (0, 0)
        """Duration and prompt tokens of the last step that had prompts and decodes."""

    @property
    def gap_ns(self) -> float:
        """Time that usually passes between the end of a step and the next plan."""
        return self._gap_ns

    def limit_tokens(
        self, cap_tokens: int, target_ms: float, num_decodes: int, num_context_tokens: int, prompt_start: int = 0
    ) -> int:
        """Return the budget of a step in which so many decode and prompts wait for the rest; at most ``cap_tokens``.

        Args:
            cap_tokens: what the settings allow.
            target_ms: how long the step should last at most.
            num_decodes: how many decode in it.
            num_context_tokens: context that these read.
            prompt_start: where the prompts go on that may get the rest; the furthest of them.
        """
        if num_decodes == 0:
            return cap_tokens
        page_tokens = min(num_decodes + self._page_size, cap_tokens)
        if not self._latency.is_ready:
            return page_tokens
        target_ns = target_ms * _NS_PER_MS * (1.0 - min(self._latency.relative_error, _MOST_MARGIN)) - self._gap_ns
        fitting_tokens = self._latency.tokens_within(
            target_ns, num_context_tokens, num_decodes=num_decodes, prompt_start=prompt_start
        )
        if self._recent_tokens:
            fitting_tokens = min(fitting_tokens, int(max(self._recent_tokens) * _MOST_GROWTH))
        duration_ns, num_prefill_tokens = self._last_mixed
        if duration_ns > target_ms * _NS_PER_MS:
            less_tokens = max(int(num_prefill_tokens * target_ms * _NS_PER_MS / duration_ns), _LEAST_TOKENS)
            fitting_tokens = min(fitting_tokens, num_decodes + less_tokens)
        if fitting_tokens >= min(num_decodes + _LEAST_TOKENS, cap_tokens):
            self._num_denied = 0
            return min(fitting_tokens, cap_tokens)
        self._num_denied += 1
        if self._num_denied % _PROGRESS_EVERY == 0:
            return page_tokens
        return num_decodes

    def planned(self, now_ns: int) -> None:
        """A step was planned."""
        if self._planned_ns is not None and self._duration_ns is not None:
            gap_ns = now_ns - self._planned_ns - self._duration_ns
            # A pause for want of work is no gap, and one stall must not count for ever.
            gap_ns = min(max(gap_ns, 0), self._duration_ns * _MOST_GAP)
            self._gap_ns += _GAP_RATE * (gap_ns - self._gap_ns)
        self._planned_ns = now_ns
        self._duration_ns = None

    def committed(self, duration_ns: int, num_tokens: int, num_prefill_tokens: int) -> None:
        """A step of so many tokens took so long."""
        self._duration_ns = duration_ns
        if 0 < num_prefill_tokens < num_tokens:
            self._recent_tokens.append(num_tokens)
            self._last_mixed = duration_ns, num_prefill_tokens

    def paused(self) -> None:
        """There was nothing to plan: the time until the next step says nothing."""
        self._planned_ns = None
