"""Holds requests back until their grammar is compiled, so that nobody else waits for it.

Knows nothing of the scheduler: whoever drives the engine asks which requests may join the queue now.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from chairlift.core.grammar import Grammar
from chairlift.core.request import BlockedOn, Phase
from chairlift.engine.messages import AddRequest, RequestStatus
from chairlift.errors import ChairliftError, InvalidRequestError
from chairlift.structured.compiler import GrammarCompiler, find_error

_NS_PER_S = 1e9


@dataclass(slots=True)
class _Held:
    message: AddRequest
    grammar: Grammar
    preparation: "Future[Any]"
    since_ns: int


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
            self._held.append(_Held(message, grammar, preparation, now_ns))
            return True
        error = find_error(preparation, grammar)
        if error is not None:
            raise error
        return False

    def take_settled(self, now_ns: int) -> list[tuple[AddRequest, ChairliftError | None]]:
        """Remove and return the requests that need not wait any longer, with the reason why they are refused, if so."""
        if not self._held:
            return []
        settled = [(held, self._outcome(held, now_ns)) for held in self._held if self._is_settled(held, now_ns)]
        if settled:
            gone = {id(held) for held, _ in settled}
            self._held = [held for held in self._held if id(held) not in gone]
        return [(held.message, error) for held, error in settled]

    def drop(self, request_ids: Iterable[int]) -> None:
        """Forget held requests that nobody wants any more; unknown ids are fine."""
        gone = frozenset(request_ids)
        self._held = [held for held in self._held if held.message.request_id not in gone]

    def statuses(self, now_ns: int, request_ids: Sequence[int] | None = None) -> list[RequestStatus]:
        """What there is to say about held choices; about all of them if none are named."""
        return [
            _status(held, choice.request_id, now_ns)
            for held in self._held
            for choice in held.message.choices
            if request_ids is None or choice.request_id in request_ids
        ]

    def _is_settled(self, held: _Held, now_ns: int) -> bool:
        return held.preparation.done() or now_ns - held.since_ns > self._timeout_s * _NS_PER_S

    def _outcome(self, held: _Held, now_ns: int) -> ChairliftError | None:
        if held.preparation.done():
            return find_error(held.preparation, held.grammar)
        return InvalidRequestError(
            f"{held.grammar.param} took more than {self._timeout_s:g} s to compile (--grammar-timeout)",
            param=held.grammar.param,
        )


def _status(held: _Held, request_id: int, now_ns: int) -> RequestStatus:
    return RequestStatus(
        request_id=request_id,
        phase=Phase.WAITING.value,
        tier=held.message.priority,
        tenant=held.message.tenant,
        blocked_on=BlockedOn.GRAMMAR.value,
        reason=f"waits until its grammar is compiled: {held.grammar.param}",
        waited_s=(now_ns - held.since_ns) / _NS_PER_S,
        num_prompt_tokens=len(held.message.prompt_token_ids),
        num_output_tokens=0,
        max_tokens=held.message.sampling.max_tokens or 0,
        num_computed_tokens=0,
        num_kv_pages=0,
        num_preemptions=0,
    )
