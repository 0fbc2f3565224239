"""Requests that end with a vector when their prompt is computed, among those that generate."""

import json
from typing import Any

import pytest

from chairlift.config.resolved import CacheConfig, SchedulerConfig
from chairlift.core.decision_log import Entry
from chairlift.core.events import Preempted
from chairlift.core.explain import explain
from chairlift.core.logged_scheduler import LoggedScheduler
from chairlift.core.replay import replay
from chairlift.core.request import BlockedOn, FinishReason, Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.step_plan import StepPlan
from chairlift.core.stepper import Stepper
from chairlift.errors import InvalidRequestError, RequestTooLongError
from chairlift.execution.fake import FakeExecutor
from chairlift.execution.fake.embeddings import reference_embedding
from tests.harness import Rig, alone

POOLINGS = ("last", "mean")


def prompt_of(length: int, seed: int) -> list[int]:
    return [(seed * 31 + 17 * place) % 1000 for place in range(length)]


def plans(rig: Rig) -> list[StepPlan]:
    """Every plan from now on."""
    seen: list[StepPlan] = []
    submit = rig.executor.submit

    def keep(plan: StepPlan) -> Any:
        seen.append(plan)
        return submit(plan)

    rig.executor.submit = keep  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_vectors_do_not_depend_on_chunks_or_company_and_nothing_is_sampled(depth: int, batching: str) -> None:
    rig = Rig(depth=depth, batching=batching, num_pages=200)
    seen = plans(rig)
    asked = {}
    for seed, length in enumerate((1, 4, 15, 16, 17, 40, 63)):
        for pooling in POOLINGS:
            prompt = prompt_of(length, seed)
            asked[rig.add(prompt, pooling=pooling)] = (prompt, pooling)
        said = prompt_of(length, seed + 50)
        asked[rig.add(said, max_tokens=6)] = (said, None)
    rig.run()
    for request_id, (prompt, pooling) in asked.items():
        if pooling is None:
            assert rig.output[request_id] == alone(prompt, 6)
            continue
        assert rig.vectors[request_id] == reference_embedding(prompt, pooling)
        assert rig.output[request_id] == []
        assert rig.finished[request_id] is FinishReason.STOP
    pooled = {request_id for request_id, (_, pooling) in asked.items() if pooling is not None}
    assert not any(chunk.samples for plan in seen for chunk in plan.chunks if chunk.request_id in pooled)
    assert not pooled & {request_id for plan in seen for request_id in plan.decodes_joined}
    assert rig.scheduler.stats().generation_tokens_total == 6 * 7


def test_a_prompt_may_fill_the_model_length_and_no_more() -> None:
    rig = Rig(max_model_len=40)
    request_id = rig.add(40, pooling="last")
    rig.run()
    assert rig.vectors[request_id]
    with pytest.raises(RequestTooLongError, match=r"has 41 tokens, but a request may have 40"):
        rig.add(41, pooling="last")
    with pytest.raises(RequestTooLongError, match="at least 1 output token"):
        rig.add(40)


def test_only_a_vector_of_the_last_row_starts_from_cached_pages_and_both_leave_theirs() -> None:
    rig = Rig()
    prompt = prompt_of(33, 1)
    for pooling, num_hits in (("mean", 0), ("mean", 0), ("last", 32)):
        before = rig.scheduler.stats().prefix_hit_tokens_total
        request_id = rig.add(prompt, pooling=pooling)
        rig.run()
        assert rig.vectors[request_id] == reference_embedding(prompt, pooling)
        assert rig.scheduler.stats().prefix_hit_tokens_total - before == num_hits


@pytest.mark.parametrize("pooling", POOLINGS)
def test_nobody_waits_for_a_prefix_that_would_be_of_no_use(pooling: str) -> None:
    rig = Rig(max_num_batched_tokens=64, num_pages=200)
    prompt = prompt_of(200, 1)
    rig.add(prompt, pooling=pooling)
    rig.step()
    later = rig.add(prompt, pooling=pooling)
    rig.step()
    assert (rig.scheduler.requests[later].blocked_on is BlockedOn.PREFIX) == (pooling == "last")
    rig.run()
    assert rig.vectors[later] == reference_embedding(prompt, pooling)


