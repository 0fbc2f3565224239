"""How threads hand over jobs: compiled loops around one shared word.

Knows nothing of what a job computes, nor of how threads sleep. The word::

    | job number | workers inside | 1 if the job is open |
    63         16 15             1 0

Who has a job writes its body and arguments, opens the word with the next number, works too, closes the word when no
item is left, and then waits for the workers inside. A worker enters by adding itself to an *open* word in one atomic
exchange, so it can neither enter a job that has ended nor be waited for without having entered.
"""

import os

from numba import njit, types

from chairlift.execution.torch_backend.kernels_cpu.machine import (
    atomic_add,
    atomic_load,
    atomic_replace,
    atomic_store,
    call_body,
    int64_at,
    pause,
)

STATE_FIELDS = 32
"""int64 fields of the shared state; the word and the job lie on cache lines of their own."""
_BODY = 16
_ARGUMENTS = 17
_OPEN = 1
_INSIDE = 2
_INSIDE_MASK = 0xFFFE
_NUMBER_SHIFT = 16
_SPINS_BEFORE_YIELD = 2_000
_SPINS_PER_YIELD = 64

_yield = types.ExternalFunction("sched_yield" if os.name == "posix" else "SwitchToThread", types.int32())


def run_job_body(arguments):
    """Run one job to its end. Arguments: shared state, body, the body's arguments."""
    own = int64_at(arguments)
    state, body, body_arguments = own[0], own[1], own[2]
    fields = int64_at(state)
    fields[_BODY] = body
    fields[_ARGUMENTS] = body_arguments
    number = (atomic_load(state) >> _NUMBER_SHIFT) + 1
    atomic_store(state, (number << _NUMBER_SHIFT) | _OPEN)
    call_body(body, body_arguments)
    atomic_add(state, -_OPEN)
    spins = 0
    while atomic_load(state) & _INSIDE_MASK:
        _wait_a_little(spins)
        spins += 1


def serve_jobs_body(arguments):
    """Help with every job until none came for a while.

    Arguments: shared state, where to keep the last job's number, how often to look for a job in vain.
    """
    own = int64_at(arguments)
    state, last = own[0], int64_at(own[1])
    fields = int64_at(state)
    spins = 0
    while spins < own[2]:
        word = atomic_load(state)
        if word & _OPEN and word >> _NUMBER_SHIFT != last[0]:
            if atomic_replace(state, word, word + _INSIDE):
                last[0] = word >> _NUMBER_SHIFT
                call_body(fields[_BODY], fields[_ARGUMENTS])
                atomic_add(state, -_INSIDE)
                spins = 0
        else:
            pause()
            spins += 1
            if spins % _SPINS_PER_YIELD == 0:  # perhaps to who is about to open the job
                _yield()


@njit(error_model="numpy")
def _wait_a_little(spins):
    if spins > _SPINS_BEFORE_YIELD:
        _yield()
    else:
        pause()
