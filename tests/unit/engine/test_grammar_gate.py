"""Requests wait for their grammar outside the queue: nobody else waits for it, and everybody hears of it."""

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from chairlift.config.load import load_settings
from chairlift.core.grammar import Grammar
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.build import build_engine
from chairlift.engine.byte_tokenizer import ByteTokenizer
from chairlift.engine.end_tokens import end_tokens
from chairlift.engine.grammar_gate import GrammarGate
from chairlift.engine.messages import AddRequest, Choice
from chairlift.engine.remote_errors import to_error
from chairlift.errors import InvalidRequestError, OverloadedError
from chairlift.structured.compiler import GrammarCompiler
from chairlift.structured.sources import choice_part, whole
from chairlift.structured.vocabulary import build_vocabulary

NS_PER_S = 10**9
SOME = Grammar("text", "guided_json")


class SlowCompiler(GrammarCompiler):
    """Compiles when the test says so."""

    def __init__(self) -> None:
        tokenizer = ByteTokenizer()
        super().__init__(
            lambda end_tokens: build_vocabulary(tokenizer, tokenizer.vocab_size, end_tokens),
            max_bytes=1000,
            timeout_s=5.0,
        )
        self.preparation: Future[Any] = Future()

    def prepare(self, grammar: Grammar) -> Future[Any]:
        return self.preparation


def request(number: int = 1, grammar: Grammar | None = SOME, n: int = 2) -> AddRequest:
    sampling = SamplingParams(max_tokens=4, n=n, grammar=grammar)
    choices = tuple(Choice(number * 10 + index, index) for index in range(n))
    return AddRequest(
        choices=choices, prompt_token_ids=(1, 2, 3), sampling=sampling, stop_token_ids=frozenset({257}), tenant="t"
    )


def test_a_request_is_held_until_its_grammar_is_ready() -> None:
    compiler = SlowCompiler()
    gate = GrammarGate(compiler)
    assert gate.holds(request(), now_ns=0)
    assert not gate.holds(request(2, grammar=None), now_ns=0)
    assert gate.take_settled(NS_PER_S) == []
    statuses = gate.statuses(2 * NS_PER_S)
    assert [(status.request_id, status.blocked_on, status.waited_s) for status in statuses] == [
        (10, "grammar", 2.0),
        (11, "grammar", 2.0),
    ]
    assert "guided_json" in statuses[0].reason
    compiler.preparation.set_result(None)
    assert [(message.request_id, error) for message, error in gate.take_settled(NS_PER_S)] == [(10, None)]
    assert len(gate) == 0


def test_a_grammar_that_fails_or_takes_too_long_refuses_its_request() -> None:
    compiler = SlowCompiler()
    assert compiler.preparation.set_running_or_notify_cancel()
    gate = GrammarGate(compiler)
    gate.holds(request(1), now_ns=0)
    gate.holds(request(2), now_ns=4 * NS_PER_S)
    ((message, error),) = gate.take_settled(6 * NS_PER_S)
    assert message.request_id == 10
    assert isinstance(error, InvalidRequestError)
    assert "--grammar-timeout" in error.message
    assert error.param == "guided_json"
    compiler.preparation.set_exception(InvalidRequestError("no", param="guided_json"))
    ((message, error),) = gate.take_settled(6 * NS_PER_S)
    assert message.request_id == 20
    assert error is not None
    assert error.message == "no"


def test_time_counts_from_when_the_grammar_itself_is_compiled() -> None:
    compiler = SlowCompiler()
    gate = GrammarGate(compiler)
    gate.holds(request(), now_ns=0)
    assert gate.take_settled(4 * NS_PER_S) == []
    assert gate.statuses(4 * NS_PER_S)[0].reason.endswith(", behind those of other requests")
    assert compiler.preparation.set_running_or_notify_cancel()
    assert gate.take_settled(4 * NS_PER_S) == []
    assert gate.statuses(4 * NS_PER_S)[0].reason.endswith("is compiled: guided_json")
    assert gate.take_settled(8 * NS_PER_S) == []
    ((_, error),) = gate.take_settled(10 * NS_PER_S)
    assert isinstance(error, InvalidRequestError)


