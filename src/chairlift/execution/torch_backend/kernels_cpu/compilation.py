"""Compiles loop bodies, and says so where that takes long enough for somebody to wonder.

Knows nothing of what bodies compute, or of who runs them.
"""

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from threading import Timer
from typing import Any

from numba import cfunc, types

logger = logging.getLogger(__name__)

_LONG_S = 2.0
"""What lies in a cache is there sooner."""


class CompilationNotice:
    """Tells of the first body that takes long, for whoever sees warnings alone, and of each, for whoever sees more.

    Args:
        after_s: how long is long.
    """

    def __init__(self, after_s: float = _LONG_S) -> None:
        self._after_s = after_s
        self._has_told = False

    @contextmanager
    def of(self, name: str) -> Generator[None]:
        """Compile something of that name within."""
        timer = Timer(self._after_s, self._tell, (name,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _tell(self, name: str) -> None:
        if not self._has_told:
            self._has_told = True
            logger.warning(
                "compiling kernels for this processor; it takes about half a minute, and later starts find them on disk"
            )
        logger.info("compiling the kernel %s", name)


_notice = CompilationNotice()


def compile_body(body: Callable[[int], None]) -> int:
    """Compile a loop body, once per process and from a cache on disk where one can be written; return its address."""
    return _compile(body).address


@cache
def _compile(body: Callable[[int], None]) -> Any:
    # Kept for ever: machine code lives as long as the object that Numba returns for it.
    signature = types.void(types.int64)
    options = {"error_model": "numpy", "fastmath": True}
    with _notice.of(body.__name__.removesuffix("_body")):
        try:
            return cfunc(signature, cache=True, **options)(body)
        except RuntimeError as error:  # Numba found no place for its cache
            logger.warning("%s: every start compiles it again, unless NUMBA_CACHE_DIR names a folder", error)
            return cfunc(signature, **options)(body)
