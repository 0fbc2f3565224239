"""Compiles grammars beside the engine's steps, in threads of its own, and remembers the last ones.

Knows nothing of requests or steps. The library works without Python's lock, and within limits that bound what one
grammar may cost: a text that asks for more is refused here, or fails alone when a mask would take too long.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

import llguidance
from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

from chairlift.core.grammar import Grammar
from chairlift.errors import ChairliftError, InvalidRequestError
from chairlift.structured.character_classes import CLASS_IN_JSON, with_ecma_patterns
from chairlift.structured.deep_stack import run_with_room_for
from chairlift.structured.sources import SCHEMA_KEY, WRITTEN_KEY
from chairlift.structured.threads import Task, TaskThreads

MAX_COMPILED = 256
"""Compiled grammars that are kept for the next request that asks for the same."""

_NUM_THREADS = 2
_NS_PER_S = 1e9
_MAX_ERROR_CHARS = 300

_LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 30_000,
    "step_max_items": 10_000,
    "max_lexer_states": 20_000,
    "max_items_in_row": 5_000,
    "max_grammar_size": 100_000,
}
"""So that no mask takes long, with room for the schemas of 512 tools; a lexer's states take a kilobyte or two each."""

_LIMITS_OF_WRITTEN: dict[str, Any] = {
    **_LIMITS,
    "step_max_items": 5_000,
    "max_items_in_row": 1_000,
    "max_grammar_size": 4_000,
}
"""Of grammars that somebody wrote: only they can be so ambiguous that a row costs the cube of its items. That of C has
less than 200 symbols."""

_USED_UP = {
    "too many states": ("max_lexer_states", "its expressions need more than {} states together"),
    "too many expressions constructed": (
        "step_lexer_fuel",
        "its expressions need more than {} derivatives in a step",
    ),
}
"""How the library says that one of these limits was reached. All matchers of a grammar share what has no room then."""

_MAX_RULES = 2000
"""More would be too many symbols, but the library may take minutes to say so."""
_MAX_GBNF_RULES = 1000
"""To translate them takes time that grows with the square of their number: half a second for so many."""
_RULE = re.compile(r"""^[ \t]*[?!]?[\w-]+[^\n:"'/|]*:""", re.MULTILINE)

_TRIAL_STEPS = 5
"""The first mask may take what so many steps may, as nobody else waits for it."""


class CompiledGrammar:
    """What matchers begin from. They share what they find out about the grammar, and wait for each other for it."""

    __slots__ = ("_beginning", "first_mask", "is_lost", "is_used_up", "is_written")

    def __init__(self, beginning: llguidance.LLMatcher, first_mask: bytes, *, is_written: bool) -> None:
        self._beginning = beginning
        self.is_written = is_written
        """Whether somebody wrote a part of it by hand: limits alone do not keep the masks of such a grammar short."""
        self.first_mask = first_mask
        """What may come first, one bit a token: many choices begin at once, and all with this."""
        self.is_lost = False
        """Whether a matcher of it works on without an end, so that others would wait for it."""
        self.is_used_up = False
        """Whether a matcher of it found that there is no room for more of what they share."""

    def matcher(self) -> llguidance.LLMatcher:
        """A matcher at the beginning of the grammar."""
        return self._beginning.deep_copy()


class GrammarCompiler:
    """Turns grammars into matchers.

    Args:
        load_vocabulary: makes the vocabulary with these end tokens; called once, in a thread, when the first grammar
            comes.
        max_bytes: size of a grammar's text at most.
        timeout_s: how long a request waits for its grammar at most.
        step_time_s: of a processor, that the masks of a request may take in one step; any time if ``None``.
    """

    def __init__(
        self,
        load_vocabulary: Callable[[Collection[int]], llguidance.LLTokenizer],
        *,
        max_bytes: int,
        timeout_s: float,
        step_time_s: float | None = None,
        end_tokens: Collection[int] = (),
    ) -> None:
        self.end_tokens = end_tokens
        """Set before the first grammar, by whoever learns them from the model."""
        self.timeout_s = timeout_s
        self.mask_limit_ns = None if step_time_s is None else int(step_time_s * _NS_PER_S)
        self._max_bytes = max_bytes
        self._load_vocabulary = load_vocabulary
        self._vocabulary: llguidance.LLTokenizer | None = None
        self._vocabulary_lock = Lock()
        self._lock = Lock()
        self._compiled: OrderedDict[str, CompiledGrammar] = OrderedDict()
        self._pending: dict[str, Future[CompiledGrammar]] = {}
        self._threads: ThreadPoolExecutor | None = None

    @property
    def vocab_size(self) -> int:
        """Tokens that masks tell about; 0 before the first grammar was compiled."""
        return 0 if self._vocabulary is None else self._vocabulary.vocab_size

    def prepare(self, grammar: Grammar) -> "Future[CompiledGrammar]":
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
                ready: Future[CompiledGrammar] = Future()
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

    def find(self, grammar: Grammar) -> CompiledGrammar | None:
        """The compiled grammar, if it was not forgotten."""
        with self._lock:
            return self._compiled.get(grammar.source)

    def compiled(self, grammar: Grammar) -> CompiledGrammar:
        """The compiled grammar, made now if it was forgotten meanwhile.

        Raises:
            InvalidRequestError: it is no grammar.
        """
        return self.find(grammar) or self._compile(grammar)

    def compiled_apart(self, grammar: Grammar) -> CompiledGrammar:
        """The grammar compiled once more, for one request alone.

        Raises:
            InvalidRequestError: it is no grammar.
        """
        return self._build(grammar)

    def forget(self, grammar: Grammar, compiled: CompiledGrammar) -> None:
        """Have it compiled anew for whoever asks next."""
        with self._lock:
            if self._compiled.get(grammar.source) is compiled:
                del self._compiled[grammar.source]

    def close(self) -> None:
        """Compile nothing more; what is being compiled is not waited for."""
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)

    def _settle(self, source: str) -> None:
        with self._lock:
            self._pending.pop(source, None)

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        compiled = self._build(grammar)
        with self._lock:
            self._compiled[grammar.source] = compiled
            while len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        return compiled

    def _build(self, grammar: Grammar) -> CompiledGrammar:
        with self._vocabulary_lock:
            if self._vocabulary is None:
                self._vocabulary = self._load_vocabulary(self.end_tokens)
        vocabulary, (text, is_written) = self._vocabulary, _translated(grammar)
        matcher = _new_matcher(vocabulary, text, is_written=is_written)
        if matcher.is_error():
            raise _refusal_of_part(vocabulary, grammar, text) or _refusal(grammar, matcher.get_error())
        first_mask = self._find_first_mask(grammar, matcher.deep_copy())
        return CompiledGrammar(matcher, first_mask, is_written=is_written)

    def _find_first_mask(self, grammar: Grammar, matcher: llguidance.LLMatcher) -> bytes:
        """Make the first mask, which finds out what the text alone does not say: that nothing fits, or what it costs.

        Raises:
            InvalidRequestError: nothing fits, or it costs too much.
        """
        # For want of a limit it is made here, by the thread that compiles.
        limit_ns = None if self.mask_limit_ns is None else _TRIAL_STEPS * self.mask_limit_ns
        found: list[bytes] = []
        trial = Task([lambda: found.append(matcher.compute_bitmask())], limit_ns)
        threads = TaskThreads(1, "chairlift-grammar-trial")
        threads.run([trial])
        threads.close()
        if trial.is_given_up:
            raise _refusal(grammar, "to find out what fits takes longer than --grammar-step-time allows")
        if matcher.is_error():
            raise _refusal(grammar, matcher.get_error())
        return found[0]


