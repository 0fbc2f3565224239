"""Runs a stretch of steps at once in which nothing is decided: only the standing decodes go on, one token each.

Knows nothing of executors; the simulator uses it. What is left behind is what the steps would have left one by one:
pages with the same numbers, the same prefix tree, the same estimates. Only events are not emitted.

Within a stretch of ``k`` steps from ``s = num_scheduled_tokens`` on, a request with ``slots`` token slots::

    grows      in the plan of step i    if s + i     == slots, and then every page_size steps
    publishes  in the commit of step i  if s + i + 1 is a multiple of page_size

Growths and publications of all requests are done in the order of steps, in a step growths first, and each in row order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.core.batching.continuous import ContinuousBatching
from chairlift.core.request import Request
from chairlift.core.scheduler import Scheduler
from chairlift.core.state import SchedulerState
from chairlift.core.step_plan import PageGrowth

_Turn = tuple[int, int, int]
"""When something happens to a request's pages: step of the stretch, 0 for a growth and 1 for a publication, row."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps that were jumped; each had all of ``num_decodes`` decodes and nothing else, and ``grown`` by its step."""

    first_step: int
    num_steps: int
    num_decodes: int
    grown: tuple[tuple[int, PageGrowth], ...]


def count_standing_steps(scheduler: Scheduler) -> int:
    """Return how many of the next steps have nothing to decide; 0 if the next one has.

    Nobody may arrive, be aborted or expire within them; that is for the caller to see to.
    """
    state = scheduler.state
    requests = state.decoding.values()
    is_standing = bool(requests) and len(requests) == len(state.running) and scheduler.batching is ContinuousBatching
    if not is_standing or state.waiting or state.in_flight or state.joining or state.ended or state.left:
        return 0
    # The step that ends somebody, and those with an end token to look out for, are run as usual.
    # So are steps in which a tenant may reach its quota of pages.
    if state.config.has_quotas or any(request.stop_token_ids for request in requests):
        return 0
    limit = min(request.max_computed_tokens - request.num_scheduled_tokens for request in requests) - 1
    if limit <= 0:
        return 0
    return _until_pages_fail(state, limit)


def _until_pages_fail(state: SchedulerState, limit: int) -> int:
    """Return the steps until a growth finds no page, or the limit."""
    page_size, num_available = state.memory.page_size, state.memory.num_available
    rows = [(request.num_token_slots - request.num_scheduled_tokens) for request in state.decoding.values()]
    needed = sum(-(-(limit - first) // page_size) for first in rows if first < limit)
    if needed <= num_available:
        return limit
    growths = sorted(step for first in rows for step in range(first, limit, page_size))
    return growths[num_available]


def fast_forward(scheduler: Scheduler, starts_ns: Sequence[int], durations_ns: Sequence[int]) -> Stretch:
    """Run as many steps as durations are given, at most as many as :func:`count_standing_steps` said.

    Every sampled token is 0.

    Args:
        scheduler: nothing of it is in flight.
        starts_ns: when each step would be planned.
        durations_ns: how long each would take.
    """
    state = scheduler.state
    requests = list(state.decoding.values())
    num_steps, num_decodes = len(durations_ns), len(requests)
    tokens = [0] * num_steps
    for request in requests:
        request.token_ids.extend(tokens)
    grown = _turn_pages(state, requests, num_steps)
    for request in requests:
        request.num_computed_tokens += num_steps
        request.num_scheduled_tokens += num_steps
        request.next_turn_tokens = 0
    state.due = requests
    state.num_generated_tokens += num_steps * num_decodes
    first_step = scheduler.jump_steps(starts_ns, durations_ns)
    return Stretch(first_step, num_steps, num_decodes, grown)


def _turn_pages(state: SchedulerState, requests: list[Request], num_steps: int) -> tuple[tuple[int, PageGrowth], ...]:
    """Grow and publish pages; see the module."""
    memory, page_size = state.memory, state.memory.page_size
    turns: list[_Turn] = []
    for row, request in enumerate(requests):
        start = request.num_scheduled_tokens
        turns.extend((step, 0, row) for step in range(request.num_token_slots - start, num_steps, page_size))
        turns.extend((step, 1, row) for step in range(-(start + 1) % page_size, num_steps, page_size))
    turns.sort()
    starts = [request.num_computed_tokens for request in requests]
    grown: list[tuple[int, PageGrowth]] = []
    for step, kind, row in turns:
        request = requests[row]
        if kind == 0:
            grown.append((step, PageGrowth(request.request_id, tuple(memory.grow(request, 1)))))
            request.num_token_slots += page_size
        else:
            request.num_computed_tokens = starts[row] + step + 1
            memory.publish(request)
    for request, start in zip(requests, starts, strict=True):
        request.num_computed_tokens = start
    return tuple(grown)
