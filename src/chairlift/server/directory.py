"""The requests that are alive, by the ids that clients know. Knows nothing of what they wait for."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from chairlift.engine.terms import Terms
from chairlift.server.access import Caller


class Choices(Protocol):
    """The choices of a request."""

    @property
    def live_choices(self) -> list[tuple[int, int]]:
        """Index of each choice that has not ended, and the id under which the engine explains it."""
        ...

    def cancel(self) -> None:
        """End everything that still runs."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class LiveRequest:
    """A request that was accepted, and whose it is: the number of the key that it came with."""

    id: str
    key_number: int | None
    terms: Terms
    choices: Choices


class RequestDirectory:
    """Finds live requests, for those who may see them."""

    def __init__(self) -> None:
        self._by_id: dict[str, LiveRequest] = {}
        self._by_label: dict[tuple[int, str], dict[str, LiveRequest]] = {}
        self._by_engine_id: dict[int, LiveRequest] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    @contextmanager
    def listed(self, live: LiveRequest) -> Generator[None]:
        """List a request for as long as this is open."""
        engine_ids = [engine_id for _, engine_id in live.choices.live_choices]
        label = None if live.key_number is None or live.terms.label is None else (live.key_number, live.terms.label)
        self._by_id[live.id] = live
        self._by_engine_id.update(dict.fromkeys(engine_ids, live))
        if label is not None:
            self._by_label.setdefault(label, {})[live.id] = live
        try:
            yield
        finally:
            del self._by_id[live.id]
            for engine_id in engine_ids:
                del self._by_engine_id[engine_id]
            if label is not None:
                labelled = self._by_label[label]
                del labelled[live.id]
                if not labelled:
                    del self._by_label[label]

    def find(self, name: str, caller: Caller) -> LiveRequest | None:
        """The live request of this id, or the newest one that the caller's key sent under this label; if it is the
        caller's, or the caller is the administrator.
        """
        live = self._by_id.get(name)
        if live is not None:
            return live if caller.is_admin or live.key_number == caller.key_number else None
        if caller.key_number is None:
            return None
        labelled = self._by_label.get((caller.key_number, name))
        return None if labelled is None else next(reversed(labelled.values()))

    def find_by_engine_id(self, engine_id: int) -> LiveRequest | None:
        """The live request that one of the engine's choices belongs to."""
        return self._by_engine_id.get(engine_id)
