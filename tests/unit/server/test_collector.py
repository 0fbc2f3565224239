"""Full collections of garbage wait until few objects are alive, but not for ever."""

import asyncio
import gc

import pytest

from chairlift.server import collector
from chairlift.server.collector import FEW_BLOCKS, MORE_BLOCKS_PER_S, MOST_OVERDUE_S, FullCollections


@pytest.fixture(autouse=True)
def full(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The full collections that were made."""
    made: list[int] = []
    monkeypatch.setattr(collector.gc, "freeze", lambda: None)  # the other tests' garbage is no business of this one
    monkeypatch.setattr(collector.gc, "collect", lambda: made.append(1) or 0)
    monkeypatch.setattr(collector.gc, "get_count", lambda: (0, 0, 10))
    return made


class Blocks:
    def __init__(self) -> None:
        self.number = 1_000_000

    def __call__(self) -> int:
        return self.number


def test_one_is_made_while_few_objects_are_alive(full: list[int]) -> None:
    blocks = Blocks()
    collections = FullCollections(blocks)
    full.clear()
    blocks.number += FEW_BLOCKS
    collections.look(0.0)
    assert len(full) == 1


def test_many_objects_put_it_off_until_they_are_gone(full: list[int]) -> None:
    blocks = Blocks()
    collections = FullCollections(blocks)
    full.clear()
    blocks.number += FEW_BLOCKS + 1
    collections.look(7.0)
    collections.look(7.0)
    assert not full
    blocks.number -= 1
    collections.look(7.0)
    assert len(full) == 1


def test_the_longer_it_is_due_the_more_may_be_alive(full: list[int]) -> None:
    blocks = Blocks()
    collections = FullCollections(blocks)
    full.clear()
    blocks.number += FEW_BLOCKS + 10 * MORE_BLOCKS_PER_S
    collections.look(100.0)
    collections.look(109.9)
    assert not full
    collections.look(110.0)
    assert len(full) == 1


def test_it_is_put_off_for_so_long_at_most(full: list[int]) -> None:
    blocks = Blocks()
    collections = FullCollections(blocks)
    full.clear()
    blocks.number += 1_000_000_000
    collections.look(100.0)
    collections.look(100.0 + MOST_OVERDUE_S - 0.1)
    assert not full
    collections.look(100.0 + MOST_OVERDUE_S)
    assert len(full) == 1


def test_one_that_was_made_is_due_anew(full: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """However long one has been due before, the next one waits for its own calm moment."""
    blocks = Blocks()
    collections = FullCollections(blocks)
    full.clear()
    monkeypatch.setattr(collector.gc, "get_count", lambda: (0, 0, 10))
    blocks.number += 1_000_000_000
    for now_s in range(100, 100 + 3 * int(MOST_OVERDUE_S)):
        collections.look(float(now_s))
    assert len(full) == 2


def test_none_is_made_without_reason(full: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    collections = FullCollections(Blocks())
    full.clear()
    monkeypatch.setattr(collector.gc, "get_count", lambda: (0, 0, 9))
    for now_s in range(1000):
        collections.look(now_s)
    assert not full


def test_python_makes_none_itself_meanwhile_and_does_again_afterwards() -> None:
    async def run() -> tuple[int, int]:
        task = asyncio.ensure_future(FullCollections().run())
        await asyncio.sleep(0)
        during = gc.get_threshold()[2]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return during, gc.get_threshold()[2]

    before = gc.get_threshold()[2]
    during, after = asyncio.run(run())
    assert during > 1_000_000
    assert after == before
