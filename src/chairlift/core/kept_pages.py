"""Pages that preempted requests kept while they wait, and how others get them.

Knows nothing of why a request was preempted. Two rules make a deadlock impossible: a running request that needs a page
takes it from those who wait before anybody else is preempted, and if nothing runs, the first who could start takes
what all the others kept.
"""

from collections import Counter
from collections.abc import Mapping

from chairlift.core.kv_memory import KVMemory
from chairlift.core.request import Phase, Request


class KeptPages:
    """The preempted requests that wait with a lease.

    Args:
        memory: the pages.
        running: who runs, kept up to date by its owner.
    """

    def __init__(self, memory: KVMemory, running: Mapping[int, Request]) -> None:
        self.holders: dict[int, Request] = {}
        self._memory = memory
        self._running = running

    def add(self, request: Request) -> None:
        """A request was preempted, and may have kept pages."""
        if request.lease is not None:
            self.holders[request.request_id] = request

    def remove(self, request: Request) -> None:
        """The request does not wait any more; its pages stay with it."""
        self.holders.pop(request.request_id, None)

    def num_reclaimable(self, ahead_of: Request | None = None) -> int:
        """Pages that :meth:`reclaim` could take at least."""
        if not self.holders:
            return 0
        memory, holders = self._memory, self._behind(ahead_of)
        if not self._running:
            # Nobody else will give anything back, so pages that only these share count too.
            held = Counter(page for holder in holders for page in holder.pages)
            return sum(memory.pool.references(page) == count for page, count in held.items())
        return sum(len(holder.pages) - memory.num_shared_pages(holder) for holder in holders)

    def reclaim(self, num_pages: int, ahead_of: Request | None = None) -> int:
        """Take pages, the last of each holder first, and return how many came free.

        Those that will come back last lose theirs first, and pages that others hold too are taken only if there is no
        other way. For a waiting request ``ahead_of``, only those behind it lose anything; but if nothing runs it can
        take everything, so that nobody waits for pages that only somebody else who waits could give back.
        """
        if not self.holders:
            return 0
        num_freed = 0
        holders = self._behind(ahead_of)
        for holder in holders:
            if num_freed >= num_pages:
                break
            least = self._memory.num_shared_pages(holder)
            num_freed += self.cut(holder, max(least, len(holder.pages) - (num_pages - num_freed)))
        for holder in holders:
            if num_freed >= num_pages:
                break
            num_freed += self.cut(holder, 0)
        return num_freed

    def cut(self, request: Request, num_kept_pages: int) -> int:
        """Take a request's pages behind the first few; return how many pages became available."""
        if num_kept_pages >= len(request.pages):
            return 0
        num_freed = self._memory.shrink(request, num_kept_pages)
        request.num_computed_tokens = min(request.num_computed_tokens, num_kept_pages * self._memory.page_size)
        if request.phase is Phase.PREEMPTED:
            request.num_scheduled_tokens = request.num_computed_tokens
            if request.lease is None:
                self.remove(request)
        return num_freed

    def _behind(self, ahead_of: Request | None) -> list[Request]:
        """Return the requests that may lose what they kept, in the order in which they do."""
        holders = list(self.holders.values())
        if ahead_of is not None:
            takes_all = ahead_of.is_promoted or not self._running
            holders = [h for h in holders if h is not ahead_of and (takes_all or _comes_back_after(h, ahead_of))]
        holders.sort(key=lambda holder: (holder.is_promoted, -holder.priority, -holder.sequence))
        return holders


def _comes_back_after(holder: Request, other: Request) -> bool:
    """Whether a preempted request stands behind another one that waits."""
    if holder.priority != other.priority:
        return holder.priority > other.priority
    return other.phase is Phase.PREEMPTED and holder.sequence > other.sequence
