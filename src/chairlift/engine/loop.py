"""The engine's loop: drain the inbox, run a step, report it; sleep when there is nothing to run.

Knows nothing of sockets: messages come and go through two callables.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import assert_never

import msgspec

from chairlift.core.outcome import RequestUpdate
from chairlift.engine.messages import (
    AbortRequests,
    AddRequest,
    CacheReset,
    Configure,
    Explain,
    FinishRequest,
    Inbound,
    ListRequests,
    Outbound,
    Ping,
    Pong,
    ResetPrefixCache,
    Shutdown,
    Verdict,
    Verdicts,
    decode_inbound,
)
from chairlift.engine.runner import EngineRunner, to_step_done

MAX_MESSAGES_PER_STEP = 1024
"""However many messages wait, a step is never delayed by more than these."""

_QUESTION_PAUSE = 9
"""After a question, others wait this many times as long as its answer took: a tenth of the time goes to questions at
most, however often clients ask."""

_STALLED_POLL_MS = 100
_GRAMMAR_POLL_MS = 2
"""How often an engine without other work looks whether a grammar is ready."""
_NS_PER_MS = 1_000_000

_logger = logging.getLogger(__name__)


_Handled = AddRequest | AbortRequests | FinishRequest | ResetPrefixCache | Explain | ListRequests | Configure | Shutdown


class EngineLoop:
    """Drives a runner.

    Args:
        runner: the engine.
        receive: returns the next message, waiting for it at most so many milliseconds (``None``: for ever).
        send: sends a message; may block while its reader is far behind.
        clock: monotonic nanoseconds.
    """

    def __init__(
        self,
        runner: EngineRunner,
        receive: Callable[[int | None], bytes | None],
        send: Callable[[Outbound], None],
        clock: Callable[[], int],
    ) -> None:
        self._runner = runner
        self._receive = receive
        self._send = send
        self._clock = clock
        self._verdicts: list[Verdict] = []
        self._questions: deque[Explain | ListRequests] = deque()
        self._questions_due_ns = 0
        self._is_stopping = False
        self._is_resting = True
        """The last step found nothing to run."""

    def run(self) -> None:
        """Run until a :class:`~chairlift.engine.messages.Shutdown` arrives. Raises what the executor raises."""
        while True:
            self._drain_inbox()
            if self._is_stopping:
                break
            outcome = self._runner.step(self._clock())
            now_ns = self._clock()
            expired = self._runner.take_expired()
            if outcome is not None:
                self._is_resting = False
                stats, failures = self._runner.stats(now_ns, outcome), outcome.result.failures
                self._send(to_step_done([*expired, *outcome.updates], stats, failures))
            elif expired and self._runner.has_unfinished:
                self._send(to_step_done(expired, self._runner.stats(now_ns)))
            else:
                self._rest(expired, now_ns)
                self._is_resting = True
        self._runner.drain()

    def _drain_inbox(self) -> None:
        """Take all messages that are there, and answer the requests among them in one message.

        Waits for the first one if nothing runs.
        """
        timeout_ms = self._idle_timeout_ms()
        for _ in range(MAX_MESSAGES_PER_STEP):
            data = self._receive(timeout_ms)
            if data is None:
                break
            message = _understood(data)
            if isinstance(message, Ping):
                # Not a reason to look for work, or an idle engine would report itself for every one.
                self._send(Pong())
                timeout_ms = 0 if timeout_ms == 0 else self._idle_timeout_ms()
                continue
            if message is not None:
                self._handle(message)
            self._is_resting = False
            timeout_ms = 0
            if self._is_stopping:
                break
        if self._runner.has_held:
            self._verdicts.extend(self._runner.take_verdicts(self._clock()))
            self._is_resting = self._is_resting and not self._verdicts
        if self._verdicts:
            self._send(Verdicts(tuple(self._verdicts)))
            self._verdicts.clear()
        self._answer_questions()

    def _idle_timeout_ms(self) -> int | None:
        if not self._is_resting or self._questions:
            return 0
        timeout_ms = _STALLED_POLL_MS if self._runner.has_unfinished else None
        if self._runner.has_held:
            timeout_ms = _GRAMMAR_POLL_MS
        expiry_ns = self._runner.next_expiry_ns
        if expiry_ns is None:
            return timeout_ms
        until_ms = max(0, -(-(expiry_ns - self._clock()) // _NS_PER_MS))
        return until_ms if timeout_ms is None else min(until_ms, timeout_ms)

    def _handle(self, message: _Handled) -> None:
        match message:
            case AddRequest():
                verdict = self._runner.add(message, self._clock())
                if verdict is not None:
                    self._verdicts.append(verdict)
            case AbortRequests():
                self._runner.abort(message.request_ids, self._clock())
            case FinishRequest():
                self._runner.finish(message.request_id, message.keep_tokens, self._clock())
            case ResetPrefixCache():
                self._send(CacheReset(self._runner.reset_prefix_cache()))
            case Explain() | ListRequests():
                self._questions.append(message)
                self._answer_questions()
            case Configure():
                self._send(self._runner.configure(message, self._clock()))
            case Shutdown():
                self._is_stopping = True
            case _:
                assert_never(message)

    def _answer_questions(self) -> None:
        """Answer what was asked, in order; while requests are alive only if it is time."""
        while self._questions:
            start_ns = self._clock()
            if start_ns < self._questions_due_ns and self._runner.has_unfinished:
                return
            question = self._questions.popleft()
            if isinstance(question, Explain):
                self._send(self._runner.explain(question, start_ns))
            else:
                self._send(self._runner.list_requests(question, start_ns))
            end_ns = self._clock()
            self._questions_due_ns = end_ns + _QUESTION_PAUSE * (end_ns - start_ns)

    def _rest(self, expired: list[RequestUpdate], now_ns: int) -> None:
        """Nothing could run: report the state as it is left, and check it while there is time."""
        if not self._runner.has_unfinished:
            self._send(to_step_done(expired, self._runner.stats(now_ns)))
            violations = self._runner.find_violations()
            if violations:
                _logger.error(
                    "the scheduler's state contradicts itself: %s\n%s",
                    "; ".join(violations),
                    self._runner.describe_state(),
                )
        elif not self._is_resting:
            # What was told of queues before may not be true any more.
            self._send(to_step_done(expired, self._runner.stats(now_ns)))
            _logger.error("requests are alive but no step can be planned: %s", self._runner.describe_state())


def _understood(data: bytes) -> Inbound | None:
    try:
        return decode_inbound(data)
    except msgspec.DecodeError:
        _logger.exception("a message was not understood and is dropped")
        return None
