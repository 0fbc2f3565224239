"""The standing batch against ``PlanState``, which says what a plan means, on plans of the real scheduler."""

import random

import numpy as np
import pytest
import torch

from chairlift.config.resolved import CacheConfig, SchedulerConfig
from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.scheduler import Scheduler
from chairlift.core.step_plan import Chunk, NewRequest, PageGrowth, PlanState, StepPlan, StepResult
from chairlift.core.stepper import Stepper
from chairlift.errors import InvariantError
from chairlift.execution.torch_backend.batch import StandingBatch

PAGE_SIZE = 4


class ComparingExecutor:
    """Applies each plan to both records, and demands the same rows of both."""

    def __init__(self, max_num_seqs: int, max_model_len: int, seed: int) -> None:
        self.batch = StandingBatch(max_num_seqs, max_model_len, PAGE_SIZE, torch.device("cpu"))
        self.state = PlanState()
        self.random = random.Random(seed)
        self.max_position = max_model_len - 1
        self.num_rows = 0

    def submit(self, plan: StepPlan) -> StepPlan:
        return plan

    def wait(self, handle: StepPlan) -> StepResult:
        plan = handle
        self.batch.apply(plan)
        self.state.apply(plan)
        forward, read = self.batch.rows(plan)
        rows = read.sampling
        self.compare(plan, forward)
        sampling = self.state.sampling_rows(plan)
        assert [self.batch.table.row(request_id) for request_id in sampling] == rows.table_rows.tolist()
        tokens = [self.random.randrange(100) for _ in sampling]
        self.state.advance(plan, tokens)
        assert [len(self.state.requests[r].token_ids) - 1 for r in sampling] == rows.positions.tolist()
        self.batch.advance(plan, rows, np.array(tokens, np.int64))
        return StepResult(plan.step, tuple(tokens), 1)

    def compare(self, plan: StepPlan, forward) -> None:
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        samples: list[int] = []

        def add(request_id: int, position: int, token: int) -> None:
            tokens.append(token)
            positions.append(min(position, self.max_position))
            page = self.state.requests[request_id].pages[position // PAGE_SIZE]
            slots.append(page * PAGE_SIZE + position % PAGE_SIZE)

        for row, request_id in enumerate(self.state.decodes):
            request = self.state.requests[request_id]
            add(request_id, request.num_computed_tokens, request.token_ids[request.num_computed_tokens])
            samples.append(row)
            context = request.num_computed_tokens + 1
            assert forward.decode_context_lengths[row] == context
            num_pages = -(-context // PAGE_SIZE)
            assert forward.decode_page_tables[row, :num_pages].tolist() == request.pages[:num_pages]
        for chunk, prefill in zip(plan.chunks, forward.prefills, strict=True):
            request = self.state.requests[chunk.request_id]
            assert prefill.row_start == len(tokens)
            assert prefill.length == chunk.length + chunk.padding
            assert prefill.context_length == chunk.start + prefill.length
            assert prefill.pages.tolist() == request.pages[: -(-prefill.context_length // PAGE_SIZE)]
            for position in range(chunk.start, prefill.context_length):
                real = position < chunk.start + chunk.length
                if position == chunk.start + chunk.length - 1 and chunk.samples:
                    samples.append(len(tokens))
                add(chunk.request_id, position, request.token_ids[position] if real else 0)
        assert forward.num_decodes == len(self.state.decodes)
        assert forward.token_ids.tolist() == tokens
        assert forward.positions.tolist() == positions
        assert forward.kv_slots.tolist() == slots
        assert forward.sample_rows.tolist() == samples
        assert len(tokens) == plan.num_tokens
        self.num_rows += len(tokens)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("batching", ["continuous", "static"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rows_are_those_that_the_plan_means(batching: str, depth: int, seed: int) -> None:
    generator = random.Random(seed)
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=24, max_model_len=64, batching=batching),
        CacheConfig(num_pages=60 if batching == "static" else 24, page_size=PAGE_SIZE),
    )
    executor = ComparingExecutor(2, 64, seed)
    stepper = Stepper(scheduler, executor, depth)
    for request_id in range(12):
        prompt = [generator.randrange(100) for _ in range(generator.randrange(1, 40))]
        sampling = SamplingParams(max_tokens=generator.randrange(1, 20))
        scheduler.add(Request(request_id, prompt, sampling, stop_token_ids=frozenset({3, 4, 5})), 0)
    num_steps = 0
    while stepper.step(num_steps) is not None:
        num_steps += 1
        if num_steps == 10:
            scheduler.abort(5)
    assert num_steps > 15
    assert not scheduler.has_unfinished


def plan(step: int, **parts) -> StepPlan:
    defaults = {"epoch": 0, "num_tokens": 1, "num_decodes": 0}
    return StepPlan(step, **{**defaults, **parts})


def new_request(request_id: int, num_tokens: int, pages: tuple[int, ...]) -> NewRequest:
    return NewRequest(request_id, tuple(range(num_tokens)), num_tokens, 0, pages, SamplingParams(), 0)


def test_a_snapshot_replaces_everything() -> None:
    batch = StandingBatch(2, 16, PAGE_SIZE, torch.device("cpu"))
    batch.apply(plan(0, new=(new_request(1, 3, (0,)),)))
    batch.apply(plan(1, decodes_joined=(1,), num_decodes=1))
    batch.apply(plan(2, epoch=1, new=(new_request(2, 3, (1,)),)))
    assert 1 not in batch.table
    assert 2 in batch.table
    assert len(batch.table) == 1


def test_more_requests_and_longer_ones_than_expected_find_room() -> None:
    batch = StandingBatch(1, 4, PAGE_SIZE, torch.device("cpu"))
    batch.apply(plan(0, new=tuple(new_request(i, 5 * i + 1, tuple(range(10 * i, 10 * i + i + 2))) for i in range(5))))
    batch.apply(plan(1, grown=(PageGrowth(4, (90, 91)),), chunks=(Chunk(4, 0, 21, samples=True),)))
    rows, _ = batch.rows(plan(1, chunks=(Chunk(4, 0, 21, samples=True),)))
    assert rows.token_ids.tolist() == list(range(21))
    assert rows.prefills[0].pages.tolist() == [40, 41, 42, 43, 44, 45]


def test_a_row_without_a_page_is_refused_before_it_can_write_into_somebody_elses() -> None:
    batch = StandingBatch(1, 64, PAGE_SIZE, torch.device("cpu"))
    step = plan(0, new=(new_request(1, 5, (0,)),), chunks=(Chunk(1, 0, 5, samples=True),))
    batch.apply(step)
    with pytest.raises(InvariantError, match="no page"):
        batch.rows(step)


def test_a_plan_that_names_an_unknown_request_is_refused() -> None:
    batch = StandingBatch(1, 64, PAGE_SIZE, torch.device("cpu"))
    with pytest.raises(InvariantError, match="request 9"):
        batch.apply(plan(0, decodes_joined=(9,), num_decodes=1))
    with pytest.raises(InvariantError, match="1 decodes, but 0"):
        batch.apply(plan(0, epoch=3, num_decodes=1))
