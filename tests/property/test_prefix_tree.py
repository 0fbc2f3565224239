"""The prefix tree against a slow, obvious model: a dictionary from whole token prefixes to pages."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from chairlift.core.page_keys import DigestKeyer
from chairlift.core.page_pool import PageLease, PagePool
from chairlift.core.policies.eviction import Lru
from chairlift.core.prefix_tree import PrefixTree

NUM_PAGES, PAGE_SIZE = 10, 2
PATHS = st.lists(st.tuples(st.integers(0, 1), st.just(5)), min_size=1, max_size=4)


class ShortRuns(PrefixTree):
    """Binds pages into runs so short that the paths here have two of them."""

    RUN_PAGES = 2


class Holder:
    def __init__(self, path: tuple, lease: PageLease) -> None:
        self.path, self.lease, self.published = path, lease, 0


class TreeMachine(RuleBasedStateMachine):
    """A path is a tuple of pages' tokens; every prefix of it names a page."""

    holders = Bundle("holders")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.tree = ShortRuns(self.pool, Lru())
        self.model: dict[tuple, int] = {}
        self.last_used: dict[tuple, int] = {}
        self.live: list[Holder] = []
        self.now = 0

    def keys(self, path, salt=None):
        keyer = DigestKeyer()
        return keyer.extend(keyer.root(salt, None), [token for page in path for token in page], PAGE_SIZE)

    def leased(self) -> set[int]:
        return {page for holder in self.live for page in holder.lease.pages}

    @rule(target=holders, path=PATHS)
    def start(self, path):
        path = tuple(path)
        expected = []
        for depth in range(1, len(path) + 1):
            if path[:depth] not in self.model:
                break
            expected.append(self.model[path[:depth]])
        found = self.tree.match(self.keys(path))
        assert found == expected
        assert self.tree.match(self.keys(path, salt="other")) == []
        lease = self.pool.lease(found, 0)
        num_new = len(path) - len(found)
        while self.pool.num_free < num_new:
            if not self.evict_one():
                path = path[: len(found) + self.pool.num_free]
                num_new = len(path) - len(found)
        self.pool.grow(lease, num_new)
        holder = Holder(path, lease)
        holder.published = len(found)
        self.live.append(holder)
        return holder

    def evict_one(self) -> bool:
        leased = self.leased() | {page for page in range(NUM_PAGES) if self.pool.references(page)}
        leaves = [
            path
            for path, page in self.model.items()
            if page not in leased and not any(other[: len(path)] == path for other in self.model if other != path)
        ]
        page = self.tree.evict()
        if page is None:
            assert not leaves
            return False
        victim = next(path for path, held in self.model.items() if held == page)
        assert victim in leaves, "only a leaf that nobody leases may go"
        assert self.last_used[victim] == min(self.last_used[path] for path in leaves)
        del self.model[victim]
        return True

    @rule(holder=holders)
    def publish(self, holder):
        end = self.tree.insert(self.keys(holder.path), holder.lease.pages, holder.published, len(holder.path))
        expected_end = holder.published
        for depth in range(holder.published + 1, len(holder.path) + 1):
            prefix, page = holder.path[:depth], holder.lease.pages[depth - 1]
            other = self.model.get(prefix)
            if other is not None and other != page and other in self.leased():
                break
            if other is None:
                self.last_used[prefix] = -1
            self.model[prefix] = page
            expected_end = depth
        assert end == expected_end
        holder.published = end

    @rule(holder=consumes(holders))
    def release(self, holder):
        self.live.remove(holder)
        before = self.leased() | set(holder.lease.pages)
        self.note_idle(self.pool.release(holder.lease), before)

    @rule(holder=holders, num_kept=st.integers(1, 3))
    def shrink(self, holder, num_kept):
        before = self.leased()
        idle = self.pool.shrink(holder.lease, num_kept)
        holder.path, holder.published = holder.path[:num_kept], min(holder.published, num_kept)
        self.note_idle(idle, before)

    def note_idle(self, idle, leased_before):
        self.tree.note_idle(idle)
        self.now += 1
        newly_idle = leased_before - self.leased()
        assert set(idle) == newly_idle & set(self.model.values())
        for path, page in self.model.items():
            if page in newly_idle:
                self.last_used[path] = self.now

    @rule()
    def evict(self):
        self.evict_one()

    @invariant()
    def agrees_with_the_model(self):
        assert {node.page for node in self.tree.nodes} == set(self.model.values())
        assert len(self.tree) == len(self.model)
        assert self.pool.num_cached == len(set(self.model.values()) - self.leased())
        for page in range(NUM_PAGES):
            assert self.pool.is_cached(page) == (page in self.model.values())
            assert self.pool.references(page) == sum(page in holder.lease.pages for holder in self.live)

    def teardown(self):
        for holder in list(self.live):
            self.release(holder)
        while self.evict_one():
            pass
        assert not self.model
        assert self.pool.num_free == NUM_PAGES, "every cached page can be given up once nobody leases any"


TreeMachine.TestCase.settings = settings(stateful_step_count=40, deadline=None)
TestPrefixTree = TreeMachine.TestCase


def test_a_page_that_was_replaced_is_not_found_again():
    pool = PagePool(NUM_PAGES)
    tree = ShortRuns(pool, Lru())
    keyer = DigestKeyer()
    keys = keyer.extend(keyer.root(None, None), list(range(2 * PAGE_SIZE)), PAGE_SIZE)
    first, second = pool.lease([], 2), pool.lease([], 2)
    assert tree.insert(keys, first.pages, 0, 2) == 2
    assert tree.match(keys) == first.pages
    tree.note_idle(pool.release(first))
    assert tree.insert(keys, second.pages, 0, 2) == 2
    assert tree.match(keys) == second.pages


class MostRecentFirst:
    def rank(self, page) -> float:
        return -page.last_used


def test_a_policy_is_told_when_the_page_of_a_leaf_was_last_given_back():
    pool = PagePool(NUM_PAGES)
    tree = ShortRuns(pool, MostRecentFirst())
    keyer = DigestKeyer()
    paths = pool.lease([], 3), pool.lease([], 1), pool.lease([], 3)
    for token, lease in enumerate(paths):
        keys = keyer.extend(keyer.root(None, None), [token] * PAGE_SIZE * len(lease.pages), PAGE_SIZE)
        tree.insert(keys, lease.pages, 0, len(keys))
    for lease in paths:
        tree.note_idle(pool.release(lease))
    given_up = [tree.evict() for _ in range(7)]
    assert given_up == [page for lease in reversed(paths) for page in reversed(lease.pages)]
