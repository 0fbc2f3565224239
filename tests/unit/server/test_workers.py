"""Threads for long texts: bounded for what comes, never for what was promised; parsers have one of their own."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import pytest

from chairlift.core.sampling_params import SamplingParams
from chairlift.core.step_plan import TokenLogprobs
from chairlift.engine.outputs import ChoiceDelta
from chairlift.errors import OverloadedError
from chairlift.server import workers
from chairlift.server.workers import Workers, in_parser
from tests.unit.server.stub_engine import StubEngine, post


class Gate:
    """Work that goes on until it is let go, and takes down the order in which pieces are done."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.order: list[str] = []

    def wait(self, name: str) -> None:
        assert self.is_open.wait(10)
        self.order.append(name)


async def turns() -> None:
    """Long enough for tasks to get as far as they can."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_what_is_too_much_is_refused_but_no_answer() -> None:
    async def run() -> list[str]:
        gate, threads = Gate(), Workers(num_workers=1, max_pending=2)
        pending = [asyncio.ensure_future(threads.run(gate.wait, f"text {number}")) for number in range(2)]
        await turns()
        with pytest.raises(OverloadedError):
            await threads.run(gate.wait, "one more")
        answers = [asyncio.ensure_future(threads.run_answer(gate.wait, f"answer {number}")) for number in range(3)]
        await turns()
        gate.is_open.set()
        await asyncio.gather(*pending, *answers)
        return gate.order

    # The first text was in the thread already. Answers go before the other one.
    assert asyncio.run(run()) == ["text 0", "answer 0", "answer 1", "answer 2", "text 1"]


def test_what_is_cancelled_before_its_turn_is_never_run_and_takes_nobody_s_place() -> None:
    async def run() -> list[str]:
        gate, threads = Gate(), Workers(num_workers=1, max_pending=3)
        first = asyncio.ensure_future(threads.run(gate.wait, "first"))
        others = [asyncio.ensure_future(threads.run(gate.wait, name)) for name in ("second", "third")]
        await turns()
        others[0].cancel()
        await turns()
        fourth = asyncio.ensure_future(threads.run(gate.wait, "fourth"))
        await turns()
        gate.is_open.set()
        await asyncio.gather(first, others[1], fourth)
        return gate.order

    assert asyncio.run(run()) == ["first", "third", "fourth"]


def test_a_thread_is_not_lost_to_one_that_is_cancelled_when_its_turn_comes() -> None:
    async def run() -> str:
        gate, threads = Gate(), Workers(num_workers=1)
        gate.is_open.set()
        threads._num_free = 0  # as if something ran
        late = asyncio.ensure_future(threads.run(gate.wait, "late"))
        await turns()
        threads._pass_on()
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        return await asyncio.wait_for(threads.run(lambda: "done"), 10)

    assert asyncio.run(run()) == "done"


def test_parsers_run_in_one_thread_alone() -> None:
    async def run() -> set[str]:
        return set(await asyncio.gather(*(in_parser(lambda: threading.current_thread().name) for _ in range(20))))

    workers._parser.cache_clear()
    assert len(asyncio.run(run())) == 1


async def heavy(prompt: Sequence[int], sampling: SamplingParams) -> AsyncIterator[ChoiceDelta]:
    """An answer in one piece that is worth a thread."""
    count = 300
    found = (TokenLogprobs(-1.0, 1, ()),) * count
    yield ChoiceDelta(0, "a" * count, (97,) * count, count, 0, "length", logprobs=found, text_offsets=(0,) * count)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_accepted_request_is_answered_however_many_texts_wait(
    is_streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Workers(max_pending=0)
    monkeypatch.setattr(workers, "_workers", lambda: full)
    body = {"prompt": "x", "logprobs": 1, "max_tokens": 300, "stream": is_streamed}
    answer = post("/v1/completions", body, engine=StubEngine(script=heavy))
    assert answer.status_code == 200
    assert "overloaded" not in answer.text
    assert "a" * 300 in answer.text
