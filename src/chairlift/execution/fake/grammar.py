"""Lets the toy model follow a grammar.

Knows nothing of pages or plans.
"""

from collections.abc import Iterable, Sequence

from chairlift.core.step_plan import NewRequest
from chairlift.structured.masks import GrammarMasks, GrammarState, allowed_tokens


class GrammarFollower:
    """Remembers where each running request is in its grammar."""

    def __init__(self, masks: GrammarMasks) -> None:
        self._masks = masks
        self._states: dict[int, tuple[NewRequest, GrammarState]] = {}

    def find_allowed(self, request: NewRequest, output: Sequence[int]) -> list[int] | None:
        """Tokens that may follow the output; ``None`` if the request has no grammar, none at all if it failed."""
        grammar = request.sampling.grammar
        if grammar is None:
            return None
        known, state = self._states.get(request.request_id, (None, None))
        if state is None or known is not request:
            state = GrammarState(grammar)
            self._states[request.request_id] = (request, state)
        bits = self._masks.masks([(state, output[state.num_read :])])[0]
        return allowed_tokens(bits)

    def failures(self) -> dict[int, str]:
        """Requests whose grammars have failed, and why."""
        return {
            request_id: state.failure for request_id, (_, state) in self._states.items() if state.failure is not None
        }

    def forget(self, request_ids: Iterable[int]) -> None:
        """These requests ended; unknown ids are fine."""
        for request_id in request_ids:
            self._states.pop(request_id, None)
