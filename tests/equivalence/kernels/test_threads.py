"""Jobs: every item runs exactly once, whoever helps, and an absent worker is not waited for."""

import ctypes

import numpy as np
import pytest

from chairlift.execution.torch_backend.kernels_cpu.compilation import compile_body
from chairlift.execution.torch_backend.kernels_cpu.machine import int64_at, take_next
from chairlift.execution.torch_backend.kernels_cpu.threads import OpenMPThreads, WorkerThreads
from chairlift.execution.torch_backend.number_bits import float_bits


def count_body(arguments):
    """Add one to each of ``own[1]`` numbers, and to the count of the thread that did it."""
    own = int64_at(arguments + 16)  # pyright: ignore[reportCallIssue]
    numbers, by_thread = int64_at(own[0]), int64_at(own[2])  # pyright: ignore[reportCallIssue]
    thread = take_next(arguments + 8)  # pyright: ignore[reportCallIssue]
    while True:
        item = take_next(arguments)  # pyright: ignore[reportCallIssue]
        if item >= own[1]:
            break
        numbers[item] += 1
        by_thread[thread] += 1


@pytest.fixture(scope="module")
def body() -> int:
    return compile_body(count_body)


@pytest.mark.parametrize("kind", [WorkerThreads, OpenMPThreads])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_every_item_runs_once(kind: type, num_threads: int, body: int) -> None:
    threads = kind(num_threads)
    numbers = np.zeros(1000, np.int64)
    by_thread = np.zeros(num_threads, np.int64)
    for _ in range(300):
        threads.run(body, numbers.ctypes.data, len(numbers), by_thread.ctypes.data)
    for _ in range(10):
        threads.run(body, numbers.ctypes.data, len(numbers), by_thread.ctypes.data, parallel=False)
    assert (numbers == 310).all()
    assert by_thread.sum() == 310_000
    threads.close()


def test_a_job_ends_although_every_worker_is_absent(body: int) -> None:
    """Workers that have been closed are the extreme case of workers that never get a core."""
    threads = WorkerThreads(3)
    threads.close()
    numbers, by_thread = np.zeros(50, np.int64), np.zeros(3, np.int64)
    threads.run(body, numbers.ctypes.data, len(numbers), by_thread.ctypes.data)
    assert (numbers == 1).all()
    assert by_thread.tolist() == [50, 0, 0]


def test_sleeping_workers_are_woken(body: int) -> None:
    threads = WorkerThreads(2)
    numbers, by_thread = np.zeros(200_000, np.int64), np.zeros(2, np.int64)
    # Workers fall asleep by themselves; wait until this one has, then see that it works again.
    while threads.num_asleep == 0:
        pass
    for _ in range(10_000):
        threads.run(body, numbers.ctypes.data, len(numbers), by_thread.ctypes.data)
        if by_thread[1]:
            break
    assert by_thread[1] > 0
    threads.close()


def test_float_bits_round_trip() -> None:
    for number in (0.0, 1e-5, -3.25, float("inf")):
        bits = ctypes.c_int64(float_bits(number))
        assert ctypes.cast(ctypes.byref(bits), ctypes.POINTER(ctypes.c_double)).contents.value == number
