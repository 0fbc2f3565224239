"""Does the scheduler's state contradict itself?

Knows nothing of how it got there. Tests ask after every step, the engine when it goes idle.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from chairlift.core.request import Phase, Request
from chairlift.core.scheduler import Scheduler
from chairlift.core.state import SchedulerState
from chairlift.errors import InvariantError


def check(scheduler: Scheduler) -> list[str]:
    """Return every contradiction found, in words; nothing if all is well. Costs time linear in pages and requests."""
    state = scheduler.state
    return [
        *_check_pages(state),
        *_check_runs(state),
        *_check_host_pages(state),
        *_check_tree(state),
        *_check_requests(scheduler),
        *_check_waiting(state),
        *_check_batch(scheduler),
    ]


def require(scheduler: Scheduler) -> None:
    """Check, and refuse to go on.

    Raises:
        InvariantError: with the violations and the requests' states.
    """
    violations = check(scheduler)
    if violations:
        state = scheduler.state
        requests = [*state.requests.values(), *state.departing.values()]
        raise InvariantError("\n".join([*violations, "state:", *map(repr, requests)]))


def _holders(state: SchedulerState) -> Iterator[Request]:
    yield from state.running.values()
    yield from state.departing.values()
    yield from state.kept.holders.values()


def _check_pages(state: SchedulerState) -> Iterator[str]:
    pool = state.memory.pool
    held = Counter(page for request in _holders(state) for page in request.pages)
    free = Counter(pool.free_pages)
    for page in range(pool.num_pages):
        if pool.references(page) != held[page]:
            yield f"page {page} has {pool.references(page)} references and {held[page]} holders"
        is_idle = held[page] == 0 and not pool.is_cached(page)
        if free[page] != int(is_idle):
            cached = pool.is_cached(page)
            yield f"page {page} is in the free list {free[page]} times; held {held[page]}, cached {cached}"
    if pool.num_leased != len(held):
        yield f"{pool.num_leased} pages count as leased and {len(held)} are held"
    if pool.num_free + pool.num_cached + pool.num_leased != pool.num_pages:
        yield f"free {pool.num_free} + cached {pool.num_cached} + leased {pool.num_leased} != {pool.num_pages} pages"
    for request in _holders(state):
        if len(set(request.pages)) != len(request.pages):
            yield f"request {request.request_id} has a page twice: {request.pages}"


def _check_runs(state: SchedulerState) -> Iterator[str]:
    parent_of = {node.page: None if node.parent is None else node.parent.page for node in state.memory.tree.nodes}
    for run in state.memory.pool.runs:
        if any(parent_of.get(page) != before for before, page in pairwise(run.pages)):
            yield f"pages {run.pages} are counted together and do not follow one another in the prefix tree"
        if run.first not in parent_of or not run.is_bound:
            yield f"pages {run.pages} are counted together, and left the prefix tree"


def _check_host_pages(state: SchedulerState) -> Iterator[str]:
    pool = state.host.pool
    leases = [request.host_lease for request in state.requests.values() if request.host_lease is not None]
    leases.extend(lease for record in state.in_flight for lease in record.host_leases)
    held = Counter(page for lease in leases for page in lease.pages)
    free = Counter(pool.free_pages)
    for page in range(pool.num_pages):
        if not held[page] + free[page] == pool.references(page) + free[page] == 1:
            yield f"host page {page} has {held[page]} holders and is in the free list {free[page]} times"
    for record in state.in_flight:
        if record.host_leases and not record.num_swapped_pages:
            yield f"step {record.step} holds host pages and copies none"


def _check_tree(state: SchedulerState) -> Iterator[str]:
    pool = state.memory.pool
    nodes = list(state.memory.tree.nodes)
    children = Counter(id(node.parent) for node in nodes if node.parent is not None)
    known = {id(node) for node in nodes}
    if len({node.page for node in nodes}) != len(nodes):
        yield "two nodes of the prefix tree share a page"
    if len(nodes) != sum(pool.is_cached(page) for page in range(pool.num_pages)):
        yield "pages marked as cached are not those in the prefix tree"
    for node in nodes:
        if node.num_children != children[id(node)]:
            yield f"page {node.page} counts {node.num_children} children and has {children[id(node)]}"
        if node.parent is not None and id(node.parent) not in known:
            yield f"page {node.page} hangs below a page that left the tree"
        elif node.parent is not None and pool.references(node.page) > pool.references(node.parent.page):
            yield f"page {node.page} has more holders than its parent {node.parent.page}"


def _check_requests(scheduler: Scheduler) -> Iterator[str]:
    state = scheduler.state
    for request in state.requests.values():
        is_running, is_waiting = request.request_id in state.running, request.request_id in state.waiting
        if is_running == is_waiting or is_running != (request.phase is Phase.RUNNING):
            yield f"{request!r} is in the wrong place: running {is_running}, waiting {is_waiting}"
        total = request.num_tokens + request.num_pending_tokens
        if not 0 <= request.num_computed_tokens <= request.num_scheduled_tokens <= total:
            yield f"{request!r} has counters out of order, {request.num_pending_tokens} pending"
        if is_running and request.num_token_slots != len(request.pages) * state.memory.page_size:
            yield f"{request!r} thinks it has {request.num_token_slots} token slots"
        if is_running and request.num_scheduled_tokens > request.num_token_slots:
            yield f"{request!r} computes tokens that it has no page for"
        if is_waiting and request.num_in_flight:
            yield f"{request!r} waits and is in flight"
        if request.num_output_tokens > max(request.max_tokens, 0):
            yield f"{request!r} has more output than max_tokens {request.max_tokens}"
    for request in state.departing.values():
        if request.finish_reason is None or request.request_id in state.requests:
            yield f"{request!r} departs and is alive"


def _check_waiting(state: SchedulerState) -> Iterator[str]:
    for request in state.requests.values():
        is_holder = request.request_id in state.kept.holders
        if request.phase is not Phase.RUNNING:
            yield from _check_kept(state, request, is_holder=is_holder)
        elif request.host_lease is not None or request.num_swapped_tokens or is_holder:
            yield f"{request!r} runs and counts as one that waits with what it kept"
    for request in state.kept.holders.values():
        if request.request_id not in state.waiting:
            yield f"{request!r} counts as a holder and does not wait"


def _check_kept(state: SchedulerState, request: Request, *, is_holder: bool) -> Iterator[str]:
    num_kept, pages_for = len(request.pages), state.memory.pages_for
    if is_holder != (num_kept > 0) or (num_kept and request.phase is not Phase.PREEMPTED):
        yield f"{request!r} waits with {num_kept} pages and counts as a holder: {is_holder}"
    if num_kept != pages_for(request.num_computed_tokens) or request.num_computed_tokens < request.num_scheduled_tokens:
        yield f"{request!r} kept {num_kept} pages, too few or too many for what they should hold"
    num_host_pages = 0 if request.host_lease is None else len(request.host_lease.pages)
    if num_host_pages != pages_for(request.num_swapped_tokens) or (num_host_pages and num_kept):
        yield f"{request!r} has {num_host_pages} host pages for {request.num_swapped_tokens} tokens"
    if max(request.num_computed_tokens, request.num_swapped_tokens) >= request.num_tokens:
        yield f"{request!r} waits and has nothing left to compute"


def _check_batch(scheduler: Scheduler) -> Iterator[str]:
    state = scheduler.state
    # Slots taken away while running empty by themselves.
    if len(state.running) > scheduler.built_config.max_num_seqs:
        yield f"{len(state.running)} requests run in {scheduler.built_config.max_num_seqs} slots"
    if Counter(request.priority for request in state.running.values()) != Counter(state.running_tiers):
        yield f"running requests are not of the tiers {state.running_tiers}"
    if len(state.waiting) != sum(1 for _ in state.waiting):
        yield "the waiting queue miscounts"
    yield from _check_rows(state, {**state.running, **state.departing})


def _check_rows(state: SchedulerState, known: dict[int, Request]) -> Iterator[str]:
    for name, members in (("decoding", state.decoding), ("joining", state.joining)):
        for request_id in members:
            if request_id not in known:
                yield f"request {request_id} is {name} and neither runs nor departs"
    context = sum(request.num_scheduled_tokens for request in state.decoding.values())
    if context != state.num_decode_context_tokens:
        yield f"decodes read {context} tokens of context and {state.num_decode_context_tokens} are counted"
    in_flight = Counter(
        request.request_id
        for record in state.in_flight
        for request in [*record.decodes, *(request for request, _ in record.chunks)]
    )
    for request in known.values():
        if request.num_in_flight != in_flight[request.request_id]:
            steps = in_flight[request.request_id]
            yield f"{request!r} counts {request.num_in_flight} steps in flight, there are {steps}"
    for request in state.departing.values():
        has_row = request.request_id in state.decoding or request.request_id in state.joining
        if not (request.num_in_flight or has_row):
            yield f"{request!r} departs, nothing uses its pages, and they were not returned"
