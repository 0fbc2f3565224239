"""Puts a load on a server: sends requests when they are due, or as soon as others end, and collects the records.

Knows nothing of HTTP: an :class:`Answerer` sends a request and waits for its answer.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from chairlift.benchmark.calls import Call, Load
from chairlift.benchmark.clock import NS_PER_S, Clock
from chairlift.benchmark.own_delay import LoopWatch, OwnDelay, own_delay
from chairlift.benchmark.records import INTERRUPTED, CallRecord
from chairlift.benchmark.wire import Message


class Answerer(Protocol):
    """Sends requests."""

    async def answer(self, body: bytes, record: CallRecord) -> str:
        """Send one, fill in its record and return the answer's text. Raises nothing but for cancellation."""
        ...


class Observer(Protocol):
    """Is told how a run goes on."""

    def sent(self, record: CallRecord) -> None:
        """A request is about to be sent."""
        ...

    def ended(self, record: CallRecord) -> None:
        """A request has ended, well or not."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a run; ``None`` sets none.

    Args:
        max_concurrency: requests on their way at a time; others wait here, and their clients' queue is measured.
        duration_s: nothing is sent later than this; what is on its way may end.
    """

    max_concurrency: int | None = None
    duration_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """Everything that a run took down. ``records`` are in the order in which requests ended."""

    start_ns: int
    end_ns: int
    records: Sequence[CallRecord]
    own: OwnDelay
    is_interrupted: bool


class LoadRunner:
    """Runs a load once.

    Args:
        load: what to send.
        answerer: who sends it.
        clock: what due times are on.
        limits: bounds of the run.
        observer: who is told.
    """

    def __init__(
        self,
        load: Load,
        answerer: Answerer,
        clock: Clock,
        *,
        limits: Limits | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._load = load
        self._answerer = answerer
        self._clock = clock
        self._observer = observer
        limits = limits or Limits()
        self._permits = None if limits.max_concurrency is None else asyncio.Semaphore(limits.max_concurrency)
        self._duration_ns = None if limits.duration_s is None else int(limits.duration_s * NS_PER_S)
        self._records: list[CallRecord] = []
        self._num_started = 0
        self._start_ns = 0

    async def run(self, stop: asyncio.Event) -> FinishedRun:
        """Send everything and wait for it, or until ``stop`` is set: then what is on its way is given up."""
        arrivals, loops = self._load.arrivals(), self._load.closed_loops()
        watch = LoopWatch(self._clock)
        self._start_ns = self._clock.now_ns()
        watching = asyncio.create_task(watch.run())
        driving = asyncio.create_task(self._drive(arrivals, dict(loops)))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((driving, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_interrupted = not driving.done()
            own_tasks = (driving, stopping, watching)
            for task in own_tasks:
                task.cancel()
            await asyncio.gather(*own_tasks, return_exceptions=True)
        if not is_interrupted:
            _raise_first(driving)
        sent = [record for record in self._records if record.sent_ns]
        return FinishedRun(
            start_ns=self._start_ns,
            end_ns=max((record.end_ns for record in sent), default=self._clock.now_ns()),
            records=self._records,
            own=own_delay([record.sent_ns - record.ready_ns for record in sent], watch),
            is_interrupted=is_interrupted,
        )

    async def _drive(self, arrivals: Iterator[Call], loops: dict[int, Iterator[Call]]) -> None:
        async with asyncio.TaskGroup() as group:
            for place, calls in loops.items():
                for _ in range(self._load.streams[place].concurrency or 1):
                    group.create_task(self._replace_ended(place, calls))
            for call in arrivals:
                due_ns = self._start_ns + call.arrival_ns
                if self._is_over(max(due_ns, self._clock.now_ns())):
                    break
                await self._clock.sleep_until(due_ns)
                group.create_task(self._converse(call, due_ns))

    async def _replace_ended(self, place: int, calls: Iterator[Call]) -> None:
        """Keep one request of a stream alive: when one ends, the next is sent."""
        think_ns = int(self._load.streams[place].think_s * NS_PER_S)
        while not self._is_over(now_ns := self._clock.now_ns()):
            call = next(calls, None)
            if call is None:
                return
            await self._converse(call, now_ns)
            if think_ns:
                await self._clock.sleep_until(self._clock.now_ns() + think_ns)

    async def _converse(self, call: Call, due_ns: int) -> None:
        """Send a call, and those that follow it when it has ended well."""
        think_ns = int(self._load.streams[call.stream].think_s * NS_PER_S)
        messages: list[Message] = []
        asking, turn = call, 0
        while True:
            messages += asking.history
            if asking.body is None:
                messages.append({"role": "user", "content": asking.turn})
            record = self._new_record(asking, due_ns, turn)
            text = await self._send(asking, messages, record)
            if not record.is_ok:
                return
            if asking.body is None:
                messages.append({"role": "assistant", "content": text})
            due_ns = record.end_ns + think_ns
            if asking.follow_up is None or self._is_over(due_ns):
                return
            asking, turn = asking.follow_up, turn + 1
            await self._clock.sleep_until(due_ns)

    async def _send(self, call: Call, messages: Sequence[Message], record: CallRecord) -> str:
        try:
            if self._permits is None:
                return await self._send_now(call, messages, record)
            has_to_wait = self._permits.locked()
            async with self._permits:
                if has_to_wait:
                    record.ready_ns = self._clock.now_ns()
                    if self._is_over(record.ready_ns):
                        record.fail(INTERRUPTED, "its turn came after --duration")
                        return ""
                return await self._send_now(call, messages, record)
        except asyncio.CancelledError:
            record.fail(INTERRUPTED)
            raise
        finally:
            self._records.append(record)
            if self._observer is not None:
                self._observer.ended(record)

    async def _send_now(self, call: Call, messages: Sequence[Message], record: CallRecord) -> str:
        body = self._load.body_of(call, messages)
        if self._observer is not None:
            self._observer.sent(record)
        return await self._answerer.answer(body, record)

    def _new_record(self, call: Call, due_ns: int, turn: int) -> CallRecord:
        number = self._num_started
        self._num_started += 1
        return CallRecord(
            number=number,
            stream=call.stream,
            tier=call.tier,
            tenant=call.tenant,
            due_ns=due_ns,
            ready_ns=due_ns,
            turn=turn,
            num_wanted_tokens=call.max_tokens,
        )

    def _is_over(self, at_ns: int) -> bool:
        return self._duration_ns is not None and at_ns >= self._start_ns + self._duration_ns


def _raise_first(task: "asyncio.Task[None]") -> None:
    """Raise what ended a task early: a trace that turns out to be broken, and not a group of one error."""
    try:
        task.result()
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
