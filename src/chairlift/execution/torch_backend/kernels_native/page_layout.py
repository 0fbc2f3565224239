"""How numbers lie in KV pages, by dtype and shape. Knows nothing of who reads them."""

import torch

KV_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
INT8_FOR_TILES = 3
"""Four numbers that follow each other along a sum lie side by side."""
_HEAD_SIZE_UNIT, _MAX_HEAD_SIZE = 16, 1024
_TILE_TOKENS, _TILE_NUMBERS, _MAX_TILE_HEAD_SIZE = 16, 64, 512


def kv_type(dtype: torch.dtype, head_size: int, page_size: int, *, has_tiles: bool) -> int:
    """Return the ``KVType`` of ``csrc/rows.h``."""
    fits_tiles = page_size % _TILE_TOKENS == 0 and head_size % _TILE_NUMBERS == 0 and head_size <= _MAX_TILE_HEAD_SIZE
    return INT8_FOR_TILES if dtype == torch.int8 and has_tiles and fits_tiles else KV_TYPES[dtype]


def fits_head_size(head_size: int) -> bool:
    """Whether attention works with a head size, whatever the instruction set."""
    return head_size % _HEAD_SIZE_UNIT == 0 and head_size <= _MAX_HEAD_SIZE
