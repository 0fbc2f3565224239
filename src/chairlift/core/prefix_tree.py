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

from chairlift.core.page_pool import PagePool
from chairlift.core.policies.eviction import EvictionPolicy


class Node:
    """One cached page."""

    __slots__ = ("depth", "key", "last_used", "num_children", "page", "parent", "run", "run_version", "version")

    def __init__(self, key: Hashable, page: int, parent: "Node | None", last_used: int) -> None:
        self.key = key
        self.page = page
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        """Pages before this one on its path."""
        self.num_children = 0
        self.last_used = last_used
        """Logical time of the last release of its page; grows with every release in the tree."""
        self.version = 0
        """Entries of the eviction heap that carry another version are stale."""
        self.run: list[int] = []
        """The last pages of its path, its own included, if ``run_version`` is the tree's."""
        self.run_version = -1


class PrefixTree:
    """Finds, adds and gives up pages by prefix.

    The eviction order is a heap of leaves that nobody leases, ranked by the policy; entries that went stale (leased
    again, got a child, ranked anew) are skipped when they come up.
    """

    RUN_PAGES: ClassVar[int] = 16
    """A node in so many remembers the pages from there up."""

    def __init__(self, pool: PagePool, eviction: EvictionPolicy) -> None:
        self._pool = pool
        self._eviction = eviction
        self._nodes: dict[Hashable, Node] = {}
        self._by_page: dict[int, Node] = {}
        self._heap: list[tuple[float, int, int, Node]] = []
        self._now = 0
        self._run_version = 0
        """Changes whenever a page of a node is replaced by an equal one."""
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
        while low < high:
            middle = (low + high + 1) // 2
            if keys[middle - 1] in nodes:
                low = middle
            else:
                high = middle - 1
        pages: list[int] = []
        for end in range(self.RUN_PAGES, low + 1, self.RUN_PAGES):
            node = nodes[keys[end - 1]]
            pages += node.run if node.run_version == self._run_version else self._note_run(node)
        pages += [nodes[key].page for key in keys[len(pages) : low]]
        return pages

    def _note_run(self, node: Node) -> list[int]:
        """Remember the last pages of a node's path, until any page of any node is replaced."""
        run: list[int] = []
        above: Node | None = node
        while above is not None and len(run) < self.RUN_PAGES:
            run.append(above.page)
            above = above.parent
        run.reverse()
        node.run, node.run_version = run, self._run_version
        return run

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
                self._run_version += 1
            else:
                return index
            self._by_page[page] = node
            self._pool.mark_cached(page)
            parent = node
        return end

    def note_idle(self, pages: Sequence[int]) -> None:
        """Pages in the tree lost their last lease together: they can be given up from now on."""
        self._now += 1
        for page in pages:
            node = self._by_page[page]
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
            if parent.num_children == 0 and self._pool.references(parent.page) == 0:
                self._offer(parent)
