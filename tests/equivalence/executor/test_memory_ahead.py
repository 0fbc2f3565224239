"""The memory of KV pages is there before they are written, and never long before."""

import ctypes
import mmap
import sys
from typing import Any

import pytest
import torch

from chairlift.core.sampling_params import SamplingParams
from chairlift.core.step_plan import NewRequest, PageCopy, PageGrowth, StepPlan
from chairlift.execution.torch_backend.kv_cache import KVCache, KVShape
from chairlift.execution.torch_backend.memory_ahead import MemoryAhead, Region, regions_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux takes memory ahead")

MIB = 1 << 20
BLOCK_BYTES = 2 * MIB


def resident_bytes(region: Region) -> int:
    """Bytes of a region that the process has; what it shares a memory page with counts."""
    start = region.address - region.address % mmap.PAGESIZE
    num_bytes = region.address + region.item_bytes * region.num_items - start
    pages = (ctypes.c_ubyte * -(-num_bytes // mmap.PAGESIZE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(num_bytes), pages) == 0
    return mmap.PAGESIZE * sum(page & 1 for page in pages)


def regions(num_mib: int, item_bytes: int = 64 * 1024) -> list[Region]:
    """One region in a mapping of its own."""
    memory = mmap.mmap(-1, num_mib * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    return [Region(tensor, tensor.data_ptr(), item_bytes, len(tensor) // item_bytes)]


def test_a_block_is_taken_before_its_first_item_is_reached() -> None:
    (region,) = regions(32)
    ahead = MemoryAhead([region])
    ahead.reached(0)
    ahead.wait()
    assert resident_bytes(region) == BLOCK_BYTES
    ahead.reached(7)
    ahead.wait()
    assert resident_bytes(region) == BLOCK_BYTES
    ahead.reached(8)  # a quarter of the first block's 32 items
    ahead.wait()
    assert resident_bytes(region) == 2 * BLOCK_BYTES
    ahead.reached(5)
    ahead.wait()
    assert resident_bytes(region) == 2 * BLOCK_BYTES


def test_a_leap_takes_everything_up_to_it_and_the_last_item_nothing_behind_it() -> None:
    (region,) = regions(9)
    ahead = MemoryAhead([region])
    ahead.reached(region.num_items - 1)
    ahead.wait()
    assert resident_bytes(region) == 9 * MIB


def test_what_is_written_meanwhile_stays() -> None:
    (region,) = regions(16)
    region.owner[:: mmap.PAGESIZE] = 7
    ahead = MemoryAhead([region])
    ahead.reached(region.num_items - 1)
    ahead.wait()
    assert region.take(0, region.num_items)
    assert bool((region.owner[:: mmap.PAGESIZE] == 7).all())


def test_a_system_that_cannot_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chairlift.execution.torch_backend.memory_ahead._MADV_POPULATE_WRITE", 9999)
    (region,) = regions(8)
    ahead = MemoryAhead([region])
    for item in range(region.num_items):
        ahead.reached(item)
    ahead.wait()
    region.owner[:] = 1


def test_closing_in_the_middle_ends_the_thread() -> None:
    (region,) = regions(64)
    ahead = MemoryAhead([region])
    ahead.reached(region.num_items - 1)
    ahead.close()
    ahead.reached(0)
    ahead.close()


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ("grown", (PageGrowth(1, (3, 4000, 17)),)),
        ("copies", (PageCopy(1, 4000),)),
        ("swapped_in", (PageCopy(1, 4000),)),
    ],
)
def test_pages_that_a_plan_names_are_there_first(field: str, names: tuple[Any, ...]) -> None:
    shape = KVShape(2, 2, 64, 16, torch.float32)
    cache = KVCache(shape, 4096, torch.device("cpu"))
    halves = [region for layer in cache.layers for region in regions_of(layer)]
    assert len(halves) == 4
    assert {region.item_bytes * region.num_items * 4 for region in halves} == {shape.page_bytes * 4096}
    cache.reached(StepPlan(step=1, epoch=0, num_tokens=0, num_decodes=0, **{field: names}))
    cache._ahead.wait()
    assert all(resident_bytes(region) >= 32 * MIB for region in halves)
    cache.close()


def test_a_new_request_counts_also_when_another_one_grows() -> None:
    cache = KVCache(KVShape(1, 1, 64, 16, torch.float32), 4096, torch.device("cpu"))
    (keys, _) = regions_of(cache.layers[0])
    new = NewRequest(1, (1,) * 17, 17, 0, (4000, 7), SamplingParams(), 0)
    cache.reached(StepPlan(step=1, epoch=0, num_tokens=0, num_decodes=0, new=(new,), grown=(PageGrowth(2, (1,)),)))
    cache._ahead.wait()
    assert resident_bytes(keys) >= 16 * MIB
    cache.close()


def test_items_larger_than_a_huge_page_are_taken_ahead_too() -> None:
    (region,) = regions(16, item_bytes=4 * MIB)
    ahead = MemoryAhead([region])
    ahead.reached(0)
    ahead.wait()
    assert resident_bytes(region) == 8 * MIB
