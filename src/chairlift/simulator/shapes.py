"""What each plan of a run holds, in the sums that its duration depends on.

Knows nothing of durations. A step costs what changed in its plan, not what runs: context of the standing decodes grows
by one each per step, so their sum is kept by what joins and leaves. A decode's own share is kept against the number of
steps so far, and needs no visit either::

    context of a decode now = _decodes[id] + _num_steps
"""

from chairlift.core.step_plan import StepPlan
from chairlift.simulator.latency.model import StepShape


class ShapeTracker:
    """Keeps as much of every plan as it takes to say what the next one holds."""

    def __init__(self) -> None:
        self._computed: dict[int, int] = {}
        self._decodes: dict[int, int] = {}
        self._num_context_tokens = 0
        self._num_steps = 0

    @property
    def num_decodes(self) -> int:
        """Requests in the standing decode set."""
        return len(self._decodes)

    @property
    def num_context_tokens(self) -> int:
        """Tokens of the standing decodes that were computed so far."""
        return self._num_context_tokens

    def take(self, plan: StepPlan) -> StepShape:
        """Bring the record up to this plan and behind it, and return what it holds. Plans must come in step order."""
        self._apply(plan)
        num_sampled = plan.num_decodes
        rows = pairs = context = 0
        for chunk in plan.chunks:
            length = chunk.length + chunk.padding
            rows += length
            pairs += length * chunk.start + length * (length + 1) // 2
            context += chunk.start + length
            num_sampled += chunk.samples
            self._computed[chunk.request_id] = chunk.start + chunk.length
        self._num_context_tokens += plan.num_decodes
        self._num_steps += 1
        return StepShape(
            plan.num_decodes,
            self._num_context_tokens,
            len(plan.chunks),
            rows,
            pairs,
            context,
            num_sampled,
            len(plan.swapped_out),
            len(plan.swapped_in),
        )

    def skip(self, num_steps: int) -> None:
        """So many steps of the standing decodes have run, without plans."""
        self._num_context_tokens += num_steps * len(self._decodes)
        self._num_steps += num_steps

    def num_computed_tokens(self, request_id: int) -> int:
        """Tokens of a known request that were computed so far."""
        since = self._decodes.get(request_id)
        return self._computed.get(request_id, 0) if since is None else since + self._num_steps

    def _apply(self, plan: StepPlan) -> None:
        for request_id in plan.ended:
            self._leave(request_id)
            self._computed.pop(request_id, None)
        for request_id in plan.decodes_left:
            self._leave(request_id)
        for new in plan.new:
            self._computed[new.request_id] = new.num_computed_tokens
        for request_id in plan.decodes_joined:
            computed = self._computed[request_id]
            self._decodes[request_id] = computed - self._num_steps
            self._num_context_tokens += computed

    def _leave(self, request_id: int) -> None:
        since = self._decodes.pop(request_id, None)
        if since is not None:
            computed = since + self._num_steps
            self._num_context_tokens -= computed
            self._computed[request_id] = computed
