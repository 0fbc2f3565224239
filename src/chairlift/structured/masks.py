"""Which tokens may come next, for all rows of a step that follow a grammar, at once.

Knows nothing of tensors or plans. What a request's matcher has seen is compared with the output it is shown, so it
needs no word of what happened in between: a request that was preempted, in whatever way, and comes back with its output
begins a new matcher that reads that output.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from weakref import WeakValueDictionary

import llguidance
import numpy as np
from numpy.typing import NDArray

from chairlift.core.grammar import Grammar
from chairlift.errors import ChairliftError
from chairlift.structured.compiler import CompiledGrammar, GrammarCompiler, is_used_up, plain_words
from chairlift.structured.mask_budget import MaskBudget
from chairlift.structured.threads import Task, TaskThreads

logger = logging.getLogger(__name__)

_BITS = 32
_MAX_THREADS = 8
_TOKENS_AT_ONCE = 64
"""Read before it is looked at what they took: a request that comes back brings its whole output."""

_MAX_BEGINNINGS = 3
"""In one step, for requests that share their grammars with others who use them up."""


class GrammarState:
    """Where one running request is in its grammar; made anew whenever an executor learns of the request.

    ::

        output    [ num_read tokens, read by the matcher | new since the last mask )
    """

    __slots__ = (
        "begun_at",
        "budget",
        "compiled",
        "complaint",
        "failure",
        "grammar",
        "is_suspect",
        "matcher",
        "num_masks",
        "tokens",
    )

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.compiled: CompiledGrammar | None = None
        self.matcher: llguidance.LLMatcher | None = None
        self.budget: MaskBudget | None = None
        self.failure: str | None = None
        """Why no further mask is made: what may stand behind the name of the request's field."""
        self.num_masks = 0
        self.tokens: list[int] = []
        """What was read."""
        self.complaint: str | None = None
        """What its matcher has no room for: with others that share it, or all by itself."""
        self.is_suspect = False
        """Whether it found that first, so that it may be the one who needs so much."""
        self.begun_at: int | None = None
        """Tokens that there were when it began again for that reason, all by itself."""

    @property
    def num_read(self) -> int:
        """Tokens of the output that need not be shown again."""
        return len(self.tokens)


_Row = tuple[int, GrammarState, Sequence[int]]
"""(place in the masks, state, tokens that its matcher has not read)."""


