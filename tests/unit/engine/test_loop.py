"""The engine's loop and runner, driven by hand: verdicts, one message per step, reports when idle, executor failure."""

import itertools
import logging
from collections import deque

import msgspec
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
    Configure,
    Configured,
    Explain,
    Explained,
    FinishRequest,
    Inbound,
    Listed,
    ListRequests,
    Outbound,
    Ping,
    Pong,
    ResetPrefixCache,
    Shutdown,
    StepDone,
    Verdicts,
    encode,
)
from tests.harness import present

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
    assert present(built.runner.add(first, 0)).error is None
    assert present(built.runner.add(clash, 0)).error == "InvalidRequestError"
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


def test_an_idle_loop_wakes_up_for_the_next_deadline_and_says_who_missed_it() -> None:
    built = build(max_num_seqs=1, enable_prefix_caching=False)
    runner = built.runner
    now_ns, waits_ms = [0], list[int | None]()
    late = msgspec.structs.replace(add(prompt=4, max_tokens=3), ttft_deadline_ms=50.0, arrival_ns=0)

    class Held:
        """The runner, but steps find nothing to run until the deadline is over."""

        def __getattr__(self, name: str) -> object:
            return getattr(runner, name)

        def step(self, now_ns: int) -> None:
            runner._scheduler.expire(now_ns)

    inbox = deque([encode(late), None, None, encode(Shutdown())])

    def receive(timeout_ms: int | None) -> bytes | None:
        waits_ms.append(timeout_ms)
        message = inbox.popleft()
        if message is None and timeout_ms:
            now_ns[0] += timeout_ms * 10**6
        return message

    sent: list[Outbound] = []
    EngineLoop(Held(), receive, sent.append, lambda: now_ns[0]).run()  # type: ignore[arg-type]
    ended = [message for message in sent if isinstance(message, StepDone) and message.updates]
    assert [(update.request_id, update.finish_reason) for update in ended[0].updates] == [(late.request_id, "deadline")]
    # It waits for a message for ever, then not at all, then until the deadline (50 ms and the next nanosecond) is over.
    assert waits_ms == [None, 0, 51, None]
    assert now_ns[0] == 51 * 10**6


def test_deadlines_count_from_the_arrival_in_the_other_process() -> None:
    built = build()
    on_time, late = [
        msgspec.structs.replace(add(), deadline_ms=100.0, arrival_ns=arrival_ns)
        for arrival_ns in (950_000_000, 850_000_000)
    ]
    for message in (on_time, late):
        assert present(built.runner.add(message, 1_000_000_000)).error is None
    built.runner.step(1_000_000_000)
    assert [update.request_id for update in built.runner.take_expired()] == [late.request_id]


def test_questions_are_answered_with_their_number() -> None:
    request = add(max_tokens=50)
    questions = [Explain(7, (request.request_id, 10**9)), ListRequests(8, 10), Configure(9, {"watermark": 0.25}),
                 Configure(10, {"watermark": 2.0}), Configure(11)]  # fmt: skip
    script = Script(build(), [request], list(questions), [])
    explained, listed, changed, refused, asked = [
        message for message in script.sent if isinstance(message, Explained | Listed | Configured)
    ]
    assert isinstance(explained, Explained)
    assert explained.question == 7
    assert explained.statuses[0] is not None
    assert (explained.statuses[0].phase, explained.statuses[1]) == ("running", None)
    assert isinstance(listed, Listed)
    assert (listed.question, listed.num_running, listed.running[0].request_id) == (8, 1, request.request_id)
    for answer, question, watermark in ((changed, 9, 0.25), (refused, 10, 0.25), (asked, 11, 0.25)):
        assert isinstance(answer, Configured)
        assert (answer.question, answer.scheduler.watermark) == (question, watermark)
    assert isinstance(refused, Configured)
    assert "--watermark must be at most 0.9, got 2.0" in (refused.error or "")


def test_questions_take_a_tenth_of_the_time_at_most() -> None:
    """A look at the clock takes 1 ms here, and so does an answer; a step in between takes 2."""
    request = add(max_tokens=40)
    inbox: deque[bytes | None] = deque([encode(request), None, *map(encode, [Explain(n, (0,)) for n in range(5)])])
    inbox.extend([None] * 60)
    inbox.append(encode(Shutdown()))
    clock = itertools.count(0, 10**6)
    sent: list[tuple[int, Outbound]] = []
    EngineLoop(
        build().runner,
        lambda _: inbox.popleft(),
        lambda message: sent.append((next(clock), message)),
        lambda: next(clock),
    ).run()
    answered = [(at_ns, message.question) for at_ns, message in sent if isinstance(message, Explained)]
    last_step_ns = max(at_ns for at_ns, message in sent if isinstance(message, StepDone) and message.updates)
    assert [question for _, question in answered] == list(range(5))
    while_busy = [at_ns for at_ns, _ in answered if at_ns < last_step_ns]
    assert len(while_busy) > 1
    assert all(later - earlier >= 9 * 10**6 for earlier, later in itertools.pairwise(while_busy))


def test_a_change_of_scheduler_and_queue_is_all_or_nothing() -> None:
    runner = build().runner
    before = runner.configure(Configure(0), 0)
    refused = runner.configure(Configure(1, {"max_num_queued_reqs": 3, "max_num_seqs": 10**4}), 0)
    assert refused.error is not None
    assert (refused.scheduler, refused.queue) == (before.scheduler, before.queue)
    taken = runner.configure(Configure(2, {"max_num_queued_reqs": 3, "queue_timeout": 1.5}), 0)
    assert (taken.queue.max_num_queued_reqs, taken.queue.queue_timeout) == (3, 1.5)
    assert taken.scheduler.queue_timeout_s == 1.5


def test_preemptions_and_resumes_are_reported_with_the_step() -> None:
    built = build(kv_cache_memory="32KiB", page_size=4, enable_prefix_caching=False)
    script = Script(built, [add(max_tokens=20) for _ in range(4)], *[[] for _ in range(80)])
    preemptions = [note for step in steps(script) for note in step.stats.preemptions]
    resumes = [note for step in steps(script) for note in step.stats.resumes]
    assert preemptions
    assert {(note.cause, note.mode) for note in preemptions} == {("pages", "recompute")}
    assert len(resumes) == len(preemptions)
    assert all(note.num_recomputed_tokens > 0 for note in resumes)
    assert len(preemptions) == steps(script)[-1].stats.scheduler.preemptions_total


def test_an_idle_engine_answers_pings_and_says_nothing_else() -> None:
    script = Script(build(), [], [Ping()], [Ping(), Ping()])
    assert sum(isinstance(message, Pong) for message in script.sent) == 3
    quiet = Script(build(), [])
    assert len([m for m in script.sent if not isinstance(m, Pong)]) <= len(quiet.sent) + 2


def test_a_busy_engine_answers_pings_between_steps() -> None:
    script = Script(build(), [add(max_tokens=4)], [Ping()], [], [], [])
    assert [type(message) for message in script.sent].index(Pong) < len(script.sent) - 1
