"""The page pool against a slow, obvious model: a list of holders per page."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from chairlift.core.page_pool import PagePool
from chairlift.errors import LeaseError, PoolExhaustedError

NUM_PAGES = 12


class PoolMachine(RuleBasedStateMachine):
    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.holders: list[list[object]] = [[] for _ in range(NUM_PAGES)]
        self.cached: set[int] = set()

    def free(self) -> set[int]:
        return {page for page in range(NUM_PAGES) if not self.holders[page] and page not in self.cached}

    @rule(target=leases, num_new=st.integers(0, 6), data=st.data())
    def lease(self, num_new, data):
        known = sorted(set(range(NUM_PAGES)) - self.free())
        shared = data.draw(st.lists(st.sampled_from(known), unique=True, max_size=3)) if known else []
        if num_new > len(self.free()):
            with pytest.raises(PoolExhaustedError):
                self.pool.lease(shared, num_new)
            shared, num_new = [], 0
        free = self.free()
        lease = self.pool.lease(shared, num_new)
        assert lease.pages[: len(shared)] == shared
        assert set(lease.pages[len(shared) :]) <= free
        assert len(lease.pages) == len(shared) + num_new
        for page in lease.pages:
            self.holders[page].append(lease)
        return lease

    @rule(lease=leases, num_new=st.integers(1, 4))
    def grow(self, lease, num_new):
        free = self.free()
        if num_new > len(free):
            with pytest.raises(PoolExhaustedError):
                self.pool.grow(lease, num_new)
            return
        before = list(lease.pages)
        pages = self.pool.grow(lease, num_new)
        assert lease.pages == before + pages
        assert set(pages) <= free
        for page in pages:
            self.holders[page].append(lease)

    @rule(lease=leases, data=st.data())
    def share(self, lease, data):
        known = sorted(set(range(NUM_PAGES)) - self.free() - set(lease.pages))
        shared = data.draw(st.lists(st.sampled_from(known), unique=True, max_size=3)) if known else []
        before = list(lease.pages)
        self.pool.share(lease, shared)
        assert lease.pages == before + shared
        for page in shared:
            self.holders[page].append(lease)

    @rule(lease=leases, num_kept=st.integers(0, 8))
    def shrink(self, lease, num_kept):
        dropped = lease.pages[num_kept:]
        idle = self.pool.shrink(lease, num_kept)
        for page in dropped:
            self.holders[page].remove(lease)
        assert idle == [page for page in reversed(dropped) if not self.holders[page] and page in self.cached]
        assert len(lease.pages) <= num_kept

    @rule(lease=consumes(leases))
    def release(self, lease):
        idle = self.pool.release(lease)
        for page in lease.pages:
            self.holders[page].remove(lease)
        assert idle == [page for page in reversed(lease.pages) if not self.holders[page] and page in self.cached]
        with pytest.raises(LeaseError):
            self.pool.release(lease)
        for misuse in (self.pool.grow, self.pool.shrink):
            with pytest.raises(LeaseError):
                misuse(lease, 1)
        with pytest.raises(LeaseError):
            self.pool.share(lease, [])

    @rule(page=st.integers(0, NUM_PAGES - 1))
    def toggle_cached(self, page):
        if page in self.cached:
            self.pool.unmark_cached(page)
            self.cached.remove(page)
        elif self.holders[page]:
            self.pool.mark_cached(page)
            self.cached.add(page)
        else:
            with pytest.raises(LeaseError):
                self.pool.mark_cached(page)

    @invariant()
    def agrees_with_the_model(self):
        assert set(self.pool.free_pages) == self.free()
        assert self.pool.num_free == len(self.pool.free_pages)
        assert self.pool.num_cached == sum(1 for page in self.cached if not self.holders[page])
        assert self.pool.num_leased == sum(1 for holders in self.holders if holders)
        assert self.pool.num_free + self.pool.num_cached + self.pool.num_leased == NUM_PAGES
        for page in range(NUM_PAGES):
            assert self.pool.references(page) == len(self.holders[page])
            assert self.pool.is_cached(page) == (page in self.cached)


PoolMachine.TestCase.settings = settings(stateful_step_count=40, deadline=None)
TestPagePool = PoolMachine.TestCase


def test_a_free_page_cannot_be_shared():
    with pytest.raises(LeaseError, match="free"):
        PagePool(2).lease([1], 0)
