"""Model operations for CPUs, compiled by Numba and run on torch's own OpenMP threads.

Knows nothing of model architectures. How it fits together: :mod:`machine` has the machine operations that Numba lacks;
:mod:`compilation` compiles bodies, and :mod:`threads` starts one on all threads; each other module has bodies, plain
functions of one address that points at the int64 arguments::

    arguments   0: next work item (shared counter) | 1: next thread number (shared counter) | 2...: the body's own

Threads take work items from the shared counter until none is left, so that a slow core delays only its last item.

In float32 a row's result never depends on the rows beside it, nor on how a prompt was cut into chunks: every sum is
added up in an order that only the row itself decides.

Compiled bodies are cached beside the source. Numba notices when the file of a body changes, but not when a file that
the body calls into does: after a change in :mod:`machine` or :mod:`vector_math`, delete ``__pycache__/*.nbi``.
"""
