"""What the core calls and others implement: executors, event sinks, page keyers.

Knows nothing of who implements them; each method states what it changes and what must hold before.
"""

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from chairlift.core.events import Event
from chairlift.core.step_plan import StepPlan, StepResult


class Executor(Protocol):
    """Turns plans into tokens. Owns the KV pages' content; the scheduler owns their numbers."""

    def submit(self, plan: StepPlan) -> Any:
        """Start a step and return a handle for :meth:`wait`.

        Plans come in step order, and step ``n + 1`` may be submitted before ``wait`` of step ``n`` if the stepper runs
        at depth 2: the executor must run them one after the other. May compute at once and block.
        Raises whatever went wrong; the engine then ends every running request with an error.
        """
        ...

    def wait(self, handle: Any) -> StepResult:
        """Block until the step of this handle has run, and return its result. Called once per handle, in order."""
        ...

    def close(self) -> None:
        """Free what the executor holds. No step may be in flight; further calls are errors."""
        ...


class EventSink(Protocol):
    """Receives what the scheduler did, in order, within the call that did it. Must not call the scheduler."""

    def emit(self, event: Event) -> None:
        """Take one event. Must not raise."""
        ...


class PageKeyer(Protocol):
    """Names full pages by content, so that equal prefixes get equal keys on every machine.

    A page's key must depend on all tokens before it, and on ``salt`` and ``adapter``.
    """

    def root(self, salt: str | None, adapter: str | None) -> Hashable:
        """Return the key that stands before the first page."""
        ...

    def extend(self, parent: Hashable, token_ids: Sequence[int], page_size: int) -> list[Hashable]:
        """Return one key per full page of ``token_ids``, chained from ``parent``; a partial last page gets none."""
        ...

    def recall(self, parent: Hashable, token_ids: Sequence[int], page_size: int) -> list[Hashable]:
        """Return the first of the keys that :meth:`extend` would: as many as cost next to nothing, perhaps none.

        Whoever keeps no record of what it named before returns none. If naming a page costs nothing, return all.
        """
        ...
