"""Work that is given up: only what takes long of a processor, and without keeping anybody else."""

import threading
import time
from collections.abc import Callable

import pytest

from chairlift.structured.threads import Task, TaskThreads

LIMIT_NS = 20_000_000


@pytest.fixture
def stop():
    event = threading.Event()
    yield event
    event.set()


def spin_until(event: threading.Event) -> Callable[[], None]:
    def spin() -> None:
        while not event.is_set():
            pass

    return spin


def spin_for(cpu_ns: int, then: Callable[[], None]) -> Callable[[], None]:
    def spin() -> None:
        start_ns = time.thread_time_ns()
        while time.thread_time_ns() - start_ns < cpu_ns:
            pass
        then()

    return spin


@pytest.mark.parametrize("num_threads", [1, 2])
def test_what_takes_too_long_is_given_up_and_everything_else_is_done(num_threads: int, stop: threading.Event) -> None:
    threads = TaskThreads(num_threads, "test")
    done: list[int] = []
    endless = Task([lambda: done.append(0), spin_until(stop), lambda: done.append(99)], LIMIT_NS)
    others = [Task([lambda number=number: done.append(number)], LIMIT_NS) for number in range(1, 5)]
    threads.run([endless, *others])
    assert endless.is_given_up
    assert not any(task.is_given_up for task in others)
    assert sorted(done) == [0, 1, 2, 3, 4]
    # A lost thread takes nobody's place.
    threads.run([Task([lambda number=number: done.append(number)], LIMIT_NS) for number in range(5, 8)])
    assert sorted(done) == list(range(8))
    threads.close()


def test_whoever_waits_for_a_processor_or_for_others_is_not_given_up() -> None:
    event = threading.Event()
    waiting = Task([lambda: assert_set(event)], LIMIT_NS)
    working = Task([spin_for(4 * LIMIT_NS, event.set)], None)
    threads = TaskThreads(2, "test")
    threads.run([waiting, working])
    assert not waiting.is_given_up
    threads.close()


def assert_set(event: threading.Event) -> None:
    assert event.wait(30)


def test_a_few_short_pieces_are_done_where_they_are_asked_for() -> None:
    names: list[str] = []
    threads = TaskThreads(2, "test")
    note = lambda: names.append(threading.current_thread().name)  # noqa: E731
    threads.run([Task([note], None), Task([note, note], None)])
    assert names == [threading.current_thread().name] * 3
    threads.run([Task([note] * 4, None), Task([note], None)])
    assert all(name.startswith("test") for name in names[3:])
    assert len(names) == 8
    threads.close()


def test_a_piece_that_raises_ends_its_task_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []
    threads = TaskThreads(1, "test")
    threads.run([Task([lambda: 1 // 0, lambda: done.append(1)], LIMIT_NS), Task([lambda: done.append(2)], LIMIT_NS)])  # type: ignore[list-item]
    assert done == [2]
    assert "ZeroDivisionError" in caplog.text
    threads.close()
