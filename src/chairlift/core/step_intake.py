"""Takes in what a step computed: scheduled tokens are computed now, sampled tokens are known, requests end.

Knows nothing of how the step was decided.
"""

from collections.abc import Callable
from typing import cast

from chairlift.core.events import TokensEmitted
from chairlift.core.outcome import CommittedStep, RequestUpdate
from chairlift.core.request import FinishReason, Request
from chairlift.core.state import SchedulerState
from chairlift.core.step_draft import InFlightStep
from chairlift.core.step_plan import StepResult

KeepsRow = Callable[[Request], bool]
"""Whether the row of a running request goes on executing after it finishes."""

# What the class itself does in the end, at half the price.
_MAKE_UPDATE = cast(
    "Callable[[type[RequestUpdate], tuple[object, ...]], RequestUpdate]",
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType]
)


def take_in(
    state: SchedulerState, keeps_row: KeepsRow, record: InFlightStep, sampled: list[Request], result: StepResult
) -> CommittedStep:
    """Change the state by a step's result, and say what it brought.

    Args:
        state: what to change; the step is not among those in flight any more.
        keeps_row: the batching mode's word on requests that end.
        record: what was planned.
        sampled: the requests of its chunks that sample, in plan order.
        result: one token for each decode and each of ``sampled``.
    """
    num_wasted = _settle_rows(state, record, sampled)
    if record.num_swapped_pages:
        state.costs.observe_copies(record.num_swapped_pages, result.swap_duration_ns)
        state.host.release(record.host_leases)
    rows = record.decodes + sampled
    take = _take_tokens_and_failures if result.failed_rows else _take_tokens
    updates = take(state, keeps_row, rows, result)
    if result.logprobs or result.prompt_logprobs:
        updates = _with_logprobs(state, rows, updates, result)
    for request in record.filled:
        if request.finish_reason is None:
            state.memory.publish(request)
    for request, _ in record.chunks:
        if request.finish_reason is None:
            state.memory.publish(request)
            if request.is_pooled and request.num_computed_tokens == request.num_prompt_tokens:
                updates.append(_end_pooled(state, keeps_row, request, result))
    budget = record.budget
    return CommittedStep(
        updates,
        budget.num_prefill_tokens,
        budget.num_decode_tokens,
        budget.num_padding_tokens,
        num_wasted,
        len(record.decodes) + len(record.chunks) - num_wasted,
    )


def _settle_rows(state: SchedulerState, record: InFlightStep, sampled: list[Request]) -> int:
    """Turn scheduled into computed; return how many rows worked for requests that have ended meanwhile."""
    wasted: list[Request] = []
    for request in record.decodes:
        request.num_in_flight -= 1
        request.num_pending_tokens -= 1
        request.num_computed_tokens += 1
        if request.finish_reason is not None:
            wasted.append(request)
    for request, chunk in record.chunks:
        request.num_in_flight -= 1
        request.num_computed_tokens = chunk.start + chunk.length
        if request.finish_reason is not None:
            wasted.append(request)
    for request in sampled:
        request.num_pending_tokens -= 1
    for request in wasted:
        state.release_if_idle(request)
    return len(wasted)


def _take_tokens(
    state: SchedulerState, keeps_row: KeepsRow, rows: list[Request], result: StepResult
) -> list[RequestUpdate]:
    """Append each row's token to its request, and end those whose last token it was.

    This is the one loop that costs time for every token, so it does nothing that most tokens do not need.
    """
    updates: list[RequestUpdate] = []
    append, make = updates.append, _MAKE_UPDATE
    for request, token_id in zip(rows, result.token_ids, strict=True):
        if request.finish_reason is not None:
            continue
        tokens = request.token_ids
        tokens.append(token_id)
        if token_id in request.stop_token_ids or len(tokens) > request.max_computed_tokens:
            append(_end_with(state, keeps_row, request, token_id))
        else:
            append(
                make(
                    RequestUpdate,
                    (request.request_id, (token_id,), None, None, request.num_cached_tokens, None, None, None),
                )
            )
    _note_tokens(state, result.step, updates)
    return updates


def _take_tokens_and_failures(
    state: SchedulerState, keeps_row: KeepsRow, rows: list[Request], result: StepResult
) -> list[RequestUpdate]:
    """The same for a step with rows that failed."""
    updates: list[RequestUpdate] = []
    for row, (request, token_id) in enumerate(zip(rows, result.token_ids, strict=True)):
        if request.finish_reason is not None:
            continue
        if row in result.failed_rows:
            # The model could not compute this row; nobody else is hurt.
            state.finish(request, FinishReason.ERROR, keeps_row=keeps_row(request))
            cached = request.num_cached_tokens or 0
            updates.append(RequestUpdate(request.request_id, (), FinishReason.ERROR, None, cached, None))
            continue
        request.token_ids.append(token_id)
        updates.append(_end_with(state, keeps_row, request, token_id))
    _note_tokens(state, result.step, [update for update in updates if update.token_ids])
    return updates


def _with_logprobs(
    state: SchedulerState, rows: list[Request], updates: list[RequestUpdate], result: StepResult
) -> list[RequestUpdate]:
    """Add log-probabilities to the updates of their requests; a prompt's may come in a step without a token."""
    of_tokens = {rows[row].request_id: found for row, found in result.logprobs.items()}
    of_prompts = dict(result.prompt_logprobs)
    for index, update in enumerate(updates):
        of_token = of_tokens.get(update.request_id) if update.token_ids else None
        of_prompt = of_prompts.pop(update.request_id, None)
        if of_token is not None or of_prompt is not None:
            updates[index] = update._replace(logprobs=of_token, prompt_logprobs=of_prompt)
    for request_id, found in of_prompts.items():
        if (request := state.requests.get(request_id)) is not None:
            cached = request.num_cached_tokens or 0
            updates.append(RequestUpdate(request_id, (), None, None, cached, None, found))
    return updates


def _note_tokens(state: SchedulerState, step: int, updates: list[RequestUpdate]) -> None:
    state.num_generated_tokens += len(updates)
    if state.has_listener and updates:
        request_ids = tuple([update.request_id for update in updates])
        state.emit(TokensEmitted(step, request_ids, tuple([update.token_ids[0] for update in updates])))


def _end_pooled(state: SchedulerState, keeps_row: KeepsRow, request: Request, result: StepResult) -> RequestUpdate:
    """End a request whose prompt is computed with the vector that it was for, or with an error if there is none."""
    embedding = result.embeddings.get(request.request_id)
    reason = FinishReason.STOP if embedding is not None else FinishReason.ERROR
    state.finish(request, reason, keeps_row=keeps_row(request))
    cached = request.num_cached_tokens or 0
    return RequestUpdate(request.request_id, (), reason, None, cached, None, embedding=embedding)


def _end_with(state: SchedulerState, keeps_row: KeepsRow, request: Request, token_id: int) -> RequestUpdate:
    """Report a request's newest token, and end the request if it is the last one."""
    num_output = request.num_output_tokens
    reason = None
    if token_id in request.stop_token_ids and num_output >= request.sampling.min_tokens:
        reason = FinishReason.STOP
        request.stop_token = token_id
    elif num_output >= request.max_tokens:
        reason = FinishReason.LENGTH
    if reason is not None:
        state.memory.publish(request)
        state.costs.observe_end(num_output)
        state.finish(request, reason, keeps_row=keeps_row(request))
    cached = request.num_cached_tokens or 0
    return RequestUpdate(request.request_id, (token_id,), reason, request.stop_token, cached, None)
