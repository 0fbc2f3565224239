"""KV memory as the scheduler uses it: the page pool and the prefix tree behind one door.

Knows nothing of steps or queues; it is told when tokens are computed and when requests come and go.
"""

from chairlift.config.resolved import CacheConfig
from chairlift.core.events import PageEvicted, PagesCached
from chairlift.core.page_pool import PagePool
from chairlift.core.policies import build_eviction
from chairlift.core.ports import EventSink, PageKeyer
from chairlift.core.prefix_tree import PrefixTree
from chairlift.core.request import Request
from chairlift.errors import PoolExhaustedError


class KVMemory:
    """Leases pages to requests, shares equal prefixes, and evicts cached pages when free ones run out.

    Page table of a request, as half-open intervals of tokens::

        [0, shared)          pages found in the tree at admission: read only, held by others too
        [shared, published)  own full pages, in the tree: read only from now on
        [published, ...)     own pages, private, being written
    """

    def __init__(
        self, cache: CacheConfig, keyer: PageKeyer, events: EventSink | None = None, *, is_caching: bool
    ) -> None:
        self.page_size = cache.page_size
        self.pool = PagePool(cache.num_pages)
        self.tree = PrefixTree(self.pool, build_eviction(cache.eviction_policy))
        self._is_caching = is_caching
        self._keyer = keyer
        self._events = events

    @property
    def num_available(self) -> int:
        """Pages that can be leased now: free ones, and cached ones that would be evicted."""
        return self.pool.num_free + self.pool.num_cached

    @property
    def num_token_slots(self) -> int:
        """Tokens whose KV fits in the whole pool."""
        return self.pool.num_pages * self.page_size

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold this many tokens."""
        return -(-num_tokens // self.page_size)

    def find_prefix(self, request: Request) -> list[int]:
        """Return the cached pages that a waiting request could start from. At least one token stays to compute."""
        if not self._is_caching:
            return []
        num_pages = (request.num_tokens - 1) // self.page_size
        self._extend_keys(request, num_pages)
        return self.tree.match(request.page_keys[:num_pages])

    def num_pages_taken(self, shared: list[int], num_tokens: int) -> int:
        """By how much a lease of ``shared`` plus new pages up to ``num_tokens`` lowers :attr:`num_available`."""
        idle = sum(1 for page in shared if self.pool.references(page) == 0)
        return self.pages_for(num_tokens) - len(shared) + idle

    def admit(self, request: Request, shared: list[int], num_tokens: int) -> None:
        """Lease the shared prefix and new pages up to ``num_tokens`` to a request that holds none.

        Raises:
            PoolExhaustedError: fewer pages are available; nothing has changed but evictions.
        """
        # The prefix is leased first: an eviction for the new pages must not take it.
        lease = self.pool.lease(shared, 0)
        num_new = self.pages_for(num_tokens) - len(shared)
        try:
            self._free_up(num_new)
            self.pool.grow(lease, num_new)
        except PoolExhaustedError:
            self.tree.note_idle(self.pool.release(lease))
            raise
        request.lease = lease
        request.num_published_pages = len(shared)

    def grow(self, request: Request, num_pages: int) -> list[int]:
        """Append pages to a request's page table and return them.

        Raises:
            PoolExhaustedError: fewer pages are available; nothing has changed but evictions.
        """
        assert request.lease is not None  # noqa: S101 - a caller's bug, not input
        self._free_up(num_pages)
        return self.pool.grow(request.lease, num_pages)

    def publish(self, request: Request) -> None:
        """Offer the request's full, computed pages to the prefix tree, so that others can share them from now on."""
        if not self._is_caching or request.lease is None:
            return
        num_full = request.num_computed_tokens // self.page_size
        start = request.num_published_pages
        if num_full <= start:
            return
        self._extend_keys(request, num_full)
        end = self.tree.insert(request.page_keys[:num_full], request.lease.pages, start)
        request.num_published_pages = end
        if self._events is not None and end > start:
            self._events.emit(PagesCached(tuple(request.lease.pages[start:end])))

    def release(self, request: Request) -> int:
        """End a request's lease and return how many pages became available."""
        assert request.lease is not None  # noqa: S101 - a caller's bug, not input
        before = self.num_available
        self.tree.note_idle(self.pool.release(request.lease))
        request.lease = None
        request.num_published_pages = 0
        return self.num_available - before

    def clear_cache(self) -> None:
        """Forget every cached prefix. No page may be leased."""
        self.tree.clear()

    def _free_up(self, num_pages: int) -> None:
        while self.pool.num_free < num_pages:
            page = self.tree.evict()
            if page is None:
                return
            if self._events is not None:
                self._events.emit(PageEvicted(page))

    def _extend_keys(self, request: Request, num_pages: int) -> None:
        keys, size = request.page_keys, self.page_size
        if len(keys) >= num_pages:
            return
        parent = keys[-1] if keys else self._keyer.root(request.cache_salt, request.adapter)
        tokens = request.token_ids[len(keys) * size : num_pages * size]
        keys.extend(self._keyer.extend(parent, tokens, size))