def find_error(preparation: "Future[Any]", grammar: Grammar) -> ChairliftError | None:
    """Why a finished preparation failed; ``None`` if it did not."""
    error = preparation.exception(timeout=0)
    if error is None or isinstance(error, ChairliftError):
        return error
    return InvalidRequestError(f"{grammar.param} cannot be compiled: {type(error).__name__}", param=grammar.param)


def _new_matcher(vocabulary: llguidance.LLTokenizer, text: str, *, is_written: bool) -> llguidance.LLMatcher:
    limits = llguidance.LLParserLimits(**(_LIMITS_OF_WRITTEN if is_written else _LIMITS))
    # The library follows rules and references as deep as they go, and looks at its limits only afterwards.
    return run_with_room_for(len(text), lambda: llguidance.LLMatcher(vocabulary, text, log_level=0, limits=limits))


def _refusal_of_part(vocabulary: llguidance.LLTokenizer, grammar: Grammar, text: str) -> InvalidRequestError | None:
    """Why a part is no grammar by itself, if there is such a part: the library does not say which one it means."""
    owners = {name: owner for name, *owner in grammar.owners}
    for part in json.loads(text)["grammars"] if owners else ():
        owner = owners.get(part.pop("name", ""))
        if owner is None:
            continue
        matcher = _new_matcher(vocabulary, json.dumps({"grammars": [part]}), is_written=False)
        if matcher.is_error():
            what, param = owner
            reason = plain_words(matcher.get_error())
            return InvalidRequestError(f"the schema of {what} cannot be followed: {reason}", param=param)
    return None


def _translated(grammar: Grammar) -> tuple[str, bool]:
    """The text as the library takes it, and whether somebody wrote a part of it by hand."""
    if f'"{WRITTEN_KEY}"' not in grammar.source and CLASS_IN_JSON.search(grammar.source) is None:
        return grammar.source, False
    is_written = False
    try:
        document = json.loads(grammar.source)
        for part in document["grammars"]:
            text = part.pop(WRITTEN_KEY, None)
            if text is not None:
                is_gbnf = "::=" in text
                _check_num_rules(grammar, text, _MAX_GBNF_RULES if is_gbnf else _MAX_RULES)
                part["lark_grammar"] = any_to_lark(text) if is_gbnf else text
                is_written = True
            elif isinstance(part.get(SCHEMA_KEY), dict):
                part[SCHEMA_KEY] = with_ecma_patterns(part[SCHEMA_KEY])
        return json.dumps(document), is_written
    except (GbnfToLarkError, RecursionError) as error:
        raise _refusal(grammar, str(error)) from error


def _check_num_rules(grammar: Grammar, text: str, most: int) -> None:
    count = sum(1 for _ in _RULE.finditer(text))
    if count > most:
        raise _refusal(grammar, f"it has {count} rules, but {most} is the most that a grammar of its kind may have")


def _refusal(grammar: Grammar, reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"{grammar.param} cannot be followed: {plain_words(reason)}", param=grammar.param)


def is_used_up(complaint: str) -> bool:
    """Whether the library complains of what all matchers of a grammar share: one that begins anew may go on."""
    return any(words in complaint for words in _USED_UP)


def plain_words(complaint: str) -> str:
    """What the library complains of, with the limit that was reached and without its inner state."""
    for words, (limit, meaning) in _USED_UP.items():
        if words in complaint:
            return f"{meaning.format(_LIMITS[limit])}, which is the most that any grammar may (a fixed limit)"
    # Behind the message stands the library's whole state, or where it was.
    said = " ".join(complaint.partition("<state>")[0].partition("<backtrace>")[0].split())
    if said in {"NoExtensionBias", "NoExtension", ""}:
        said = "no text fits it"
    return said if len(said) <= _MAX_ERROR_CHARS else said[:_MAX_ERROR_CHARS] + "…"
