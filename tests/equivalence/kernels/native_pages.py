"""KV pages as the native kernels keep them, and the numbers that they stand for. Knows nothing of attention."""

import torch

from chairlift.execution.torch_backend.kernels_native.page_layout import INT8_FOR_TILES
from tests.equivalence.kernels.eager_kernels import CLOSE, EagerKernels


def by_input(kv: torch.Tensor) -> torch.Tensor:
    """``[2, P, G, p, d] -> [2, P, G, p * d]``: keys number by number, values token by token."""
    keys, values = kv
    return torch.stack((keys.transpose(-1, -2).flatten(-2), values.flatten(-2)))


def by_token(numbers: torch.Tensor, page_size: int) -> torch.Tensor:
    """The other way round."""
    keys, values = numbers
    return torch.stack((keys.unflatten(-1, (-1, page_size)).transpose(-1, -2), values.unflatten(-1, (page_size, -1))))


def by_word(kv: torch.Tensor) -> torch.Tensor:
    """``[2, P, G, p, d] -> [2, P, G, p * d]``: keys ``[d / 4][p][4]``, values ``[p / 4][d][4]``."""
    keys, values = kv
    keys = keys.unflatten(-1, (-1, 4)).transpose(-3, -2)
    values = values.unflatten(-2, (-1, 4)).transpose(-2, -1)
    return torch.stack((keys.flatten(-3), values.flatten(-3)))


def by_token_again(numbers: torch.Tensor, page_size: int) -> torch.Tensor:
    """The other way round."""
    keys, values = numbers
    keys = keys.unflatten(-1, (-1, page_size, 4)).transpose(-3, -2).flatten(-2)
    values = values.unflatten(-1, (page_size // 4, -1, 4)).transpose(-2, -1).flatten(-3, -2)
    return torch.stack((keys, values))


def stored(kernels: EagerKernels, kv: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Pages as the kernels keep them in a dtype, and as the numbers they stand for."""
    if dtype != torch.int8:
        return by_input(kv.to(dtype)).view(kv.shape), kv.to(dtype).float()
    laid_out = by_word if is_for_tiles(kernels, dtype, kv.shape[4], kv.shape[3]) else by_input
    scale = kv.abs().amax(dim=-1, keepdim=True) / 127
    values = torch.round(kv / scale).nan_to_num()
    pages = torch.cat((laid_out(values.to(torch.int8)), scale.view(torch.int8).flatten(-2)), dim=-1)
    return pages.unflatten(-1, (kv.shape[3], -1)), values * scale


def kept_numbers(kernels: EagerKernels, pages: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What pages stand for."""
    page_size = pages.shape[3]
    numbers = pages.flatten(-2)
    if dtype != torch.int8:
        return by_token(numbers.float(), page_size)
    read = by_token_again if is_for_tiles(kernels, dtype, pages.shape[4] - 4, page_size) else by_token
    scales = numbers[..., -4 * page_size :].contiguous().view(torch.float32)
    return read(numbers[..., : -4 * page_size].float(), page_size) * scales.unsqueeze(-1)


def is_for_tiles(kernels: EagerKernels, dtype: torch.dtype, head_size: int, page_size: int) -> bool:
    """Whether four numbers that follow each other along a sum lie side by side, and queries are rounded to 8 bits."""
    return bool(kernels.kv_type(dtype, head_size, page_size) == INT8_FOR_TILES)


def rounded_queries(kernels: EagerKernels, q: torch.Tensor, kv_dtype: torch.dtype, page_size: int) -> torch.Tensor:
    """Queries ``[T, H, d]`` as attention sees them: in eight bits, a scale per head, where pages are for tiles."""
    if not is_for_tiles(kernels, kv_dtype, q.shape[2], page_size):
        return q
    scale = q.abs().amax(dim=2, keepdim=True) / 127
    return torch.round(q / torch.where(scale > 0, scale, 1)) * scale


def attention_tolerance(
    kernels: EagerKernels, kv_dtype: torch.dtype, head_size: int, page_size: int
) -> dict[str, float]:
    """How far attention to rounded queries may be off: weights have 16 bits where pages are for tiles."""
    is_rounded = is_for_tiles(kernels, kv_dtype, head_size, page_size)
    return {"rtol": 1e-3, "atol": 1e-3} if is_rounded else CLOSE
