"""KV memory: sizes, copies, and that reserving it costs nothing."""

import pytest
import torch

from chairlift.core.step_plan import PageCopy
from chairlift.execution.torch_backend.kv_cache import KVCache, KVShape


@pytest.mark.parametrize(("dtype", "item_bytes"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_pages_and_bytes(dtype: torch.dtype, item_bytes: int) -> None:
    shape = KVShape(num_layers=3, num_kv_heads=2, head_size=8, page_size=4, dtype=dtype)
    assert shape.page_bytes == 2 * 3 * 2 * 8 * 4 * item_bytes
    assert shape.num_pages(10 * shape.page_bytes + 1) == 10
    cache = KVCache(shape, 10, torch.device("cpu"))
    assert [tuple(layer.shape) for layer in cache.layers] == [(2, 10, 2, 4, 8)] * 3
    assert sum(layer.numel() * layer.element_size() for layer in cache.layers) == 10 * shape.page_bytes
    assert all(layer.is_contiguous() and layer.data_ptr() % 64 == 0 and not layer.any() for layer in cache.layers)


def test_copies_take_keys_and_values_of_all_layers() -> None:
    cache = KVCache(KVShape(2, 2, 8, 4, torch.float32), 6, torch.device("cpu"))
    for layer in cache.layers:
        layer.copy_(torch.randn(layer.shape))
    before = [layer.clone() for layer in cache.layers]
    cache.copy_pages((PageCopy(0, 5), PageCopy(2, 3)))
    for old, layer in zip(before, cache.layers, strict=True):
        assert torch.equal(layer[:, [5, 3]], old[:, [0, 2]])
        assert torch.equal(layer[:, [0, 1, 2, 4]], old[:, [0, 1, 2, 4]])
