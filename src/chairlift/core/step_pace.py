"""What is learnt from the steps that run, and what follows from it: the next one's budget, and how long newcomers wait.

Knows nothing of plans; it is told when one was made, and what became of it.
"""

from chairlift.core.state import SchedulerState
from chairlift.core.step_budget import StepBudget
from chairlift.core.step_draft import InFlightStep, StepDraft
from chairlift.core.step_plan import StepResult
from chairlift.core.wait_prediction import WaitPredictor


class StepPace:
    """Measures a scheduler's steps as they are planned and committed."""

    def __init__(self, state: SchedulerState) -> None:
        self.waits = WaitPredictor(state.latency)
        self._state = state
        self._budget = StepBudget(state.latency, state.memory.page_size)
        self._ended_ns = 0

    def limit_tokens(self) -> int:
        """The budget of the next step: what the settings allow, or less to keep it within ``--target-tpot-ms``."""
        state, config = self._state, self._state.config
        cap_tokens = config.max_num_batched_tokens
        num_decodes = len(state.decoding) + len(state.joining)
        if config.target_tpot_ms is None or (not state.waiting and len(state.running) <= num_decodes):
            return cap_tokens
        num_context_tokens = state.num_decode_context_tokens + num_decodes
        num_context_tokens += sum(request.num_scheduled_tokens for request in state.joining.values())
        return self._budget.limit_tokens(
            cap_tokens, config.target_tpot_ms, num_decodes, num_context_tokens, self._furthest_prompt()
        )

    def paused(self) -> None:
        """There was nothing to plan."""
        self._budget.paused()

    def planned(self, draft: StepDraft) -> None:
        """A step was planned: note how much context it reads."""
        num_context_tokens = self._state.num_decode_context_tokens
        for _, chunk in draft.chunks:
            length = chunk.length + chunk.padding
            num_context_tokens += length * chunk.start + length * (length + 1) // 2
        draft.budget.num_context_tokens = num_context_tokens
        draft.budget.planned_ns = draft.now_ns
        self._budget.planned(draft.now_ns)

    def committed(self, record: InFlightStep, result: StepResult) -> None:
        """A step was committed. One that waited for swapped pages says nothing about those that do not."""
        state, budget = self._state, record.budget
        if not result.swap_duration_ns:
            state.latency.observe(budget.num_tokens, budget.num_context_tokens, result.duration_ns)
        self._budget.committed(result.duration_ns, budget.num_tokens, budget.num_prefill_tokens)
        # Nobody says what time it is now; a step starts when it was planned, or when the one before it ended.
        self._ended_ns = max(self._ended_ns, budget.planned_ns) + result.duration_ns
        for request, _ in record.chunks:
            if request.expected_wait is not None and request.num_output_tokens == 1:
                self.waits.first_token(request, self._ended_ns)
        self.waits.step_ended(state, budget, result.duration_ns)

    def _furthest_prompt(self) -> int:
        """Return where the furthest of the prompts goes on that may get a part of the next step."""
        state = self._state
        furthest = max((request.num_scheduled_tokens for request in state.prefilling.values()), default=0)
        for request in state.waiting.first(1) if len(state.running) < state.config.max_num_seqs else ():
            num_cached_tokens = len(state.memory.peek_prefix(request)) * state.memory.page_size
            furthest = max(furthest, request.num_computed_tokens, request.num_swapped_tokens, num_cached_tokens)
        return furthest
