"""Host pages belong to one holder at a time, and copies that nobody needs any more are not made."""

from chairlift.core.host_tier import HostTier
from chairlift.core.kv_memory import Start
from chairlift.core.page_pool import PageLease
from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.step_plan import PageCopy


def running(num_computed: int, pages: list[int], request_id: int = 0) -> Request:
    request = Request(request_id, list(range(num_computed + 1)), SamplingParams())
    request.lease = PageLease(pages)
    request.num_computed_tokens = num_computed
    return request


def test_computed_pages_go_out_the_partial_one_included():
    tier = HostTier(8, 4)
    request = running(9, [20, 21, 22, 23])
    assert tier.move_out(request) == 3
    assert request.num_swapped_tokens == 9
    assert [copy.source for copy in tier.take_copies()] == [20, 21, 22]
    assert tier.take_copies() == ()
    assert tier.num_free == 5


def test_only_what_fits_goes_out():
    tier = HostTier(2, 4)
    request = running(11, [20, 21, 22])
    assert tier.move_out(request) == 2
    assert request.num_swapped_tokens == 8
    other = running(11, [30, 31, 32], 1)
    assert tier.move_out(other) == 0
    assert other.host_lease is None


def test_what_is_shared_on_the_device_is_not_copied_back():
    tier = HostTier(8, 4)
    request = running(11, [20, 21, 22])
    tier.move_out(request)
    assert request.host_lease is not None
    host = list(request.host_lease.pages)
    request.lease = PageLease([5, 6, 7])
    copies, lease = tier.move_in(request, Start([5], 2, 11))
    assert copies == [PageCopy(host[1], 6), PageCopy(host[2], 7)]
    assert (request.host_lease, request.num_swapped_tokens) == (None, 0)
    assert tier.num_free == 5, "the step holds them until it is committed"
    assert lease is not None
    tier.release([lease])
    assert tier.num_free == 8
    assert (tier.num_pages_out, tier.num_pages_in) == (3, 2)


def test_pages_that_are_not_needed_are_free_at_once():
    tier = HostTier(8, 4)
    request = running(8, [20, 21])
    tier.move_out(request)
    assert tier.move_in(request, Start([1, 2], 0, 8)) == ([], None)
    assert tier.num_free == 8


def test_copies_of_a_request_that_ended_are_dropped_and_others_stay():
    tier = HostTier(8, 4)
    first, second = running(8, [20, 21]), running(8, [30, 31], 1)
    tier.move_out(first)
    tier.move_out(second)
    tier.discard(first)
    tier.discard(first)
    assert [copy.source for copy in tier.take_copies()] == [30, 31]
    assert tier.num_free == 6
    third = running(32, list(range(8)), 2)
    assert tier.move_out(third) == 6
    assert third.host_lease is not None
    assert second.host_lease is not None
    assert not set(third.host_lease.pages) & set(second.host_lease.pages)
