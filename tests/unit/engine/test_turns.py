"""A task that always has something to do, beside others that do: nobody's part of the time goes to nothing."""

import asyncio

import pytest

from chairlift.engine.turns import LONGEST_TURN_S, SHORTEST_TURN_S, Turns

_MESSAGE_S = 0.0005


class _Clock:
    """Moves when somebody works."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def work(self, seconds: float) -> None:
        self.now_s += seconds


async def _share_of_messages(others_s: float) -> float:
    """The part of the time that messages get beside others that work so long in every turn of the loop."""
    clock = _Clock()
    turns = Turns(clock)
    messages_s = 0.0

    async def others() -> None:
        while True:
            clock.work(others_s)
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    start_s = clock.now_s
    for _ in range(2_000):
        clock.work(_MESSAGE_S)
        messages_s += _MESSAGE_S
        await turns.pause_if_over()
    beside.cancel()
    return messages_s / (clock.now_s - start_s)


@pytest.mark.parametrize("others_s", [0.003, 0.01, LONGEST_TURN_S])
def test_messages_get_half_of_the_time_whatever_the_others_do(others_s: float) -> None:
    assert asyncio.run(_share_of_messages(others_s)) == pytest.approx(0.5, abs=0.06)


def test_others_wait_for_no_longer_than_a_bounded_turn() -> None:
    share = asyncio.run(_share_of_messages(4 * LONGEST_TURN_S))
    assert share == pytest.approx(1 / 5, abs=0.02)


def test_a_turn_is_long_enough_for_several_messages() -> None:
    share = asyncio.run(_share_of_messages(_MESSAGE_S / 10))
    assert share >= SHORTEST_TURN_S / (SHORTEST_TURN_S + _MESSAGE_S)
