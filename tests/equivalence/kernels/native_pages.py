"""KV pages as the native kernels keep them, and the numbers that they stand for. Knows nothing of attention."""

import torch


def by_input(kv: torch.Tensor) -> torch.Tensor:
    """``[2, P, G, p, d] -> [2, P, G, p * d]``: keys number by number, values token by token."""
    keys, values = kv
    return torch.stack((keys.transpose(-1, -2).flatten(-2), values.flatten(-2)))


def by_token(numbers: torch.Tensor, page_size: int) -> torch.Tensor:
    """The other way round."""
    keys, values = numbers
    return torch.stack((keys.unflatten(-1, (-1, page_size)).transpose(-1, -2), values.unflatten(-1, (page_size, -1))))


def stored(kv: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Pages as the kernels keep them in a dtype, and as the numbers they stand for."""
    if dtype != torch.int8:
        return by_input(kv.to(dtype)).view(kv.shape), kv.to(dtype).float()
    scale = kv.abs().amax(dim=-1, keepdim=True) / 127
    values = torch.round(kv / scale).nan_to_num()
    pages = torch.cat((by_input(values.to(torch.int8)), scale.view(torch.int8).flatten(-2)), dim=-1)
    return pages.unflatten(-1, (kv.shape[3], -1)), values * scale


def kept_numbers(pages: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What pages stand for."""
    page_size = pages.shape[3]
    numbers = pages.flatten(-2)
    if dtype != torch.int8:
        return by_token(numbers.float(), page_size)
    scales = numbers[..., -4 * page_size :].contiguous().view(torch.float32)
    return by_token(numbers[..., : -4 * page_size].float(), page_size) * scales.unsqueeze(-1)
