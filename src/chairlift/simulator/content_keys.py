"""Names pages of simulated prompts by the content ids of their tokens: a trace's ids serve as page keys.

Knows nothing of token values, since there are none: a token is the id of the run that it belongs to
(:func:`chairlift.workload.items.compact_prompt`), and 0 if it is shared with nobody.

A key is one number, as half-open intervals of bits::

    [0, 24)   the page's place in its request
    [24, 64)  content of the page's last token: a run's id, or a fresh number if nobody else can have it
    [64, ..)  which salt and adapter
"""

from collections.abc import Hashable, Sequence
from typing import cast

_PLACE_BITS = 24
_CONTENT_BITS = 40
_ROOT_BITS = _PLACE_BITS + _CONTENT_BITS
_PLACE_MASK = (1 << _PLACE_BITS) - 1
_FIRST_FRESH = 1 << 32


class ContentKeyer:
    """Implements :class:`~chairlift.core.ports.PageKeyer`.

    A run's id stands for everything before it, so the id of a page's last token names the whole prefix. Output tokens
    are always 0: what a later call of a conversation repeats of an answer is not found, and computed again.
    """

    def __init__(self) -> None:
        self._roots: dict[tuple[str | None, str | None], int] = {}
        self._num_fresh = _FIRST_FRESH

    def root(self, salt: str | None, adapter: str | None) -> Hashable:
        """Return the key that stands before the first page."""
        number = self._roots.setdefault((salt, adapter), len(self._roots))
        return (number << _ROOT_BITS) | _PLACE_MASK

    def extend(self, parent: Hashable, token_ids: Sequence[int], page_size: int) -> list[Hashable]:
        """Return one key per full page of ``token_ids``."""
        before = cast("int", parent)
        place = (before + 1) & _PLACE_MASK
        root = before >> _ROOT_BITS << _ROOT_BITS
        # A request keeps its keys, so that a fresh number still finds its own pages after a preemption.
        self._num_fresh += 1
        fresh = root | self._num_fresh << _PLACE_BITS
        if type(token_ids) is bytearray:
            return list(range(fresh | place, (fresh | place) + len(token_ids) // page_size))
        return [
            (root | content << _PLACE_BITS if content else fresh) | index
            for index, content in enumerate(token_ids[page_size - 1 :: page_size], start=place)
        ]

    def recall(self, parent: Hashable, token_ids: Sequence[int], page_size: int) -> list[Hashable]:
        """Return all keys: they are numbers that need no hashing."""
        return self.extend(parent, token_ids, page_size)
