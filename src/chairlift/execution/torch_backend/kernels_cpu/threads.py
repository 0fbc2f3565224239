"""Runs compiled loop bodies on several threads.

Knows nothing of what the bodies compute. There are two ways, because two pools that both wait busily would fight for
the cores:

- :class:`WorkerThreads`, our own, where nearly all work is in bodies. Who starts a job never waits for a worker that
  has not begun it, so a core that is busy with another process costs its share of the work and nothing more.
- :class:`OpenMPThreads`, torch's own pool, where torch does the heavy part (bfloat16 in oneDNN).
"""

import ctypes
import threading
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from chairlift.execution.torch_backend.kernels_cpu.compilation import compile_body
from chairlift.execution.torch_backend.kernels_cpu.jobs import STATE_FIELDS, run_job_body, serve_jobs_body

NUM_COUNTERS = 2
"""Arguments that every body has before its own: next work item, next thread number."""

_BODY = ctypes.CFUNCTYPE(None, ctypes.c_int64)
_WAIT_S = 1.5e-3
"""How long workers wait busily: longer than the Python code between two jobs of a step."""
_FIRST_SPINS, _LAST_SPINS, _MAX_SPINS = 2_000, 2_000, 1_000_000
"""Times that a worker looks for a job: to measure how long that takes, before it sleeps, and ever."""


class Threads(Protocol):
    """Runs bodies."""

    num_threads: int

    def run(self, body_address: int, *arguments: int, parallel: bool = True) -> None:
        """Run a body to its end on all threads, or on the calling one alone; ``arguments`` are its own.

        Must not be called by two threads at once.
        """
        ...

    def close(self) -> None:
        """End the threads."""
        ...


class WorkerThreads:
    """Threads that wait busily for the next job for a moment, and asleep after that; see :mod:`jobs`."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._run_job = _BODY(compile_body(run_job_body))
        self._serve_jobs = _BODY(compile_body(serve_jobs_body))
        self._state: np.ndarray[Any, np.dtype[np.int64]] = np.zeros(STATE_FIELDS, np.int64)
        self._spins = self._measured_spins()
        self._num_asleep = 0
        self._is_closed = False
        self._wake = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._workers = [
            threading.Thread(target=self._work, name=f"chairlift-kernels-{index}", daemon=True)
            for index in range(1, num_threads)
        ]
        for worker in self._workers:
            worker.start()

    @property
    def num_asleep(self) -> int:
        """Workers that wait to be woken."""
        return self._num_asleep

    def run(self, body_address: int, *arguments: int, parallel: bool = True) -> None:
        """Run a body to its end; workers that are awake help."""
        packed = (ctypes.c_int64 * (NUM_COUNTERS + len(arguments)))(0, 0, *arguments)
        if not parallel or not self._workers:
            _BODY(body_address)(ctypes.addressof(packed))
            return
        if self._num_asleep:
            self._wake_all()
        job = (ctypes.c_int64 * 3)(self._state.ctypes.data, body_address, ctypes.addressof(packed))
        self._run_job(ctypes.addressof(job))

    def close(self) -> None:
        """End the threads."""
        self._is_closed = True
        for worker in self._workers:
            while worker.is_alive():
                self._wake_all()
                worker.join(timeout=0.01)

    def _wake_all(self) -> None:
        with self._lock:
            if self._num_asleep:
                self._wake.release(self._num_asleep)
            self._num_asleep = 0

    def _work(self) -> None:
        last_job = np.zeros(1, np.int64)
        while not self._is_closed:
            self._serve(last_job, self._spins)
            with self._lock:
                self._num_asleep += 1
            # A job may have begun just before: who began it saw nobody asleep, and will wake nobody.
            if self._serve(last_job, _LAST_SPINS):
                with self._lock:
                    if self._num_asleep:
                        self._num_asleep -= 1
                        continue
            self._wake.acquire()

    def _serve(self, last_job: np.ndarray[Any, np.dtype[np.int64]], num_spins: int) -> bool:
        """Help with jobs until none came for so many spins; return whether any did."""
        before = last_job[0]
        own = (ctypes.c_int64 * 3)(self._state.ctypes.data, last_job.ctypes.data, num_spins)
        self._serve_jobs(ctypes.addressof(own))
        return bool(last_job[0] != before)

    def _measured_spins(self) -> int:
        """How many spins wait for long enough: one takes from 10 to 150 ns, depending on the processor."""
        nothing = np.zeros(STATE_FIELDS, np.int64)
        own = (ctypes.c_int64 * 3)(nothing.ctypes.data, nothing.ctypes.data, _FIRST_SPINS)
        taken_s = 1.0
        for _ in range(3):  # the first time, code and data are not yet in the caches
            start_s = time.perf_counter()
            self._serve_jobs(ctypes.addressof(own))
            taken_s = min(taken_s, time.perf_counter() - start_s)
        return min(_MAX_SPINS, max(_FIRST_SPINS, int(_FIRST_SPINS * _WAIT_S / max(taken_s, 1e-9))))


class OpenMPThreads:
    """torch's own OpenMP threads, started through the very library that torch is linked with.

    Where that library cannot be found, bodies run on the calling thread.
    """

    def __init__(self, num_threads: int) -> None:
        self._start = _find_parallel_start()
        self.num_threads = num_threads if self._start is not None else 1

    def run(self, body_address: int, *arguments: int, parallel: bool = True) -> None:
        """Run a body to its end; all threads take part."""
        packed = (ctypes.c_int64 * (NUM_COUNTERS + len(arguments)))(0, 0, *arguments)
        if parallel and self.num_threads > 1:
            self._start(body_address, packed, self.num_threads, 0)
        else:
            _BODY(body_address)(ctypes.addressof(packed))

    def close(self) -> None:
        """Nothing to end: the threads are torch's."""


def _find_parallel_start() -> Any:
    """Return ``GOMP_parallel`` of the OpenMP library that torch itself uses; LLVM's and Intel's have it as well."""
    folder = Path(torch.__file__).parent / "lib"
    for path in sorted(folder.glob("libtorch_cpu.*")):
        try:
            start = ctypes.CDLL(str(path)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        start.restype = None
        start.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        return start
    return None
