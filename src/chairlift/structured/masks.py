"""Which tokens may come next, for all rows of a step that follow a grammar, at once.

Knows nothing of tensors or plans. What a request's matcher has seen is compared with the output it is shown, so it
needs no word of what happened in between: a request that was preempted, in whatever way, and comes back with its output
begins a new matcher that reads that output.
"""

import logging
from collections.abc import Sequence

import llguidance
import llguidance.numpy
import numpy as np
from numpy.typing import NDArray

from chairlift.core.grammar import Grammar
from chairlift.errors import ChairliftError
from chairlift.structured.compiler import GrammarCompiler

logger = logging.getLogger(__name__)

_BITS = 32


class GrammarState:
    """Where one running request is in its grammar; made anew whenever an executor learns of the request.

    ::

        output    [ num_read tokens, read by the matcher | new since the last mask )
    """

    __slots__ = ("grammar", "matcher", "num_read")

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.matcher: llguidance.LLMatcher | None = None
        self.num_read = 0


class GrammarMasks:
    """Makes masks with the matchers of a compiler."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._threads: llguidance.LLExecutor | None = None

    def masks(self, rows: Sequence[tuple[GrammarState, Sequence[int]]]) -> NDArray[np.int32]:
        """One row of bits [R, W] for each state; bit ``t % 32`` of word ``t // 32`` allows token ``t``.

        Beside each state stands its output from ``num_read`` on. A row without any bit has failed: its grammar became
        too costly, or its output does not follow it.
        """
        ready: list[tuple[llguidance.LLMatcher, int]] = []
        for row, (state, new_tokens) in enumerate(rows):
            matcher = self._advance(state, new_tokens)
            if matcher is not None:
                ready.append((matcher, row))
        bits = np.zeros((len(rows), -(-self._compiler.vocab_size // _BITS)), np.int32)
        if self._threads is None:
            self._threads = llguidance.LLExecutor()
        if ready:
            llguidance.numpy.fill_next_token_bitmask_par(self._threads, ready, bits)
        for matcher, row in ready:
            if matcher.is_error():
                bits[row] = 0
                logger.error("a grammar could not be followed: %s", matcher.get_error().partition("<state>")[0])
        return bits

    def _advance(self, state: GrammarState, new_tokens: Sequence[int]) -> llguidance.LLMatcher | None:
        if state.matcher is None:
            try:
                state.matcher = self._compiler.matcher(state.grammar)
            except ChairliftError as error:
                logger.error("a grammar could not be compiled again: %s", error.message)
                return None
        matcher = state.matcher
        state.num_read += len(new_tokens)
        # Once a grammar is complete only an end token can follow it, and what comes behind that is not looked at.
        if new_tokens and not matcher.is_stopped():
            matcher.consume_tokens(list(new_tokens))
        return None if matcher.is_error() else matcher


def allowed_tokens(bits: NDArray[np.int32]) -> list[int]:
    """The tokens that one row of a mask allows."""
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()


def unpack(bits: NDArray[np.int32], vocab_size: int) -> NDArray[np.bool_]:
    """Masks [R, W] as booleans [R, V]; tokens that they do not tell about are not allowed."""
    return np.unpackbits(bits.view(np.uint8), axis=1, count=vocab_size, bitorder="little").view(np.bool_)
