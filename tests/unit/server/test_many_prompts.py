"""A request with many prompts does a little of its work in each turn of the event loop, whatever it does."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.outputs import ChoiceDelta
from chairlift.engine.terms import Terms
from chairlift.errors import OverloadedError, RequestCancelledError
from chairlift.server.openai.generation import Generation, Job
from chairlift.server.openai.prompts import PreparedPrompt
from chairlift.server.slices import NUM_PER_TURN, end_tasks, for_each
from tests.unit.server.stub_engine import StubEngine

NUM_PROMPTS = 1000
JOB = Job([PreparedPrompt([1], None)] * NUM_PROMPTS, SamplingParams(), Terms())


class Turns:
    """Counts the turns of the loop, and what is done in each."""

    def __init__(self) -> None:
        self.number = 0
        self.begun: Counter[int] = Counter()
        self.ended: Counter[int] = Counter()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.number += 1


@dataclass
class Stream:
    """Is read for ever, and ends when it is aborted or its reader is cancelled, like the engine's."""

    turns: Turns
    live_choices: list[tuple[int, int]] = field(default_factory=list)
    is_over: bool = False

    async def __aiter__(self) -> AsyncIterator[ChoiceDelta]:
        self.turns.begun[self.turns.number] += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.abort()
            raise
        yield ChoiceDelta(0, "", (), 0)

    def abort(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.turns.ended[self.turns.number] += 1


async def read(generation: Generation) -> None:
    async for _ in generation.batches():
        pass


def measured(act: Callable[[Generation], None], num_turns_before: int = NUM_PROMPTS) -> Turns:
    """Begin to read many streams, let ``act`` happen to them after some turns, leave, and see to the end."""

    async def run() -> Turns:
        turns = Turns()
        counting = asyncio.ensure_future(turns.run())
        streams = [Stream(turns) for _ in range(NUM_PROMPTS)]
        generation = Generation(streams, 1)
        reading = asyncio.ensure_future(read(generation))
        for _ in range(num_turns_before):
            await asyncio.sleep(0)
        act(generation)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        for _ in range(NUM_PROMPTS):
            await asyncio.sleep(0)
        counting.cancel()
        return turns

    return asyncio.run(run())


def leave(generation: Generation) -> None:
    """The reader is cancelled in any case."""


def test_streams_are_begun_and_left_a_few_in_a_turn() -> None:
    turns = measured(leave)
    assert max(turns.begun.values()) <= NUM_PER_TURN
    assert max(turns.ended.values()) <= NUM_PER_TURN
    assert turns.ended.total() == NUM_PROMPTS


def test_streams_that_were_not_begun_yet_are_ended_too() -> None:
    turns = measured(leave, num_turns_before=2)
    assert turns.begun.total() < NUM_PROMPTS
    assert turns.ended.total() == NUM_PROMPTS
    assert max(turns.ended.values()) <= 2 * NUM_PER_TURN


def test_a_request_that_is_cancelled_ends_a_few_in_a_turn() -> None:
    turns = measured(Generation.cancel)
    assert turns.ended.total() == NUM_PROMPTS
    # It ends them, and whoever reads them leaves at the same time.
    assert max(turns.ended.values()) <= 2 * NUM_PER_TURN


def test_one_prompt_of_many_that_is_refused_ends_the_others() -> None:
    turns = Turns()
    refused = OverloadedError("no more")

    class Engine(StubEngine):
        async def submit(self, prompt_token_ids, sampling, terms=None):  # type: ignore[no-untyped-def]
            number = len(self.submitted)
            self.submitted.append({})
            await asyncio.sleep(0)
            if number == NUM_PROMPTS - 1:
                raise refused
            return Stream(turns)

    async def run() -> None:
        counting = asyncio.ensure_future(turns.run())
        with pytest.raises(OverloadedError) as caught:
            await Generation.start(Engine(), JOB)
        assert caught.value is refused
        counting.cancel()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert turns.ended.total() == NUM_PROMPTS - 1
    assert max(turns.ended.values()) <= NUM_PER_TURN


def test_a_cancelled_request_says_so() -> None:
    async def deltas() -> AsyncIterator[ChoiceDelta]:
        yield ChoiceDelta(0, "", (), 0, finish_reason="abort")

    async def run() -> None:
        streams = [Stream(Turns()) for _ in range(NUM_PROMPTS)]
        streams[0].__class__ = type("Ended", (Stream,), {"__aiter__": lambda self: deltas()})
        generation = Generation(streams, 1)
        generation.cancel()
        with pytest.raises(RequestCancelledError):
            await read(generation)
        assert all(stream.is_over for stream in streams)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_what_is_done_to_each_is_done_to_all_even_if_cancelled() -> None:
    async def run() -> None:
        done: list[int] = []
        tasks = [asyncio.ensure_future(asyncio.Event().wait()) for _ in range(300)]
        doing = asyncio.ensure_future(for_each(range(300), done.append))
        ending = asyncio.ensure_future(end_tasks(tasks))
        await asyncio.sleep(0)
        assert len(done) == NUM_PER_TURN
        doing.cancel()
        ending.cancel()
        await asyncio.gather(doing, ending, return_exceptions=True)
        await asyncio.sleep(0)
        assert done == list(range(300))
        assert all(task.cancelled() for task in tasks)

    asyncio.run(run())