@pytest.mark.parametrize("mode", ["recompute", "swap", "tail", "auto"])
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("depth", [1, 2])
def test_a_preemption_changes_no_vector(mode: str, pooling: str, depth: int) -> None:
    rig = Rig(
        num_pages=24, num_host_pages=30, depth=depth, admission="optimistic", preemption_mode=mode, max_num_seqs=4
    )
    prompts = [prompt_of(70, seed) for seed in range(4)]
    ids = [rig.add(prompt, pooling=pooling) for prompt in prompts]
    for _ in range(3):
        rig.step()
    # Somebody more urgent takes pages from whoever runs.
    urgent = rig.add(60, max_tokens=4, priority=-1)
    rig.run()
    victims = {event.request_id for event in rig.log.of(Preempted)}
    assert victims & set(ids)
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert rig.vectors[request_id] == reference_embedding(prompt, pooling)
    assert rig.finished[urgent] is FinishReason.LENGTH
    if pooling == "mean":
        assert {event.mode for event in rig.log.of(Preempted) if event.request_id in ids} == {"recompute"}


def test_lengths_of_answers_are_not_learnt_from_vectors() -> None:
    rig = Rig()
    for seed in range(20):
        rig.add(prompt_of(5, seed), pooling="last")
    rig.run()
    request = Request(99, [1], SamplingParams(max_tokens=50))
    rig.scheduler.add(request, 0)
    assert rig.scheduler.state.estimate.remaining_outputs(request) == 50
    rig.run()


def test_an_abort_and_a_deadline_end_it_like_any_other() -> None:
    rig = Rig()
    aborted, late = rig.add(100, pooling="mean"), rig.add(100, pooling="last", deadline_ns=2)
    rig.step()
    assert rig.scheduler.abort(aborted)
    rig.run()
    assert (aborted in rig.finished, rig.finished[late]) == (False, FinishReason.DEADLINE)
    assert rig.vectors == {}


def test_a_vector_that_could_not_be_computed_is_an_error_of_its_request_alone() -> None:
    rig = Rig()
    broken, fine = rig.add(20, pooling="last"), rig.add(20, pooling="last")
    wait = rig.executor.wait

    def lose(handle: Any) -> Any:
        result = wait(handle)
        result.embeddings.pop(broken, None)  # type: ignore[attr-defined]
        return result

    rig.executor.wait = lose  # type: ignore[method-assign]
    rig.run()
    assert (rig.finished[broken], rig.finished[fine]) == (FinishReason.ERROR, FinishReason.STOP)
    assert list(rig.vectors) == [fine]


def test_it_says_what_it_waits_for() -> None:
    rig = Rig()
    request_id = rig.add(40, pooling="last")
    rig.step()
    assert explain(rig.scheduler, request_id, 1).reason == "runs: 16 of 40 tokens are computed before its vector"  # type: ignore[union-attr]
    rig.run()


def test_a_log_with_vectors_replays_to_identical_plans() -> None:
    entries: list[Entry] = []
    scheduler = LoggedScheduler(
        SchedulerConfig(max_num_seqs=3, max_num_batched_tokens=16, max_model_len=64),
        CacheConfig(num_pages=24, page_size=4),
        write=lambda entry: entries.append(json.loads(json.dumps(entry))),
        secret=b"s",
    )
    stepper = Stepper(scheduler, FakeExecutor(24, 4, vocab_size=50, step_duration_ns=5))
    for request_id in range(9):
        pooling: Any = (None, "last", "mean")[request_id % 3]
        sampling = SamplingParams(max_tokens=None if pooling else 5, pooling=pooling)
        scheduler.add(Request(request_id, prompt_of(20, request_id // 3), sampling), request_id)
    step = 0
    while stepper.step(step) is not None:
        step += 1
    assert replay(entries).difference is None
    for entry in entries:
        entry.pop("pooling", None)
    assert replay(entries).difference is not None


@pytest.mark.parametrize("wrong", [{"n": 2}, {"logprobs": 0}, {"prompt_logprobs": 1}, {"pooling": "max"}], ids=str)
def test_what_has_no_meaning_beside_a_vector_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        SamplingParams(**{"pooling": "last", **wrong})
    assert refusal.value.param == next(iter(wrong))