def test_a_grammar_that_had_no_turn_is_no_fault_of_its_request() -> None:
    compiler = SlowCompiler()
    gate = GrammarGate(compiler)
    gate.holds(request(1), now_ns=0)
    gate.holds(request(2), now_ns=4 * NS_PER_S)
    ((message, error),) = gate.take_settled(6 * NS_PER_S)
    assert message.request_id == 10
    assert isinstance(error, OverloadedError)
    assert (error.http_status, error.retry_after_s >= 1) == (503, True)
    assert "grammars of other requests" in error.message
    assert "--grammar-timeout" in error.message
    assert not compiler.preparation.cancelled(), "another request waits for the same"
    gate.drop([20])
    assert compiler.preparation.cancelled(), "nobody waits for it any more, and others wait for the threads"


def test_threads_that_are_busy_for_others_are_a_503_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_now, ready, busy = GrammarCompiler._compile, threading.Event(), threading.Semaphore(0)

    def compile_later(self: GrammarCompiler, grammar: Grammar) -> Any:
        busy.release()
        assert ready.wait(30)
        return compile_now(self, grammar)

    monkeypatch.setattr(GrammarCompiler, "_compile", compile_later)
    runner = build_engine(load_settings({"executor": "fake", "grammar_timeout": 5.0}, env={}), None).runner
    texts = [whole(choice_part([text]), "guided_choice") for text in ("first", "second", "third")]
    for number, grammar in enumerate(texts[:2], start=1):
        assert runner.add(request(number, grammar, n=1), 0) is None
        assert busy.acquire(timeout=30)
    assert runner.take_verdicts(0) == []  # both are seen to have begun
    assert runner.add(request(3, texts[2], n=1), 0) is None
    verdicts = {verdict.request_id: to_error(verdict) for verdict in runner.take_verdicts(6 * NS_PER_S)}
    assert {number: type(error) for number, error in verdicts.items()} == {
        10: InvalidRequestError,
        20: InvalidRequestError,
        30: OverloadedError,
    }
    assert runner.add(request(4, texts[2], n=1), 6 * NS_PER_S) is None  # the same again, later
    ready.set()
    again: list = []
    while not again:
        again = runner.take_verdicts(7 * NS_PER_S)
    assert [(verdict.request_id, verdict.error) for verdict in again] == [(40, None)]


def test_a_held_request_that_nobody_wants_any_more_is_forgotten() -> None:
    gate = GrammarGate(SlowCompiler())
    gate.holds(request(), now_ns=0)
    gate.drop([10, 11])
    assert len(gate) == 0
    assert gate.statuses(0) == []


def test_an_engine_without_a_compiler_refuses_grammars() -> None:
    with pytest.raises(InvalidRequestError):
        GrammarGate(None).holds(request(), now_ns=0)


def test_others_run_while_a_grammar_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = threading.Event()
    compile_now = GrammarCompiler._compile

    def compile_later(self: GrammarCompiler, grammar: Grammar) -> Any:
        assert ready.wait(30)
        return compile_now(self, grammar)

    monkeypatch.setattr(GrammarCompiler, "_compile", compile_later)
    built = build_engine(load_settings({"executor": "fake"}, env={}), None)
    runner = built.runner
    grammar = whole(choice_part(["yes", "no"]), "guided_choice")
    assert runner.add(request(1, grammar, n=1), 0) is None
    verdict = runner.add(request(2, grammar=None, n=1), 0)
    assert verdict is not None
    assert verdict.error is None
    tokens = 0
    while (outcome := runner.step(0)) is not None:
        tokens += sum(len(update.token_ids) for update in outcome.updates)
    assert tokens == 4  # the other request is through
    assert runner.has_held
    assert runner.take_verdicts(0) == []
    assert runner.stats(0).waiting_by_reason == {"grammar": 1}
    ready.set()
    verdicts: list = []
    while not verdicts:
        verdicts = runner.take_verdicts(0)
    assert [verdict.error for verdict in verdicts] == [None]
    output: list[int] = []
    while (outcome := runner.step(0)) is not None:
        output.extend(token for update in outcome.updates for token in update.token_ids)
    assert bytes(output[:-1]) in (b"yes", b"no")
    assert output[-1] == 257
    assert runner.find_violations() == []


def test_the_end_of_a_grammar_cannot_be_ignored() -> None:
    free = SamplingParams(ignore_eos=True)
    held = SamplingParams(ignore_eos=True, grammar=Grammar("text"))
    assert end_tokens(free, frozenset({7})) == frozenset()
    assert end_tokens(held, frozenset({7})) == {7}
