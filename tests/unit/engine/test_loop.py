"""The engine's loop and runner, driven by hand: verdicts, one message per step, reports when idle, executor failure."""

import logging
from collections import deque

import pytest

from chairlift.config.load import load_settings
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.build import BuiltEngine, build_engine
from chairlift.engine.loop import EngineLoop
from chairlift.engine.messages import (
    AbortRequests,
    AddRequest,
    CacheReset,
    Choice,
    FinishRequest,
    Inbound,
    Outbound,
    ResetPrefixCache,
    Shutdown,
    StepDone,
    Verdicts,
    encode,
)

_ids = iter(range(10**6))


class Script:
    """Plays the API process: each turn is what lies in the inbox before a step; at the end comes a shutdown."""

    def __init__(self, built: BuiltEngine, *turns: list[Inbound]) -> None:
        self.inbox: deque[bytes | None] = deque()
        for turn in turns:
            self.inbox.extend([*map(encode, turn), None])
        self.inbox.append(encode(Shutdown()))
        self.sent: list[Outbound] = []
        self.waits_ms: list[int | None] = []
        EngineLoop(built.runner, self.receive, self.sent.append, lambda: 0).run()

    def receive(self, timeout_ms: int | None) -> bytes | None:
        self.waits_ms.append(timeout_ms)
        return self.inbox.popleft()


def build(**settings: object) -> BuiltEngine:
    return build_engine(load_settings({"executor": "fake", **settings}, env={}), None)


def add(num_choices: int = 1, prompt: int = 5, **sampling: object) -> AddRequest:
    return AddRequest(
        choices=tuple(Choice(next(_ids), seed) for seed in range(num_choices)),
        prompt_token_ids=(1,) * prompt,
        sampling=SamplingParams(**{"max_tokens": 3, **sampling}),  # type: ignore[arg-type]
        stop_token_ids=frozenset(),
    )


def steps(script: Script) -> list[StepDone]:
    return [message for message in script.sent if isinstance(message, StepDone)]


def test_all_requests_of_a_drain_get_their_verdicts_in_one_message_before_the_step() -> None:
    requests = [add(), add(num_choices=2), add(prompt=10**4)]
    script = Script(build(), list(requests), [], [], [])
    first = script.sent[0]
    assert isinstance(first, Verdicts)
    assert [(verdict.request_id, verdict.error) for verdict in first.verdicts] == [
        (requests[0].request_id, None),
        (requests[1].request_id, None),
        (requests[2].request_id, "RequestTooLongError"),
    ]


def test_each_step_is_one_message_and_idling_reports_once() -> None:
    request = add()
    script = Script(build(), [request], [], [], [])
    kinds = [type(message).__name__ for message in script.sent]
    assert kinds == ["Verdicts", "StepDone", "StepDone", "StepDone", "StepDone"]
    done = steps(script)
    assert [len(message.updates) for message in done] == [1, 1, 1, 0]
    assert [message.stats.num_steps for message in done] == [1, 1, 1, 0]
    assert done[2].updates[0].finish_reason == "length"
    assert done[0].stats.queue_times_ns == (0,)
    assert done[-1].stats.scheduler.num_running == 0
    # It waits for ever while nothing runs, and not at all while something does.
    assert script.waits_ms == [None, 0, 0, 0, 0, None]


def test_a_static_group_returns_its_pages_before_the_engine_sleeps() -> None:
    script = Script(
        build(batching="static", max_num_seqs=2), [add(max_tokens=2), add(max_tokens=4)], *[[] for _ in range(5)]
    )
    assert steps(script)[-1].stats.scheduler.num_leased_pages == 0
    assert script.waits_ms[-1] is None


def test_aborting_everything_reports_empty_gauges_without_a_step() -> None:
    requests = [add(max_tokens=100) for _ in range(20)]
    ids = tuple(request.request_id for request in requests)
    script = Script(build(), list(requests), [AbortRequests(ids)])
    last = steps(script)[-1].stats.scheduler
    assert (last.num_running, last.num_waiting, last.num_leased_pages) == (0, 0, 0)


@pytest.mark.parametrize("depth", [1, 2])
def test_shutdown_with_a_step_in_flight_leaves_a_consistent_state(depth: int) -> None:
    built = build(pipeline_depth=depth)
    Script(built, [add(max_tokens=100)], [], [])
    built.executor.close()
    assert built.runner.find_violations() == []


def test_finish_keeps_the_engine_from_going_on() -> None:
    request = add(max_tokens=100)
    script = Script(build(), [request], [], [FinishRequest(request.request_id, 1)])
    assert len([message for message in steps(script) if message.updates]) == 2
    assert steps(script)[-1].stats.scheduler.num_running == 0


def test_queue_cap_accepts_exactly_what_fits() -> None:
    built = build(max_num_seqs=1, max_num_queued_reqs=2)
    script = Script(built, [add() for _ in range(6)])
    verdicts = script.sent[0]
    assert isinstance(verdicts, Verdicts)
    assert [verdict.error for verdict in verdicts.verdicts] == [None] * 3 + ["OverloadedError"] * 3


def test_choices_are_taken_in_together_or_not_at_all() -> None:
    built = build()
    first = add()
    clash = AddRequest(
        choices=(Choice(next(_ids), 0), first.choices[0]),
        prompt_token_ids=(1,),
        sampling=SamplingParams(),
        stop_token_ids=frozenset(),
    )
    assert built.runner.add(first, 0).error is None
    assert built.runner.add(clash, 0).error == "InvalidRequestError"
    assert built.runner.stats().scheduler.num_waiting == 1


def test_cache_is_reset_only_when_idle() -> None:
    script = Script(build(), [add(), ResetPrefixCache()], [], [], [ResetPrefixCache()])
    assert [message.done for message in script.sent if isinstance(message, CacheReset)] == [False, True]


def test_unreadable_message_is_dropped_and_the_rest_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    built = build()
    inbox = deque([b"nonsense", encode(add(max_tokens=1)), None, encode(Shutdown())])
    sent: list[Outbound] = []
    with caplog.at_level(logging.ERROR):
        EngineLoop(built.runner, lambda _: inbox.popleft(), sent.append, lambda: 0).run()
    assert "not understood" in caplog.text
    assert isinstance(sent[1], StepDone)


def test_violations_found_when_idle_are_logged_and_do_not_stop_the_engine(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build()
    monkeypatch.setattr(built.runner, "find_violations", lambda: ["page 3 is lost"])
    with caplog.at_level(logging.ERROR):
        Script(built, [add(max_tokens=1)], [], [add(max_tokens=1)], [])
    assert "page 3 is lost" in caplog.text
    assert "num_free_pages" in caplog.text


def test_preemption_warning_names_both_settings(caplog: pytest.LogCaptureFixture) -> None:
    built = build(kv_cache_memory="32KiB", page_size=4, enable_prefix_caching=False)
    with caplog.at_level(logging.WARNING):
        Script(built, [add(max_tokens=20) for _ in range(4)], *[[] for _ in range(80)])
    warnings = [record.getMessage() for record in caplog.records if "KV pages ran out" in record.getMessage()]
    assert len(warnings) == 1
    for part in ("--max-num-seqs (now 64)", "--kv-cache-memory (now 8 pages, 32 tokens)"):
        assert part in warnings[0]
