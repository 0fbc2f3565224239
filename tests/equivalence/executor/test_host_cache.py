"""Pages that go to host memory come back as they were, whatever happens to their place meanwhile."""

import pytest
import torch

from chairlift.core.step_plan import PageCopy
from chairlift.execution.torch_backend.kv_cache import KVCache, KVShape

SHAPE = KVShape(num_layers=3, num_kv_heads=2, head_size=8, page_size=4, dtype=torch.float32)


@pytest.fixture
def kv_cache() -> KVCache:
    cache = KVCache(SHAPE, 6, torch.device("cpu"), num_host_pages=4)
    for layer in cache.layers:
        layer.copy_(torch.randn(layer.shape))
    return cache


def test_pages_go_and_come_back_to_other_places(kv_cache: KVCache) -> None:
    host = kv_cache.host
    before = [layer.clone() for layer in kv_cache.layers]
    host.copy((PageCopy(1, 3), PageCopy(4, 0)), ())
    assert host.take_duration_ns() > 0
    for layer in kv_cache.layers:
        layer[:, [1, 4]] = float("nan")
    host.copy((), (PageCopy(0, 2), PageCopy(3, 5)))
    for old, layer in zip(before, kv_cache.layers, strict=True):
        assert torch.equal(layer[:, [2, 5]], old[:, [4, 1]])
        assert torch.equal(layer[:, [0, 3]], old[:, [0, 3]])


def test_a_page_may_leave_and_be_filled_in_one_step(kv_cache: KVCache) -> None:
    host = kv_cache.host
    before = [layer.clone() for layer in kv_cache.layers]
    host.copy((PageCopy(2, 0),), ())
    host.copy((PageCopy(5, 1),), (PageCopy(0, 5),))
    for old, layer, kept in zip(before, kv_cache.layers, host.layers, strict=True):
        assert torch.equal(layer[:, 5], old[:, 2])
        assert torch.equal(kept[:, 1], old[:, 5])


def test_without_copies_nothing_is_counted(kv_cache: KVCache) -> None:
    kv_cache.host.copy((), ())
    assert kv_cache.host.take_duration_ns() == 0
    assert KVCache(SHAPE, 6, torch.device("cpu")).host.layers == []
