"""KV pages as numbers: who holds which, which are free.

Knows nothing of what pages contain or of why somebody wants them.

Every page is in exactly one of three states, and they add up to the pool::

    leased   at least one lease holds it          references > 0
    cached   the prefix tree holds it, no lease   references == 0, cached
    free     nobody holds it                      references == 0, not cached

Cached pages that follow one another can be bound into a *run*. Whoever leases all of them changes one count, that of
the run, instead of theirs: a page has as many references as leases took it alone, and took its run. What was taken one
way may be given back the other way, since only the sum counts.
"""

from collections.abc import Iterable, Sequence

from chairlift.errors import LeaseError, PoolExhaustedError


class PageLease:
    """A holder's pages, in page-table order; ends with exactly one :meth:`PagePool.release`.

    ``pages`` belongs to the pool: holders read it, and grow it through :meth:`PagePool.grow`.
    """

    __slots__ = ("is_released", "pages")

    def __init__(self, pages: list[int]) -> None:
        self.pages = pages
        self.is_released = False

    def __repr__(self) -> str:
        return f"<PageLease {'released' if self.is_released else self.pages}>"


class PageRun:
    """Cached pages that are leased and given back together; see the module.

    They follow one another in page tables. So each has at most as many references as the one before it, and whoever
    has the last one has all of them.
    """

    __slots__ = ("first", "is_bound", "last", "num_leases", "pages")

    def __init__(self, pages: list[int]) -> None:
        self.pages = pages
        self.first, self.last = pages[0], pages[-1]
        self.num_leases = 0
        """Leases that took the run, less those that gave it back."""
        self.is_bound = True
        """Whether the pool still counts by it; it ends when one of its pages leaves the prefix tree."""


