"""Which pages hold which prefix: a radix tree whose every edge is one full page of tokens.

Knows nothing of tokens: an edge is a page *key*, chained from all keys before it (see :class:`~.ports.PageKeyer`),
so one table finds a node and equal keys mean equal prefixes.

Two rules keep "cached" and "can be given up" the same thing:

- whoever leases a node's page leases the pages of all its ancestors, because a request takes a whole path, and adds
  a node only below a node whose page it holds itself;
- only leaves are evicted.
"""

import heapq
from collections.abc import Hashable, Iterable, Sequence
from typing import ClassVar

from chairlift.core.page_pool import PagePool, PageRun
from chairlift.core.policies.eviction import EvictionPolicy


class Node:
    """One cached page."""

    __slots__ = ("above", "depth", "key", "last_used", "num_children", "page", "parent", "run", "version")

    def __init__(self, key: Hashable, page: int, parent: "Node | None", last_used: int) -> None:
        self.key = key
        self.page = page
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        """Pages before this one on its path."""
        self.num_children = 0
        self.last_used = last_used
        """Logical time of the last release of its page, once it is a leaf that nobody leases; see :meth:`note_idle`."""
        self.version = 0
        """Entries of the eviction heap that carry another version are stale."""
        self.run: PageRun | None = None
        """The run of pages that ends with its own; only at the end of a block, and if it was asked for."""
        self.above: Node | None = None
        """The end of the block before, known as soon as ``run`` is."""


class PrefixTree:
    """Finds, adds and gives up pages by prefix.

    The eviction order is a heap of leaves that nobody leases, ranked by the policy; entries that went stale (leased
    again, got a child, ranked anew) are skipped when they come up.
    """

    RUN_PAGES: ClassVar[int] = 64
    """Pages of a block: every so many pages of a path, from the first on, are found, leased and given back as one."""

    def __init__(self, pool: PagePool, eviction: EvictionPolicy) -> None:
        self._pool = pool
        self._eviction = eviction
        self._nodes: dict[Hashable, Node] = {}
        self._by_page: dict[int, Node] = {}
        self._heap: list[tuple[float, int, int, Node]] = []
        self._now = 0
        self.version = 0
        """Changes whenever a page enters or leaves the tree: equal versions find the same prefixes."""

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._nodes

    @property
    def nodes(self) -> Iterable[Node]:
        """Every cached page, in no useful order; for checks."""
        return self._nodes.values()

    def match(self, keys: Sequence[Hashable]) -> list[int]:
        """Return the pages of the longest cached prefix of ``keys``. Changes nothing that could be seen.

        Where a node is, all its ancestors are, since only leaves are evicted: bisection finds the last one.
        """
        nodes = self._nodes
        if not keys or keys[0] not in nodes:
            return []
        low, high = 1, len(keys)
        middle = high  # Most often all of them are there.
        while low < high:
            if keys[middle - 1] in nodes:
                low = middle
            else:
                high = middle - 1
            middle = (low + high + 1) // 2
        return self._path(nodes[keys[low - 1]])

    def _path(self, last: Node) -> list[int]:
        """Return the pages from the root to a node, block by block."""
        rest: list[int] = []
        node: Node | None = last
        while node is not None and (node.depth + 1) % self.RUN_PAGES:
            rest.append(node.page)
            node = node.parent
        rest.reverse()
        parts = [rest]
        while node is not None:
            run = node.run
            if run is None or not run.is_bound:
                parts.append(self._bind(node))
            else:
                parts.append(run.pages)
            node = node.above
        pages: list[int] = []
        for part in reversed(parts):
            pages += part
        return pages

    def _bind(self, last: Node) -> list[int]:
        """Return the pages of the block that ends with this node, bound into a run unless another branch did that."""
        pages: list[int] = []
        node: Node | None = last
        while node is not None and len(pages) < self.RUN_PAGES:
            pages.append(node.page)
            node = node.parent
        pages.reverse()
        last.above = node
        last.run = self._pool.bind(pages)
        return pages

    def insert(self, keys: Sequence[Hashable], pages: Sequence[int], start: int, end: int) -> int:
        """Offer pages ``[start, end)`` of a leased path, whose pages before ``start`` are in the tree already.

        If an equal page of somebody else is there, it is replaced when nobody leases it, and otherwise the offer ends:
        hanging a page below one that the caller does not lease would break the first rule above.

        Returns:
            How many leading pages of the path are the tree's own now; offer the rest again later.
        """
        self.version += 1
        parent = self._nodes[keys[start - 1]] if start else None
        for index in range(start, end):
            key, page = keys[index], pages[index]
            node = self._nodes.get(key)
            if node is None:
                node = Node(key, page, parent, self._now)
                self._nodes[key] = node
                if parent is not None:
                    parent.num_children += 1
            elif node.page == page:
                parent = node
                continue
            elif self._pool.references(node.page) == 0:
                del self._by_page[node.page]
                self._pool.unmark_cached(node.page)
                node.page = page
                node.version += 1
            else:
                return index
            self._by_page[page] = node
            self._pool.mark_cached(page)
            parent = node
        return end

    def note_idle(self, pages: Sequence[int]) -> None:
        """Pages in the tree lost their last lease together: they can be given up from now on.

        They are the end of one path, deepest first, so only the first can be a leaf. It notes the time for all, and
        hands it up when it is given up: by the time a node is a leaf, it was told of the last release of its page.
        """
        self._now += 1
        if pages:
            node = self._by_page[pages[0]]
            node.last_used = self._now
            if node.num_children == 0:
                self._offer(node)

    def evict(self) -> int | None:
        """Give up the leaf that the policy ranks lowest and return its page, which is free now.

        Returns ``None`` if every page in the tree is leased.
        """
        while self._heap:
            _, _, version, node = heapq.heappop(self._heap)
            if version != node.version or node.num_children or self._pool.references(node.page):
                continue
            self._remove(node)
            return node.page
        return None

    def clear(self) -> None:
        """Give up every page.

        Pages that are leased stay with their holders, who must not offer below them again: call it when idle.
        """
        self.version += 1
        for node in self._nodes.values():
            node.version += 1
            self._pool.unmark_cached(node.page)
        self._nodes.clear()
        self._by_page.clear()
        self._heap.clear()

    def _offer(self, node: Node) -> None:
        node.version += 1
        heapq.heappush(self._heap, (self._eviction.rank(node), node.page, node.version, node))
        if len(self._heap) > 2 * len(self._nodes) + 64:
            self._heap = [entry for entry in self._heap if entry[2] == entry[3].version]
            heapq.heapify(self._heap)

    def _remove(self, node: Node) -> None:
        self.version += 1
        node.version += 1
        del self._nodes[node.key]
        del self._by_page[node.page]
        self._pool.unmark_cached(node.page)
        parent = node.parent
        if parent is not None:
            parent.num_children -= 1
            parent.last_used = max(parent.last_used, node.last_used)
            if parent.num_children == 0 and self._pool.references(parent.page) == 0:
                self._offer(parent)