class GrammarMasks:
    """Makes masks with the matchers of a compiler."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._threads = TaskThreads(min(_num_cores(), _MAX_THREADS), "chairlift-masks")
        # By the grammar's identity: the choices of a request have the very same one. A budget keeps its grammar alive,
        # so that no other one gets its address.
        self._budgets: WeakValueDictionary[int, _RequestBudget] = WeakValueDictionary()

    def masks(self, rows: Sequence[tuple[GrammarState, Sequence[int]]]) -> NDArray[np.int32]:
        """One row of bits [R, W] for each state; bit ``t % 32`` of word ``t // 32`` allows token ``t``.

        Beside each state stands its output from ``num_read`` on. A row without any bit has failed: its grammar became
        too costly, or its output does not follow it.
        """
        for state, _ in rows:
            self._begin(state)
        bits = np.zeros((len(rows), -(-self._compiler.vocab_size // _BITS)), np.int32)
        for state, new_tokens in rows:
            state.tokens.extend(new_tokens)
        bits = self._make([(row, state, new_tokens) for row, (state, new_tokens) in enumerate(rows)], bits)
        for _ in range(_MAX_BEGINNINGS):
            full = [(row, state) for row, (state, _) in enumerate(rows) if state.complaint is not None]
            if not full:
                break
            for _, state in full:
                self._begin_again(state)
            bits = self._make([(row, state, state.tokens) for row, state in full], bits)
        for row, (state, _) in enumerate(rows):
            if state.complaint is not None:
                _fail(state, _no_further(state.complaint))
            if state.failure is not None:
                bits[row] = 0
        return bits

    def _make(self, rows: Sequence[_Row], bits: NDArray[np.int32]) -> NDArray[np.int32]:
        """Fill rows; returns the same bits, or a copy if somebody still writes to them."""
        tasks = self._tasks(rows, bits)
        self._threads.run([task for task, _ in tasks])
        for task, states in tasks:
            if task.is_given_up:
                bits = bits.copy()
                self._abandon(states)
        return bits

    def _begin_again(self, state: GrammarState) -> None:
        """Have a matcher that shares nothing with those before it, and if it is a suspect with nobody."""
        if state.compiled is not None:
            self._compiler.forget(state.grammar, state.compiled)
        state.compiled = state.matcher = state.complaint = None
        if not state.is_suspect:
            self._begin(state)
            return
        state.begun_at, state.is_suspect = len(state.tokens), False
        self._follow(state, self._compile(state, self._compiler.compiled_apart))

    def _begin(self, state: GrammarState) -> None:
        if state.budget is None:
            state.budget = self._budget_of(state.grammar)
            state.num_masks = state.budget.num_steps
        if state.matcher is not None or state.failure is not None:
            return
        self._follow(state, self._compiler.find(state.grammar) or self._compile(state, self._compiler.compiled))

    @staticmethod
    def _follow(state: GrammarState, compiled: CompiledGrammar | None) -> None:
        if compiled is not None:
            state.compiled, state.matcher = compiled, compiled.matcher()

    def _compile(
        self, state: GrammarState, compile_now: Callable[[Grammar], CompiledGrammar]
    ) -> CompiledGrammar | None:
        """Compile what was forgotten, if that takes no longer than a mask may."""
        found: list[CompiledGrammar] = []

        def work() -> None:
            try:
                found.append(compile_now(state.grammar))
            except ChairliftError as error:
                _fail(state, f"could not be compiled again: {error.message}")

        task = Task([work], self._compiler.mask_limit_ns)
        self._threads.run([task])
        if task.is_given_up:
            _fail(state, f"had to be compiled again, which takes longer than {_allowance(state)}")
            return None
        return found[0] if found else None

    def _budget_of(self, grammar: Grammar) -> MaskBudget:
        budget = self._budgets.get(id(grammar))
        if budget is None:
            budget = self._budgets[id(grammar)] = _RequestBudget(grammar, self._compiler.mask_limit_ns)
        return budget

    def _tasks(self, rows: Sequence[_Row], bits: NDArray[np.int32]) -> list[tuple[Task, list[GrammarState]]]:
        """One task for each grammar: matchers of the same one share what they find out, and wait for each other."""
        found: dict[int, tuple[CompiledGrammar, list[Callable[[], None]], list[GrammarState]]] = {}
        for row, state, new_tokens in rows:
            if state.compiled is None:
                continue
            if not state.tokens:
                bits[row] = np.frombuffer(state.compiled.first_mask, np.int32)[: bits.shape[1]]
                continue
            _, pieces, states = found.setdefault(id(state.compiled), (state.compiled, [], []))
            pieces.append(partial(_make_mask, state, new_tokens, bits[row]))
            states.append(state)
        limit_ns = self._compiler.mask_limit_ns
        return [
            (Task(pieces, limit_ns if compiled.is_written else None), states)
            for compiled, pieces, states in found.values()
        ]

    def _abandon(self, states: Sequence[GrammarState]) -> None:
        """A mask took too long: nobody may wait for this grammar again, which whoever works on it holds locked."""
        for state in states:
            if state.compiled is not None:
                state.compiled.is_lost = True
                self._compiler.forget(state.grammar, state.compiled)
            if state.failure is None:
                _fail(state, f"took more of a processor for a mask than {_allowance(state)}")


class _RequestBudget(MaskBudget):
    __slots__ = ("grammar",)

    def __init__(self, grammar: Grammar, step_ns: int | None) -> None:
        super().__init__(step_ns)
        self.grammar = grammar


def _make_mask(state: GrammarState, new_tokens: Sequence[int], bits: NDArray[np.int32]) -> None:
    """Read what is new, and write one row."""
    compiled, matcher, budget = state.compiled, state.matcher, state.budget
    if compiled is None or matcher is None or budget is None:
        return
    state.num_masks += 1
    budget.begin(state.num_masks)
    if compiled.is_lost or budget.is_spent:
        _fail(state, f"took more of a processor for its masks than {budget.allowance}")
        return
    _read(matcher, new_tokens, budget, bits)
    if budget.is_spent:
        _fail(state, f"took more of a processor for reading its output than {budget.allowance}")
        return
    start_ns = time.thread_time_ns()
    if not matcher.is_error():
        matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
    budget.spend(time.thread_time_ns() - start_ns, num_masks=1)
    if matcher.is_error():
        complaint, begun_at = matcher.get_error(), state.begun_at
        if is_used_up(complaint) and (begun_at is None or len(state.tokens) >= begun_at + _TOKENS_AT_ONCE):
            state.complaint, state.is_suspect = complaint, not compiled.is_used_up
            compiled.is_used_up = True
        else:
            _fail(state, _no_further(complaint))


def _read(matcher: llguidance.LLMatcher, tokens: Sequence[int], budget: MaskBudget, scratch: NDArray[np.int32]) -> None:
    for start in range(0, len(tokens), _TOKENS_AT_ONCE):
        # Once a grammar is complete only an end token can follow it, and what comes behind that is not looked at.
        if matcher.is_stopped() or budget.is_spent:
            return
        some = list(tokens[start : start + _TOKENS_AT_ONCE])
        start_ns = time.thread_time_ns()
        if start:
            # Reading lives on what the last mask was allowed and did not need.
            matcher.unsafe_compute_mask_ptr(scratch.ctypes.data, scratch.nbytes)
        matcher.consume_tokens(some)
        budget.spend(time.thread_time_ns() - start_ns, num_tokens=len(some))


def _no_further(complaint: str) -> str:
    return f"cannot be followed any further: {plain_words(complaint)}"


def _allowance(state: GrammarState) -> str:
    return "" if state.budget is None else state.budget.allowance


def _fail(state: GrammarState, reason: str) -> None:
    state.failure = reason
    state.matcher = state.compiled = None
    # Whoever asked for it is told; anybody may ask for what cannot be met.
    logger.info("a grammar ends its request: %s %s", state.grammar.param, reason)


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def allowed_tokens(bits: NDArray[np.int32]) -> list[int]:
    """The tokens that one row of a mask allows."""
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()


def unpack(bits: NDArray[np.int32], vocab_size: int) -> NDArray[np.bool_]:
    """Masks [R, W] as booleans [R, V]; tokens that they do not tell about are not allowed."""
    return np.unpackbits(bits.view(np.uint8), axis=1, count=vocab_size, bitorder="little").view(np.bool_)
