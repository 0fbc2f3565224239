"""Pages in host memory that keep the KV of preempted requests, and the copies that move it there and back.

Knows nothing of why a request was preempted, or of how executors copy.

Every host page is free or held by exactly one lease: that of a waiting request, or of a step that copies it back and
was not committed yet. Copies out are kept here until a plan carries them, since the step that preempts may turn out
to have nothing to compute.
"""

from chairlift.core.kv_memory import Start
from chairlift.core.page_pool import PageLease, PagePool
from chairlift.core.request import Request
from chairlift.core.step_plan import PageCopy


class HostTier:
    """A second page pool.

    Args:
        num_pages: its size; 0 if there is none.
        page_size: token slots of a page, the same as on the device.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.pool = PagePool(num_pages)
        self._page_size = page_size
        self._copies_out: list[PageCopy] = []
        self.num_pages_out = 0
        """Pages ever copied to the host."""
        self.num_pages_in = 0
        """Pages ever copied back."""

    @property
    def num_free(self) -> int:
        """Host pages that nobody holds."""
        return self.pool.num_free

    def move_out(self, request: Request) -> int:
        """Copy the request's computed pages to the host, as many leading ones as fit, and return how many.

        The device pages may be given to others at once: the copy comes before anything that is computed in the step.
        """
        num_computed = request.num_computed_tokens
        num_pages = min(-(-num_computed // self._page_size), self.pool.num_free)
        if num_pages == 0:
            return 0
        lease = self.pool.lease((), num_pages)
        request.host_lease = lease
        request.num_swapped_tokens = min(num_computed, num_pages * self._page_size)
        pairs = zip(request.pages, lease.pages, strict=False)
        self._copies_out.extend(PageCopy(source, target) for source, target in pairs)
        self.num_pages_out += num_pages
        return num_pages

    def move_in(self, request: Request, start: Start) -> tuple[list[PageCopy], PageLease | None]:
        """Return the copies that bring an admitted request's pages back, and the lease to release once they are made.

        Host pages that the request does not need, since the prefix tree had their tokens, are free at once.
        """
        lease = request.host_lease
        if lease is None or start.num_host_pages == 0:
            self.discard(request)
            return [], None
        request.host_lease = None
        request.num_swapped_tokens = 0
        first, end = len(start.pages), len(start.pages) + start.num_host_pages
        self.num_pages_in += start.num_host_pages
        return [PageCopy(lease.pages[i], request.pages[i]) for i in range(first, end)], lease

    def discard(self, request: Request) -> None:
        """The request will not come back for its host pages."""
        lease = request.host_lease
        if lease is None:
            return
        if self._copies_out:
            # Copies that no plan carries yet would reach pages of whoever gets them next.
            dropped = set(lease.pages)
            self._copies_out = [copy for copy in self._copies_out if copy.target not in dropped]
        request.host_lease = None
        request.num_swapped_tokens = 0
        self.pool.release(lease)

    def release(self, leases: list[PageLease]) -> None:
        """The copies that :meth:`move_in` returned were made; empties the list of their leases."""
        for lease in leases:
            self.pool.release(lease)
        leases.clear()

    def take_copies(self) -> tuple[PageCopy, ...]:
        """Hand the copies out to the plan that carries them."""
        if not self._copies_out:
            return ()
        copies = tuple(self._copies_out)
        self._copies_out.clear()
        return copies

    def forget_copies(self) -> None:
        """The executor lost everything: there is nothing to copy any more."""
        self._copies_out.clear()
