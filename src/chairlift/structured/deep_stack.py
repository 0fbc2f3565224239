"""Runs what recurses as deeply as somebody's text wants, where there is room for it.

Knows nothing of grammars. Compiled code that runs off its stack ends the process, and with it everybody's requests.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")

_BYTES_PER_CHAR = 2048
"""A level takes about four kilobytes, and a text needs some characters for each: seven in the densest that is known."""
_LEAST_BYTES = 64 << 20
_MOST_BYTES = 1 << 30

_lock = threading.Lock()


def run_with_room_for(num_chars: int, work: Callable[[], Result]) -> Result:
    """Return what ``work`` returns, or raise what it raises, on a stack that a text of so many characters cannot fill.

    The memory is reserved, not taken: a system gives out what is used.

    Raises:
        RuntimeError: the system has no room for such a thread.
    """
    done: Future[Result] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - whoever asked gets it, panics of compiled code included
            done.set_exception(error)

    thread = threading.Thread(target=run, name="chairlift-deep-stack", daemon=True)
    # The size is one for all threads that begin meanwhile; a larger one than they asked for does them no harm.
    with _lock:
        usual = threading.stack_size(min(max(_LEAST_BYTES, num_chars * _BYTES_PER_CHAR), _MOST_BYTES))
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    return done.result()
