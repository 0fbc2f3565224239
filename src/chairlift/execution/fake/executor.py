"""Runs plans on the toy model, reading every context through the page tables.

Knows nothing of the scheduler. A page that was given away too early, grown twice or shared wrongly shows as a wrong
token, because what a step writes and reads are plain lists of page slots.
"""

import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from chairlift.core.step_plan import Chunk, PageCopy, PlanState, PromptLogprobs, StepPlan, StepResult, TokenLogprobs
from chairlift.errors import ChairliftError
from chairlift.execution.fake.embeddings import RunningSums, hash_vector, pack
from chairlift.execution.fake.grammar import GrammarFollower
from chairlift.execution.fake.model import FittingToken, NextToken, allowed_token, fitting_token, next_token
from chairlift.execution.fake.ratings import choose, rate

_UNWRITTEN = -1
_NS_PER_S = 1e9


class _Handle(NamedTuple):
    plan: StepPlan


class _Outcome(NamedTuple):
    tokens: list[int | None]
    """One for each sampling row; ``None`` where the request permits no token."""
    logprobs: dict[int, TokenLogprobs]
    prompt_logprobs: dict[int, PromptLogprobs]
    embeddings: dict[int, bytes]


class FakeExecutor:
    """Implements :class:`~chairlift.core.ports.Executor`.

    Steps run when they are waited for, in order, so that at depth 2 the next plan is really made before the last
    result exists.

    Args:
        num_pages, page_size: the pool, as the scheduler knows it.
        num_host_pages: the host tier, for the KV of preempted requests.
        vocab_size: tokens are below this.
        step_duration_ns: reported as each step's duration; the real one is measured if absent.
        copy_duration_ns: reported for each page that is copied between device and host; measured if absent.
        model: the next token of a context; the hash of :func:`next_token` if not given.
        grammars: follows the grammars of requests; without it they are not followed.
        fitting: chooses among the tokens that a grammar allows.
        pace_s: how long a step takes at least, to play a slower machine.
    """

    def __init__(  # noqa: PLR0913 - tests turn many knobs, one at a time
        self,
        num_pages: int,
        page_size: int,
        *,
        num_host_pages: int = 0,
        vocab_size: int = 1000,
        step_duration_ns: int | None = None,
        copy_duration_ns: int | None = None,
        model: NextToken = next_token,
        grammars: GrammarFollower | None = None,
        fitting: FittingToken = fitting_token,
        pace_s: float = 0.0,
    ) -> None:
        self.vocab_size = vocab_size
        self._page_size = page_size
        self._slots = [_UNWRITTEN] * (num_pages * page_size)
        self._host_slots = [_UNWRITTEN] * (num_host_pages * page_size)
        self._state = PlanState()
        self._sums = RunningSums()
        self._submitted: deque[_Handle] = deque()
        self._step_duration_ns = step_duration_ns
        self._copy_duration_ns = copy_duration_ns
        self._model = model
        self._grammars = grammars
        self._fitting = fitting
        self._pace_s = pace_s
        self.num_steps = 0

    def submit(self, plan: StepPlan) -> _Handle:
        """Queue the step."""
        handle = _Handle(plan)
        self._submitted.append(handle)
        return handle

    def wait(self, handle: _Handle) -> StepResult:
        """Run the step.

        Raises:
            ChairliftError: steps are waited for out of order, or a context was read that nobody wrote.
        """
        if not self._submitted or self._submitted.popleft() is not handle:
            raise ChairliftError(f"step {handle.plan.step} was not the oldest one submitted")
        plan = handle.plan
        start_ns = time.perf_counter_ns()
        self._copy(plan.swapped_out, self._slots, self._host_slots)
        self._copy(plan.swapped_in, self._host_slots, self._slots)
        swap_duration_ns = self._swap_duration_ns(plan, start_ns)
        outcome = self._run(plan)
        if self._pace_s:
            time.sleep(max(0.0, self._pace_s - (time.perf_counter_ns() - start_ns) / _NS_PER_S))
        duration_ns = self._step_duration_ns
        if duration_ns is None:
            duration_ns = time.perf_counter_ns() - start_ns
        return StepResult(
            plan.step,
            tuple(token_id or 0 for token_id in outcome.tokens),
            duration_ns,
            logprobs=outcome.logprobs,
            swap_duration_ns=swap_duration_ns,
            failed_rows=tuple(row for row, token_id in enumerate(outcome.tokens) if token_id is None),
            failures={} if self._grammars is None or None not in outcome.tokens else self._grammars.failures(),
            prompt_logprobs=outcome.prompt_logprobs,
            embeddings=outcome.embeddings,
        )

    def close(self) -> None:
        """Forget everything."""
        self._submitted.clear()

    def _run(self, plan: StepPlan) -> _Outcome:
        self.num_steps += 1
        state = self._state
        state.apply(plan)
        self._sums.apply(plan)
        if self._grammars is not None:
            self._grammars.forget(plan.ended)
        self._copy(plan.copies, self._slots, self._slots)
        rows = len(state.decodes) + sum(chunk.length + chunk.padding for chunk in plan.chunks)
        if rows != plan.num_tokens or len(state.decodes) != plan.num_decodes:
            raise ChairliftError(f"step {plan.step} announces {plan.num_tokens} rows and has {rows}")
        # Everything is written before anything is read, as in a real layer: attention of one row sees others' writes.
        for request_id in state.decodes:
            self._write(request_id, state.requests[request_id].num_computed_tokens, 1)
        for chunk in plan.chunks:
            self._write(chunk.request_id, chunk.start, chunk.length, chunk.padding)
        sampling = [(request_id, state.requests[request_id].num_computed_tokens + 1) for request_id in state.decodes]
        sampling.extend((chunk.request_id, chunk.start + chunk.length) for chunk in plan.chunks if chunk.samples)
        outcome = _Outcome([self._sample(request_id, length) for request_id, length in sampling], {}, {}, {})
        for row, (request_id, length) in enumerate(sampling):
            num_top = state.requests[request_id].request.sampling.logprobs
            if num_top is not None:
                outcome.logprobs[row] = self._rate(request_id, length, outcome.tokens[row] or 0, num_top)
        for chunk in plan.chunks:
            self._rate_prompt(chunk, outcome.prompt_logprobs)
            self._pool(chunk, outcome.embeddings)
        state.advance(plan, [token_id or 0 for token_id in outcome.tokens])
        return outcome

    def _rate(self, request_id: int, context_length: int, token_id: int, num_top: int) -> TokenLogprobs:
        likeliest = self._model(self._context(request_id, context_length), self.vocab_size, 0)
        return rate(token_id, likeliest, self.vocab_size, num_top)

    def _rate_prompt(self, chunk: Chunk, found: dict[int, PromptLogprobs]) -> None:
        running = self._state.requests[chunk.request_id]
        num_top = running.request.sampling.prompt_logprobs
        end = min(chunk.start + chunk.length, running.request.num_prompt_tokens - 1)
        if num_top is None or end <= chunk.start:
            return
        rated = [
            self._rate(chunk.request_id, length, running.token_ids[length], num_top)
            for length in range(chunk.start + 1, end + 1)
        ]
        found[chunk.request_id] = PromptLogprobs(chunk.start + 1, tuple(rated))

    def _pool(self, chunk: Chunk, found: dict[int, bytes]) -> None:
        request = self._state.requests[chunk.request_id].request
        pooling = request.sampling.pooling
        if pooling is None:
            return
        end = chunk.start + chunk.length
        context = self._context(chunk.request_id, end)
        if pooling == "mean":
            for position in range(chunk.start, end):
                self._sums.add(chunk.request_id, position, context[position])
        if end == request.num_prompt_tokens:
            found[chunk.request_id] = pack(
                hash_vector(context) if pooling == "last" else self._sums.mean(chunk.request_id)
            )

    def _copy(self, copies: Sequence[PageCopy], source_slots: list[int], target_slots: list[int]) -> None:
        size = self._page_size
        for copy in copies:
            source, target = copy.source * size, copy.target * size
            page = source_slots[source : source + size]
            if len(page) != size or target + size > len(target_slots):
                raise ChairliftError(f"there is no page {copy.source} or no page {copy.target} to copy to")
            target_slots[target : target + size] = page

    def _swap_duration_ns(self, plan: StepPlan, start_ns: int) -> int:
        num_copies = len(plan.swapped_out) + len(plan.swapped_in)
        if num_copies == 0:
            return 0
        if self._copy_duration_ns is not None:
            return num_copies * self._copy_duration_ns
        return time.perf_counter_ns() - start_ns

    def _slot(self, request_id: int, position: int) -> int:
        page, offset = divmod(position, self._page_size)
        return self._state.requests[request_id].pages[page] * self._page_size + offset

    def _write(self, request_id: int, start: int, length: int, padding: int = 0) -> None:
        token_ids = self._state.requests[request_id].token_ids
        for position in range(start, start + length):
            self._slots[self._slot(request_id, position)] = token_ids[position]
        for position in range(start + length, start + length + padding):
            self._slots[self._slot(request_id, position)] = 0

    def _context(self, request_id: int, length: int) -> list[int]:
        context = [self._slots[self._slot(request_id, position)] for position in range(length)]
        if _UNWRITTEN in context:
            raise ChairliftError(f"request {request_id} read a slot that nobody wrote")
        return context

    def _sample(self, request_id: int, context_length: int) -> int | None:
        running = self._state.requests[request_id]
        context = self._context(request_id, context_length)
        request = running.request
        seed = 0 if request.sampling.is_greedy else request.seed
        if self._grammars is not None:
            output = running.token_ids[request.num_prompt_tokens : context_length]
            allowed = self._grammars.find_allowed(request, output)
            if allowed is not None:
                return self._fitting(context, allowed, seed) if allowed else None
        is_early = context_length - request.num_prompt_tokens < request.sampling.min_tokens
        forbidden = request.stop_token_ids if is_early else frozenset[int]()
        if request.sampling.has_edits:
            said = self._model(context, self.vocab_size, seed)
            output = context[request.num_prompt_tokens :]
            return choose(said, self.vocab_size, forbidden, request.sampling, output)
        return allowed_token(context, self.vocab_size, seed, forbidden, self._model)