class PagePool:
    """A fixed number of pages, counted by reference.

    Free pages are handed out last-returned first, so that memory that is still in a processor's cache is used again.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._references = [0] * num_pages
        """Leases that took a page alone, less those that gave it back alone."""
        self._run_of: list[PageRun | None] = [None] * num_pages
        self._is_cached = [False] * num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._num_cached = 0

    @property
    def num_free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Pages that only the prefix tree holds."""
        return self._num_cached

    @property
    def num_available(self) -> int:
        """Pages that no lease holds."""
        return len(self._free) + self._num_cached

    @property
    def num_leased(self) -> int:
        """Pages that at least one lease holds."""
        return self.num_pages - len(self._free) - self._num_cached

    @property
    def free_pages(self) -> Sequence[int]:
        """The free pages, next to be handed out last; for checks."""
        return tuple(self._free)

    @property
    def runs(self) -> Iterable[PageRun]:
        """Every run, for checks."""
        return {id(run): run for run in self._run_of if run is not None}.values()

    def references(self, page: int) -> int:
        """How many leases hold this page."""
        run = self._run_of[page]
        return self._references[page] if run is None else self._references[page] + run.num_leases

    def count_idle(self, path: Sequence[int]) -> int:
        """How many of these pages no lease holds.

        The pages follow one another in some page table. So each has at most as many holders as the one before it, and
        bisection finds the first that nobody holds.
        """
        references = self.references
        if not path or references(path[-1]):
            return 0
        if not references(path[0]):
            return len(path)
        low, high = 1, len(path) - 1
        while low < high:
            middle = (low + high) // 2
            if references(path[middle]):
                low = middle + 1
            else:
                high = middle
        return len(path) - low

    def is_cached(self, page: int) -> bool:
        """Whether the prefix tree holds this page, leased or not."""
        return self._is_cached[page]

    def lease(self, shared: Sequence[int], num_new: int) -> PageLease:
        """Lease pages that are already held by others or by the prefix tree, then ``num_new`` free ones.

        Raises:
            PoolExhaustedError: fewer than ``num_new`` pages are free; nothing has changed.
            LeaseError: a page of ``shared`` is free; nothing has changed.
        """
        self._require_free(num_new)
        self._reference(shared)
        return PageLease([*shared, *self._take(num_new)])

    def grow(self, lease: PageLease, num_new: int) -> list[int]:
        """Append free pages to a lease and return them.

        Raises:
            PoolExhaustedError: fewer than ``num_new`` pages are free; nothing has changed.
            LeaseError: the lease was released.
        """
        if lease.is_released:
            raise LeaseError("a released lease cannot grow")
        self._require_free(num_new)
        pages = self._take(num_new)
        lease.pages.extend(pages)
        return pages

    def share(self, lease: PageLease, shared: Sequence[int]) -> None:
        """Append pages to a lease that others or the prefix tree hold already.

        Raises:
            LeaseError: the lease was released, or a page is free; nothing has changed.
        """
        if lease.is_released:
            raise LeaseError("a released lease cannot grow")
        self._reference(shared)
        lease.pages.extend(shared)

    def shrink(self, lease: PageLease, num_kept: int) -> list[int]:
        """Give back the pages of a lease behind its first ``num_kept``, as :meth:`release` does with all of them.

        Returns:
            The pages that became cached, deepest first.

        Raises:
            LeaseError: the lease was released before.
        """
        if lease.is_released:
            raise LeaseError("a released lease has no pages to give back")
        dropped = lease.pages[num_kept:]
        del lease.pages[num_kept:]
        return self._give_back(dropped)

    def release(self, lease: PageLease) -> list[int]:
        """End a lease. Pages that nobody holds any more become free, or cached if the prefix tree has them.

        Returns:
            The pages that became cached, deepest first.

        Raises:
            LeaseError: the lease was released before.
        """
        if lease.is_released:
            raise LeaseError("a lease was released twice")
        lease.is_released = True
        return self._give_back(lease.pages)

    def bind(self, pages: list[int]) -> PageRun | None:
        """Bind cached pages that follow one another in page tables into a run.

        Returns ``None``, and does nothing, if one of them is in a run already.
        """
        run_of = self._run_of
        if run_of[pages[0]] is not None or any(run_of[page] is not None for page in pages):
            return None
        run = PageRun(pages)
        for page in pages:
            run_of[page] = run
        return run

    def mark_cached(self, page: int) -> None:
        """The prefix tree now holds this page, which must be leased."""
        if self._is_cached[page] or self._references[page] == 0:
            raise LeaseError(f"page {page} cannot enter the prefix tree: it is free or already there")
        self._is_cached[page] = True

    def unmark_cached(self, page: int) -> None:
        """The prefix tree gave this page up; it becomes free unless a lease holds it."""
        if not self._is_cached[page]:
            raise LeaseError(f"page {page} is not in the prefix tree")
        self._is_cached[page] = False
        run = self._run_of[page]
        if run is not None:
            self._unbind(run)
        if self._references[page] == 0:
            self._num_cached -= 1
            self._free.append(page)

    def _require_free(self, count: int) -> None:
        if count > len(self._free):
            raise PoolExhaustedError(
                f"{count} pages were asked for and {len(self._free)} of {self.num_pages} are free; "
                "--kv-cache-memory sets the size of the pool"
            )

    def _reference(self, shared: Sequence[int]) -> None:
        references = self._references
        runs, single = self._split(shared)
        if single:
            idle = [page for page in single if not self.references(page)]
            if not all(map(self._is_cached.__getitem__, idle)):
                page = next(page for page in idle if not self._is_cached[page])
                raise LeaseError(f"page {page} is free and cannot be shared")
            self._num_cached -= len(idle)
            for page in single:
                references[page] += 1
        for run in runs:
            is_idle = not references[run.first] + run.num_leases
            self._num_cached -= len(run.pages) if is_idle else self.count_idle(run.pages)
            run.num_leases += 1

    def _split(self, shared: Sequence[int]) -> tuple[list[PageRun], list[int]]:
        """Return the whole runs among these pages, and the pages that are in none of these."""
        run_of = self._run_of
        runs: list[PageRun] = []
        single: list[int] = []
        index, end = 0, len(shared)
        while index < end:
            page = shared[index]
            run = run_of[page]
            if run is not None and run.first == page:
                after = index + len(run.pages)
                if after <= end and shared[after - 1] == run.last:
                    runs.append(run)
                    index = after
                    continue
            single.append(page)
            index += 1
        return runs, single

    def _give_back(self, pages: Sequence[int]) -> list[int]:
        references, is_cached = self._references, self._is_cached
        idle: list[int] = []
        end = len(pages)
        while end:
            page = pages[end - 1]
            run = self._run_of[page]
            if run is not None and run.last == page:
                start = end - len(run.pages)
                if start >= 0 and pages[start] == run.first:
                    run.num_leases -= 1
                    num_idle = self.count_idle(run.pages)
                    self._num_cached += num_idle
                    idle += run.pages[len(run.pages) - num_idle :][::-1]
                    end = start
                    continue
            end -= 1
            references[page] -= 1
            if references[page] + (0 if run is None else run.num_leases):
                continue
            if is_cached[page]:
                self._num_cached += 1
                idle.append(page)
            else:
                self._free.append(page)
        return idle

    def _unbind(self, run: PageRun) -> None:
        for page in run.pages:
            self._references[page] += run.num_leases
            self._run_of[page] = None
        run.is_bound = False

    def _take(self, count: int) -> list[int]:
        if count == 0:
            return []
        pages = self._free[-count:][::-1]
        del self._free[-count:]
        for page in pages:
            self._references[page] = 1
        return pages
