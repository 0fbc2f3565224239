"""Compiles grammars beside the engine's steps, in threads of its own, and remembers the last ones.

Knows nothing of requests or steps. The library works without Python's lock, and within limits that bound what one
grammar may cost: a text that asks for more is refused here, or fails alone when a mask would take too long.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

import llguidance
from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

from chairlift.core.grammar import Grammar
from chairlift.errors import ChairliftError, InvalidRequestError
from chairlift.structured.sources import GBNF_KEY

MAX_COMPILED = 256
"""Compiled grammars that are kept for the next request that asks for the same."""

_NUM_THREADS = 2
_MAX_ERROR_CHARS = 300

_LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 30_000,
    "step_max_items": 10_000,
    "max_lexer_states": 50_000,
    "max_items_in_row": 2_000,
    "max_grammar_size": 500_000,
}
"""So that the mask of one step takes about a tenth of a second at the very worst, and a thousand times less usually."""


class GrammarCompiler:
    """Turns grammars into matchers.

    Args:
        load_vocabulary: makes the vocabulary with these end tokens; called once, in a thread, when the first grammar
            comes.
        max_bytes: size of a grammar's text at most.
        timeout_s: how long a request waits for its grammar at most.
    """

    def __init__(
        self,
        load_vocabulary: Callable[[Collection[int]], llguidance.LLTokenizer],
        *,
        max_bytes: int,
        timeout_s: float,
        end_tokens: Collection[int] = (),
    ) -> None:
        self.end_tokens = end_tokens
        """Set before the first grammar, by whoever learns them from the model."""
        self.timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._load_vocabulary = load_vocabulary
        self._vocabulary: llguidance.LLTokenizer | None = None
        self._vocabulary_lock = Lock()
        self._lock = Lock()
        self._compiled: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()
        self._pending: dict[str, Future[llguidance.LLMatcher]] = {}
        self._threads: ThreadPoolExecutor | None = None

    @property
    def vocab_size(self) -> int:
        """Tokens that masks tell about; 0 before the first grammar was compiled."""
        return 0 if self._vocabulary is None else self._vocabulary.vocab_size

    def prepare(self, grammar: Grammar) -> "Future[llguidance.LLMatcher]":
        """Begin to compile a grammar; its result need not be looked at, its exception is the refusal.

        Raises:
            InvalidRequestError: it is too large.
        """
        num_bytes = len(grammar.source.encode(errors="replace"))
        if num_bytes > self._max_bytes:
            raise InvalidRequestError(
                f"{grammar.param} becomes a grammar of {num_bytes} bytes, but --max-grammar-bytes is {self._max_bytes}",
                param=grammar.param,
            )
        with self._lock:
            known = self._compiled.get(grammar.source)
            if known is not None:
                self._compiled.move_to_end(grammar.source)
                ready: Future[llguidance.LLMatcher] = Future()
                ready.set_result(known)
                return ready
            pending = self._pending.get(grammar.source)
            if pending is not None:
                return pending
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="chairlift-grammar")
            pending = self._pending[grammar.source] = self._threads.submit(self._compile, grammar)
        # Not under the lock: one that is done already settles here and now.
        pending.add_done_callback(lambda _: self._settle(grammar.source))
        return pending

    def matcher(self, grammar: Grammar) -> llguidance.LLMatcher:
        """A matcher at the beginning of the grammar, compiled now if it was forgotten meanwhile.

        Raises:
            InvalidRequestError: it is no grammar.
        """
        with self._lock:
            known = self._compiled.get(grammar.source)
        return (known or self._compile(grammar)).deep_copy()

    def close(self) -> None:
        """Compile nothing more; what is being compiled is not waited for."""
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)

    def _settle(self, source: str) -> None:
        with self._lock:
            self._pending.pop(source, None)

    def _compile(self, grammar: Grammar) -> llguidance.LLMatcher:
        with self._vocabulary_lock:
            if self._vocabulary is None:
                self._vocabulary = self._load_vocabulary(self.end_tokens)
        matcher = llguidance.LLMatcher(
            self._vocabulary, _translated(grammar), log_level=0, limits=llguidance.LLParserLimits(**_LIMITS)
        )
        if matcher.is_error():
            raise _refusal(grammar, matcher.get_error())
        # The first mask finds out what the text alone does not say: that nothing fits, or that it costs too much.
        trial = matcher.deep_copy()
        trial.compute_bitmask()
        if trial.is_error():
            raise _refusal(grammar, trial.get_error())
        with self._lock:
            self._compiled[grammar.source] = matcher
            while len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        return matcher


def find_error(preparation: "Future[Any]", grammar: Grammar) -> ChairliftError | None:
    """Why a finished preparation failed; ``None`` if it did not."""
    error = preparation.exception(timeout=0)
    if error is None or isinstance(error, ChairliftError):
        return error
    return InvalidRequestError(f"{grammar.param} cannot be compiled: {type(error).__name__}", param=grammar.param)


def _translated(grammar: Grammar) -> str:
    if f'"{GBNF_KEY}"' not in grammar.source:
        return grammar.source
    document = json.loads(grammar.source)
    try:
        for part in document["grammars"]:
            if GBNF_KEY in part:
                part["lark_grammar"] = any_to_lark(part.pop(GBNF_KEY))
    except (GbnfToLarkError, RecursionError) as error:
        raise _refusal(grammar, str(error)) from error
    return json.dumps(document)


def _refusal(grammar: Grammar, reason: str) -> InvalidRequestError:
    # Behind the message stands the library's whole state.
    words = " ".join(reason.partition("<state>")[0].split())
    if words in {"NoExtensionBias", "NoExtension", ""}:
        words = "no text fits it"
    shown = words if len(words) <= _MAX_ERROR_CHARS else words[:_MAX_ERROR_CHARS] + "…"
    return InvalidRequestError(f"{grammar.param} cannot be followed: {shown}", param=grammar.param)
