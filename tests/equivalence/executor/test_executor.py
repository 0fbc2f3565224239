"""The whole executor, from plan to tokens, against transformers and against itself in other company."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from chairlift.config.model_source import ModelSource
from chairlift.config.resolved import CacheConfig, SchedulerConfig
from chairlift.config.sections import CacheSettings, ModelSettings
from chairlift.core import invariants
from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.scheduler import Scheduler
from chairlift.core.step_plan import NOT_NUMBERS, Chunk, NewRequest, PageCopy, StepPlan
from chairlift.core.stepper import Stepper
from chairlift.execution.torch_backend import build
from chairlift.execution.torch_backend.build import BuiltExecutor, build_executor
from chairlift.execution.torch_backend.cpu_kernels import plain_kernels
from tests.equivalence.tiny_models import load_reference, random_tokens, reference_logits, save_tiny_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module", params=["llama", "mistral"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    window = {"sliding_window": 24} if request.param == "mistral" else {}
    return save_tiny_model(tmp_path_factory.mktemp(request.param), request.param, **window)


@pytest.fixture(scope="module")
def reference(source: ModelSource) -> PreTrainedModel:
    return load_reference(source)


def built(
    source: ModelSource, *, depth: int = 1, kv: str = "4MiB", page_size: int = 4, **model: object
) -> BuiltExecutor:
    return build_executor(
        source,
        ModelSettings(**{"dtype": "float32", "num_threads": 2, "max_model_len": 256, **model}),
        CacheSettings(kv_cache_memory=kv, page_size=page_size, swap_space="1MiB"),
        max_num_seqs=8,
        max_num_batched_tokens=64,
        pipeline_depth=depth,
    )


def generate(
    source: ModelSource,
    requests: dict[int, tuple[list[int], SamplingParams]],
    *,
    depth: int = 1,
    num_pages: int | None = None,
    num_host_pages: int = 0,
    prefix_caching: bool = False,
    **scheduler: object,
) -> dict[int, list[int]]:
    """Run requests through scheduler and executor, with the invariants checked after every step."""
    ready = built(source, depth=depth)
    settings: dict = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 256, **scheduler}
    engine = Scheduler(
        SchedulerConfig(**settings),
        CacheConfig(
            num_pages=num_pages or ready.num_pages,
            page_size=4,
            num_host_pages=num_host_pages,
            enable_prefix_caching=prefix_caching,
        ),
    )
    assert num_host_pages <= ready.num_host_pages
    for request_id, (prompt, sampling) in requests.items():
        engine.add(Request(request_id, prompt, sampling, seed=sampling.seed or 0), 0)
    stepper = Stepper(engine, ready.executor, depth)
    output: dict[int, list[int]] = {request_id: [] for request_id in requests}
    while (outcome := stepper.step(0)) is not None:
        assert invariants.check(engine) == []
        for update in outcome.updates:
            output[update.request_id].extend(update.token_ids)
    if num_pages:
        assert engine.stats().preemptions_total > 0
    if settings.get("preemption_mode") == "swap":
        assert engine.stats().swapped_in_pages_total > 0
    if num_host_pages > 100:
        assert engine.stats().recomputed_tokens_total == 0
    ready.executor.close()
    return output


def assert_greedy(model: PreTrainedModel, prompt: list[int], output: list[int]) -> None:
    """Each token must be transformers' best; only where its two best are close may the second stand."""
    logits = reference_logits(model, prompt + output)[len(prompt) - 1 : -1]
    best = logits.max(-1).values
    chosen = logits.gather(1, torch.tensor(output).unsqueeze(1)).squeeze(1)
    assert ((best - chosen) < 1e-3).all()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"depth": 2},
        {"max_num_batched_tokens": 12, "max_num_seqs": 8},
        {"num_pages": 30},
        {"num_pages": 30, "depth": 2},
        {"num_pages": 30, "preemption_mode": "swap", "num_host_pages": 200},
        {"num_pages": 30, "preemption_mode": "swap", "num_host_pages": 200, "depth": 2, "prefix_caching": True},
        {"num_pages": 30, "preemption_mode": "swap", "num_host_pages": 5},
        {"num_pages": 30, "preemption_mode": "tail"},
        {"num_pages": 30, "preemption_mode": "tail", "depth": 2, "preemption_policy": "cheapest"},
        {"num_pages": 30, "preemption_mode": "auto", "num_host_pages": 90, "preemption_policy": "cheapest"},
        {"prefix_caching": True},
        {"batching": "static"},
        {"enable_chunked_prefill": False},
    ],
    ids=str,
)
def test_greedy_output_is_that_of_transformers(
    source: ModelSource, reference: PreTrainedModel, options: dict[str, Any]
) -> None:
    shared = random_tokens(20, seed=99)
    prompts = {i: random_tokens(length, seed=i) for i, length in enumerate([1, 3, 4, 5, 17, 60])}
    prompts |= {10: [*shared, 5], 11: [*shared, 6], 12: shared}
    output = generate(source, {i: (prompt, GREEDY) for i, prompt in prompts.items()}, **options)
    for i, prompt in prompts.items():
        assert len(output[i]) == 12
        assert_greedy(reference, prompt, output[i])


