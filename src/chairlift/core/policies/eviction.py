"""Which cached page is given up first.

Knows nothing of the tree: it ranks one page at a time, and only pages that may go are ever ranked.
"""

from typing import Protocol


class CachedPageView(Protocol):
    """A cached page as eviction policies see it."""

    @property
    def last_used(self) -> int:
        """Logical time of the last release."""
        ...

    @property
    def depth(self) -> int:
        """Pages before it on its path."""
        ...


class EvictionPolicy(Protocol):
    """Orders unused leaves of the prefix tree."""

    def rank(self, page: CachedPageView) -> float:
        """Return the page's rank when it becomes a leaf that nobody leases; the lowest is given up first."""
        ...


class Lru:
    """Least recently used first."""

    def rank(self, page: CachedPageView) -> float:
        """Rank by the time of the last release."""
        return page.last_used
