"""Static batching, kept to measure what continuous batching gains: a group is frozen until its longest member ends.

Knows nothing of refilling. It does what the word usually means, on the same kernels: prompts are padded to the longest
of the group, each member reserves the group's maximum length of KV, decoding starts when every prompt is computed, and
finished members go on executing until the last one ends, their output thrown away.

Rows of a member, as half-open intervals of positions; padding stands on the right, where causal attention never looks
from the tokens before it, and decodes overwrite it::

    [0, prompt)  real    [prompt, longest prompt)  padding, then decodes    [.., reserved)  decodes
"""

from collections import Counter
from typing import ClassVar

from chairlift.core.kv_memory import NOTHING
from chairlift.core.request import BlockedOn, Phase, Request
from chairlift.core.state import SchedulerState
from chairlift.core.step_draft import StepDraft

_MAX_PASSED = 64
"""Requests beyond their tenant's quota that are looked past to fill a group: bounds the cost of a step."""


class StaticBatching:
    """Frozen groups."""

    shares_prefixes: ClassVar[bool] = False

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._members: list[Request] = []
        self._longest_prompt_tokens = 0
        self._reserved_tokens = 0

    def compose(self, draft: StepDraft) -> bool:
        """Form a group if none is left, compute its prompts, and once they all are, decode."""
        state = self._state
        if not any(member.phase is Phase.RUNNING for member in self._members):
            if self._members and state.in_flight:
                return False
            self._dissolve()
            self._form_group(draft)
        self._compute_prompts(draft)
        if draft.chunks:
            return True
        if all(self._needs_nothing(member) for member in self._members):
            return not state.in_flight
        for member in list(state.joining.values()):
            state.join_decodes(member, draft)
        for member in list(state.decoding.values()):
            if member.num_scheduled_tokens >= self._reserved_tokens:
                self._stop_row(member)
        draft.budget.num_decode_tokens = len(state.decoding)
        return True

    def end(self, request: Request) -> None:
        """The row goes on if it has begun; a member whose prompt was not computed yet just leaves."""
        if not self.keeps_row(request):
            self._state.dismiss(request)

    def keeps_row(self, request: Request) -> bool:
        """A member that has begun keeps its row until the group ends."""
        return request.request_id in self._state.decoding or request.request_id in self._state.joining

    def _dissolve(self) -> None:
        """The group has ended: every row that went on stops, and its pages return."""
        for member in self._members:
            if member.request_id in self._state.departing:
                self._state.dismiss(member)
        self._members = []

    def _form_group(self, draft: StepDraft) -> None:
        """Take waiting requests in order while all members' reservations fit in the pool and in tenants' quotas.

        Who does not fit into its tenant's quota is passed by other tenants' requests.
        """
        state, memory = self._state, self._state.memory
        prompt_tokens = output_tokens = reserved = 0
        num_passed = 0
        with state.waiting.walk() as walk:
            while len(self._members) < state.config.max_num_seqs and (request := walk.next()) is not None:
                prompt = max(prompt_tokens, request.num_prompt_tokens)
                output = max(output_tokens, request.max_tokens, 1)
                tokens = min(prompt + output - 1, state.config.max_model_len)
                num_pages = memory.pages_for(tokens)
                if self._members and (len(self._members) + 1) * num_pages > memory.num_available:
                    request.blocked_on = BlockedOn.GROUP
                    break
                if state.has_quotas and (tenants := self._find_beyond_quota(request, num_pages)):
                    num_passed += 1
                    if num_passed > _MAX_PASSED:
                        break
                    if request.tenant in tenants:
                        request.blocked_on = BlockedOn.QUOTA
                        walk.hold_back()
                    continue
                prompt_tokens, output_tokens, reserved = prompt, output, tokens
                self._members.append(request)
        self._longest_prompt_tokens, self._reserved_tokens = prompt_tokens, reserved
        for member in self._members:
            state.admit(member, NOTHING, reserved, draft)

    def _find_beyond_quota(self, request: Request, num_pages: int) -> list[str]:
        """Return whose members would hold too much if the request joined and each had so many pages. One may always."""
        counts = Counter(member.tenant for member in [*self._members, request])
        quotas = {tenant: self._state.config.tenant(tenant).max_kv_pages for tenant in counts}
        return [
            tenant
            for tenant, quota in quotas.items()
            if quota is not None and counts[tenant] > 1 and counts[tenant] * num_pages > quota
        ]

    def _compute_prompts(self, draft: StepDraft) -> None:
        """Compute padded prompts, as many whole ones as the budget takes, and at least one."""
        width = self._longest_prompt_tokens
        for member in self._members:
            if member.phase is not Phase.RUNNING or member.num_scheduled_tokens:
                continue
            if draft.chunks and draft.budget.num_left < width:
                break
            prompt = member.num_prompt_tokens
            self._state.schedule_chunk(member, prompt, draft, padding=width - prompt)

    def _needs_nothing(self, member: Request) -> bool:
        """Whether the member ended, or its last token is on its way."""
        return member.phase is not Phase.RUNNING or member.num_scheduled_tokens >= member.max_computed_tokens

    def _stop_row(self, member: Request) -> None:
        """The row has filled what was reserved for it."""
        if member.phase is Phase.RUNNING:
            self._state.leave_decodes(member)
        else:
            self._state.dismiss(member)
