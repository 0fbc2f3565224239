"""KV memory as the scheduler uses it: the page pool and the prefix tree behind one door.

Knows nothing of steps or queues; it is told when tokens are computed and when requests come and go.
"""

from array import array
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeAlias

from chairlift.config.resolved import CacheConfig
from chairlift.core.events import PageEvicted, PagesCached
from chairlift.core.page_pool import PagePool
from chairlift.core.policies import build_eviction
from chairlift.core.ports import EventSink, PageKeyer
from chairlift.core.prefix_tree import PrefixTree
from chairlift.core.request import Request
from chairlift.core.views import RequestView
from chairlift.errors import PoolExhaustedError

PageNamer: TypeAlias = Callable[[Hashable, Sequence[int], int], list[Hashable]]


class Start(NamedTuple):
    """What a waiting request need not compute again, as half-open intervals of pages.

    ::

        [0, kept)                    its lease, if it kept its first pages when it was preempted
        [kept, len(pages))           cached pages found in the prefix tree
        [len(pages), + num_host)     pages whose content lies in the host tier and is copied into new ones
    """

    pages: list[int]
    num_host_pages: int
    num_tokens: int
    """Tokens whose KV lies in all of them; at least one token of the request is left to compute."""


NOTHING = Start([], 0, 0)


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
        return self.pool.num_available

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
        num_pages = self._num_reusable_pages(request)
        found = request.found_prefix
        if found is not None and found[0] == self.tree.version and found[1] == num_pages:
            return found[2]
        pages = self._match(request, num_pages)
        request.found_prefix = (self.tree.version, num_pages, pages)
        return pages

    def page_key(self, request: Request, index: int) -> Hashable | None:
        """Return the key of one of a request's pages; ``None`` if it has no tokens to fill it."""
        if not self._is_caching or (index + 1) * self.page_size > request.num_tokens:
            return None
        self._extend_keys(request, index + 1)
        return request.page_keys[index]

    def is_cached(self, request: Request, index: int) -> bool:
        """Whether one of a request's pages is in the prefix tree, its own or an equal one; its key was made already."""
        return request.page_keys[index] in self.tree

    def count_common_pages(self, request: Request, computer: Request, num_known: int, *, makes_keys: bool) -> int:
        """Return how many full pages a request begins alike with one that computes its prompt, as far as is known.

        Of ``num_known`` pages that is known already. All keys of the other one are made; those of the request only if
        ``makes_keys``, and otherwise recalled, which is cheaper and most often finds all that they have in common.
        """
        num_full = computer.num_tokens // self.page_size
        if len(computer.page_keys) < num_full:
            self._extend_keys(computer, num_full)
            makes_keys = True  # The keyer goes on where keys of both end now, and recalls nothing from there.
        most = min(request.num_tokens, computer.num_tokens) // self.page_size
        keys, others = request.page_keys, computer.page_keys
        if len(keys) < most and keys[-1] == others[len(keys) - 1]:
            self._name_pages(request, most, self._keyer.extend if makes_keys else self._keyer.recall)
        low, high = num_known, min(most, len(keys))
        while low < high:
            middle = (low + high + 1) // 2
            # Keys are chained, so an equal key means that all pages before it are equal too.
            if keys[middle - 1] == others[middle - 1]:
                low = middle
            else:
                high = middle - 1
        return low

    def peek_prefix(self, request: Request) -> list[int]:
        """Same as :meth:`find_prefix`, but only as far as its page keys were needed yet. Changes nothing at all."""
        if not self._is_caching:
            return []
        return self.tree.match(request.page_keys[: self._num_reusable_pages(request)])

    def num_pages_taken(self, shared: list[int], num_tokens: int) -> int:
        """By how much a lease of ``shared`` plus new pages up to ``num_tokens`` lowers :attr:`num_available`."""
        return self.pages_for(num_tokens) - len(shared) + self.pool.count_idle(shared)

    def find_start(self, request: Request) -> Start:
        """Return what a waiting request can go on from: what it kept, then cached pages, then host pages."""
        cached = self.find_prefix(request)
        num_cached_tokens = len(cached) * self.page_size
        if request.host_lease is not None and request.num_swapped_tokens > num_cached_tokens:
            num_host_pages = len(request.host_lease.pages) - len(cached)
            return Start(cached, num_host_pages, request.num_swapped_tokens)
        if request.lease is not None and request.num_computed_tokens >= num_cached_tokens:
            return Start(list(request.lease.pages), 0, request.num_computed_tokens)
        return Start(cached, 0, num_cached_tokens)

    def admit(self, request: Request, start: Start, num_tokens: int) -> None:
        """Lease what ``start`` found and new pages up to ``num_tokens`` to a waiting request.

        Raises:
            PoolExhaustedError: fewer pages are available; nothing has changed.
        """
        needed = self.num_pages_taken(start.pages, num_tokens)
        if needed > self.num_available:
            raise PoolExhaustedError(
                f"request {request.request_id} needs {needed} pages and {self.num_available} are available; "
                "--kv-cache-memory sets the size of the pool"
            )
        # The start is leased first: an eviction for the new pages must not take it.
        lease = request.lease
        if lease is not None and start.pages[: len(lease.pages)] == lease.pages:
            num_kept = len(lease.pages)
            self.pool.share(lease, start.pages[num_kept:])
            if num_kept < len(start.pages):
                request.num_published_pages = len(start.pages)
        else:
            found = self.pool.lease(start.pages, 0)
            if lease is not None:
                # Somebody computed more of the same tokens meanwhile: those pages are shared instead.
                self.tree.note_idle(self.pool.release(lease))
            request.lease = lease = found
            request.num_published_pages = len(start.pages)
        num_new = self.pages_for(num_tokens) - len(start.pages)
        if num_new > 0:
            self._free_up(num_new)
            self.pool.grow(lease, num_new)

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
        end = self.tree.insert(request.page_keys, request.lease.pages, start, num_full)
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

    def shrink(self, request: Request, num_kept: int) -> int:
        """Take a request's pages behind its first ``num_kept``; return how many pages became available."""
        if num_kept <= 0:
            return self.release(request)
        assert request.lease is not None  # noqa: S101 - a caller's bug, not input
        before = self.num_available
        self.tree.note_idle(self.pool.shrink(request.lease, num_kept))
        request.num_published_pages = min(request.num_published_pages, num_kept)
        return self.num_available - before

    def num_shared_pages(self, request: RequestView) -> int:
        """How many leading pages of a request others hold too: giving these up frees nothing.

        A page has at most as many holders as the one before it, so bisection finds the end.
        """
        pages, references = request.pages, self.pool.references
        low, high = 0, len(pages)
        while low < high:
            middle = (low + high) // 2
            if references(pages[middle]) > 1:
                low = middle + 1
            else:
                high = middle
        return low

    def clear_cache(self) -> None:
        """Forget every cached prefix. No page may be leased."""
        self.tree.clear()

    def _num_reusable_pages(self, request: Request) -> int:
        """Pages that a request may find instead of computing them: at least one token stays to compute.

        Log-probabilities of a prompt come with computing it, so who wants them finds only what it once had computed
        itself, before it was preempted. What a vector of all rows was made of so far is lost with a preemption, so
        for it there is nothing to find.
        """
        if request.needs_every_row:
            return 0
        num_tokens = request.num_tokens - 1
        if request.sampling.prompt_logprobs is not None:
            num_tokens = min(num_tokens, request.num_peak_tokens)
        return num_tokens // self.page_size

    def _free_up(self, num_pages: int) -> None:
        while self.pool.num_free < num_pages:
            page = self.tree.evict()
            if page is None:
                return
            if self._events is not None:
                self._events.emit(PageEvicted(page))

    def _match(self, request: Request, num_pages: int) -> list[int]:
        """Find cached pages, making keys only as far as the tree has them, and a few more."""
        keys, tree = request.page_keys, self.tree
        if len(keys) < num_pages:
            self._name_pages(request, num_pages, self._keyer.recall)
        num_more = 1
        while len(keys) < num_pages and (not keys or keys[-1] in tree):
            self._extend_keys(request, min(len(keys) + num_more, num_pages))
            num_more *= 2
        return tree.match(keys if len(keys) <= num_pages else keys[:num_pages])

    def _extend_keys(self, request: Request, num_pages: int) -> None:
        if len(request.page_keys) < num_pages:
            self._name_pages(request, num_pages, self._keyer.extend)

    def _name_pages(self, request: Request, num_pages: int, name: PageNamer) -> None:
        keys, size = request.page_keys, self.page_size
        parent = keys[-1] if keys else self._keyer.root(request.cache_salt, request.adapter)
        token_ids = request.token_ids
        if isinstance(token_ids, array):  # A prompt may be long: it is not copied.
            token_ids = memoryview(token_ids)
        keys.extend(name(parent, token_ids[len(keys) * size : num_pages * size], size))
