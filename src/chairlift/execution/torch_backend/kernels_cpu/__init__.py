"""Model operations for CPUs, compiled by Numba and run on torch's own OpenMP threads.

Knows nothing of model architectures. How it fits together: :mod:`machine` has the machine operations that Numba lacks;
:mod:`threads` starts a compiled body on all threads; each other module has bodies, plain functions of one address
that points at the int64 arguments::

    arguments   0: next work item (shared counter) | 1: next thread number (shared counter) | 2...: the body's own

Threads take work items from the shared counter until none is left, so that a slow core delays only its last item.
"""