def test_seeded_output_does_not_depend_on_company_pages_or_depth(source: ModelSource) -> None:
    seeded = SamplingParams(temperature=0.9, top_p=0.9, seed=5, max_tokens=16, ignore_eos=True, repetition_penalty=1.1)
    prompt = random_tokens(9)
    alone = generate(source, {0: (prompt, seeded)})[0]
    mates = {
        i: (
            random_tokens(5 * i, seed=i),
            SamplingParams(temperature=1.0 + i / 4, top_k=i, max_tokens=16, ignore_eos=True),
        )
        for i in range(1, 7)
    }
    assert len(set(alone)) > 3
    companies: list[dict[str, Any]] = [
        {},
        {"depth": 2},
        {"num_pages": 26},
        {"num_pages": 26, "preemption_mode": "swap", "num_host_pages": 200},
        {"num_pages": 26, "preemption_mode": "tail", "depth": 2},
        {"max_num_batched_tokens": 13},
    ]
    for options in companies:
        assert generate(source, {0: (prompt, seeded), **mates}, **options)[0] == alone


def test_reference_kernels_give_the_same_tokens(source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = {i: (random_tokens(7 * i + 1, seed=i), GREEDY) for i in range(4)}
    compiled = generate(source, requests)
    plain = plain_kernels(torch.float32, 1)
    monkeypatch.setattr(build, "make_cpu_kernels", lambda dtype, num_threads, head_size, **_: plain)
    assert generate(source, requests) == compiled


def test_copied_pages_are_copied_before_the_step_reads_them(source: ModelSource) -> None:
    ready = built(source)
    prompt = tuple(random_tokens(4))

    def step(
        number: int, request_id: int, start: int, pages: tuple[int, ...], copies: tuple[PageCopy, ...] = ()
    ) -> int:
        new = NewRequest(request_id, (*prompt, 8), 5, start, pages, GREEDY, 0)
        chunk = Chunk(request_id, start, 5 - start, samples=True)
        plan = StepPlan(number, 0, chunk.length, 0, new=(new,), chunks=(chunk,), copies=copies)
        (token,) = ready.executor.wait(ready.executor.submit(plan)).token_ids
        return token

    token = step(0, 1, 0, (3, 4))
    assert step(1, 2, 4, (7, 8), (PageCopy(3, 7),)) == token
    assert step(2, 3, 4, (9, 8)) != token  # page 9 was never written
    ready.executor.close()


def test_a_step_that_samples_nothing_changes_nothing_else(source: ModelSource) -> None:
    prompt = tuple(random_tokens(9))

    def first_token(*lengths: int) -> int:
        ready = built(source)
        new = (NewRequest(1, prompt, len(prompt), 0, (5, 2, 7), GREEDY, 0),)
        start = 0
        tokens: list[int] = []
        for number, length in enumerate(lengths):
            chunk = Chunk(1, start, length, samples=start + length == len(prompt))
            plan = StepPlan(number, 0, length, 0, new=() if number else new, chunks=(chunk,))
            tokens.extend(ready.executor.wait(ready.executor.submit(plan)).token_ids)
            start += length
        ready.executor.close()
        (token,) = tokens
        return token

    assert first_token(3, 5, 1) == first_token(4, 5) == first_token(9)


def test_a_request_whose_logits_are_not_finite_fails_alone(source: ModelSource) -> None:
    ready = built(source)
    executor = ready.executor
    for layer in executor._kv_cache.layers:
        layer[:, 0] = float("nan")
    prompt = tuple(random_tokens(5))
    # Request 1 claims that page 0 holds its first tokens; request 2 computes its own.
    poisoned = NewRequest(1, prompt, 5, 4, (0, 1), GREEDY, 0)
    healthy = NewRequest(2, prompt, 5, 0, (2, 3), GREEDY, 0)
    chunks = (Chunk(1, 4, 1, samples=True), Chunk(2, 0, 5, samples=True))
    result = executor.wait(executor.submit(StepPlan(0, 0, 6, 0, new=(poisoned, healthy), chunks=chunks)))
    assert (result.failed_rows, result.failures) == ((0,), {1: NOT_NUMBERS})
    alone = executor.wait(executor.submit(StepPlan(1, 1, 5, 0, new=(healthy,), chunks=(Chunk(2, 0, 5, samples=True),))))
    assert alone.failed_rows == ()
    assert alone.token_ids == result.token_ids[1:]
    executor.close()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_wrong_plan_is_raised_and_a_snapshot_puts_it_right(source: ModelSource, depth: int) -> None:
    executor = built(source, depth=depth).executor
    healthy = NewRequest(2, tuple(random_tokens(5)), 5, 0, (2, 3), GREEDY, 0)
    with pytest.raises(Exception, match="request 77"):
        executor.wait(executor.submit(StepPlan(0, 0, 1, 0, chunks=(Chunk(77, 0, 1, samples=True),))))
    plan = StepPlan(1, 1, 5, 0, new=(healthy,), chunks=(Chunk(2, 0, 5, samples=True),))
    assert len(executor.wait(executor.submit(plan)).token_ids) == 1
    executor.close()


def test_logits_in_several_parts_give_the_same_tokens(source: ModelSource) -> None:
    new = tuple(NewRequest(i, tuple(random_tokens(6, seed=i)), 6, 0, (2 * i, 2 * i + 1), GREEDY, i) for i in range(5))
    chunks = tuple(Chunk(i, 0, 6, samples=True) for i in range(5))
    executor = built(source).executor
    whole = executor.wait(executor.submit(StepPlan(0, 0, 30, 0, new=new, chunks=chunks)))
    executor._rows_at_once = 2
    parts = executor.wait(executor.submit(StepPlan(0, 1, 30, 0, new=new, chunks=chunks)))
    assert parts.token_ids == whole.token_ids
    assert len(set(whole.token_ids)) > 1
    executor.close()


def test_bfloat16_runs_close_to_float32(source: ModelSource, reference: PreTrainedModel) -> None:
    executor = built(source, dtype="bfloat16").executor
    prompt = random_tokens(40)
    new = NewRequest(1, tuple(prompt), 40, 0, tuple(range(10)), GREEDY, 0)
    result = executor.wait(executor.submit(StepPlan(0, 0, 40, 0, new=(new,), chunks=(Chunk(1, 0, 40, samples=True),))))
    logits = reference_logits(reference, prompt)[-1]
    assert logits.max() - logits[result.token_ids[0]] < 0.1 * (logits.max() - logits.min())
    executor.close()
