"""Holds requests back until their grammar is compiled, so that nobody else waits for it.

Knows nothing of the scheduler: whoever drives the engine asks which requests may join the queue now.

::

    held ─────────────────────────> compiling ──────────────────────────> may join the queue
         others' grammars are compiled        its own is, too long: 400
         before it, too long: 503
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from chairlift.core.grammar import Grammar
from chairlift.core.request import BlockedOn, Phase
from chairlift.engine.messages import AddRequest, RequestStatus
from chairlift.errors import ChairliftError, InvalidRequestError, OverloadedError
from chairlift.structured.compiler import GrammarCompiler, find_error

_NS_PER_S = 1e9


@dataclass(slots=True)
class _Held:
    message: AddRequest
    grammar: Grammar
    preparation: "Future[Any]"
    since_ns: int
    compiling_since_ns: int | None = None


class GrammarGate:
    """Requests whose grammar is being compiled, in the order in which they came."""

    def __init__(self, compiler: GrammarCompiler | None) -> None:
        self._compiler = compiler
        self._timeout_s = 0.0 if compiler is None else compiler.timeout_s
        self._held: list[_Held] = []

    def __len__(self) -> int:
        return len(self._held)

    def holds(self, message: AddRequest, now_ns: int) -> bool:
        """Whether a request has to wait for its grammar; it is then among the held ones.

        Raises:
            InvalidRequestError: the grammar cannot be used.
        """
        grammar = message.sampling.grammar
        if grammar is None:
            return False
        if self._compiler is None:
            raise InvalidRequestError(f"{grammar.param}: this engine follows no grammars", param=grammar.param)
        preparation = self._compiler.prepare(grammar)
        if not preparation.done():
            held = _Held(message, grammar, preparation, now_ns)
            _note_beginning(held, now_ns)
            self._held.append(held)
            return True
        error = find_error(preparation, grammar)
        if error is not None:
            raise error
        return False

    def take_settled(self, now_ns: int) -> list[tuple[AddRequest, ChairliftError | None]]:
        """Remove and return the requests that need not wait any longer, with the reason why they are refused, if so."""
        if not self._held:
            return []
        for held in self._held:
            _note_beginning(held, now_ns)
        settled = [(held, self._outcome(held)) for held in self._held if self._is_settled(held, now_ns)]
        if settled:
            self._remove([held for held, _ in settled])
        return [(held.message, error) for held, error in settled]

    def drop(self, request_ids: Iterable[int]) -> None:
        """Forget held requests that nobody wants any more; unknown ids are fine."""
        gone = frozenset(request_ids)
        self._remove([held for held in self._held if held.message.request_id in gone])

    def statuses(self, now_ns: int, request_ids: Sequence[int] | None = None) -> list[RequestStatus]:
        """What there is to say about held choices; about all of them if none are named."""
        return [
            _status(held, choice.request_id, now_ns)
            for held in self._held
            for choice in held.message.choices
            if request_ids is None or choice.request_id in request_ids
        ]

    def _remove(self, gone: Sequence[_Held]) -> None:
        """Forget requests, and grammars that nobody waits for any more: others wait for the threads."""
        ids = {id(held) for held in gone}
        self._held = [held for held in self._held if id(held) not in ids]
        wanted = {id(held.preparation) for held in self._held}
        for held in gone:
            if id(held.preparation) not in wanted:
                held.preparation.cancel()

    def _is_settled(self, held: _Held, now_ns: int) -> bool:
        since_ns = held.since_ns if held.compiling_since_ns is None else held.compiling_since_ns
        return held.preparation.done() or now_ns - since_ns > self._timeout_s * _NS_PER_S

    def _outcome(self, held: _Held) -> ChairliftError | None:
        param = held.grammar.param
        if held.preparation.done():
            return find_error(held.preparation, held.grammar)
        if held.compiling_since_ns is None:
            return OverloadedError(
                f"the server is busy with the grammars of other requests: {param} waited {self._timeout_s:g} s "
                "to be compiled (--grammar-timeout) and had no turn; try again"
            )
        return InvalidRequestError(
            f"{param} took more than {self._timeout_s:g} s to compile (--grammar-timeout)", param=param
        )


def _note_beginning(held: _Held, now_ns: int) -> None:
    if held.compiling_since_ns is None and held.preparation.running():
        held.compiling_since_ns = now_ns


def _status(held: _Held, request_id: int, now_ns: int) -> RequestStatus:
    return RequestStatus(
        request_id=request_id,
        phase=Phase.WAITING.value,
        tier=held.message.priority,
        tenant=held.message.tenant,
        blocked_on=BlockedOn.GRAMMAR.value,
        reason=f"waits until its grammar is compiled: {held.grammar.param}"
        + ("" if held.compiling_since_ns is not None else ", behind those of other requests"),
        waited_s=(now_ns - held.since_ns) / _NS_PER_S,
        num_prompt_tokens=len(held.message.prompt_token_ids),
        num_output_tokens=0,
        max_tokens=held.message.sampling.max_tokens or 0,
        num_computed_tokens=0,
        num_kv_pages=0,
        num_preemptions=0,
    )
