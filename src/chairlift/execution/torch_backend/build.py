"""From settings to a ready executor: picks numbers, threads and kernels, loads the model and sizes the KV memory.

Knows nothing of scheduling. The only place that sets the number of threads.
"""

from dataclasses import dataclass

import torch

from chairlift.config.model_source import ModelSource
from chairlift.config.sections import CacheSettings, ModelSettings
from chairlift.config.sizes import format_bytes, parse_bytes
from chairlift.errors import ConfigurationError
from chairlift.execution.torch_backend.batch import StandingBatch
from chairlift.execution.torch_backend.cpu_kernels import make_cpu_kernels
from chairlift.execution.torch_backend.device import available_memory_bytes, num_usable_cores
from chairlift.execution.torch_backend.executor import TorchExecutor
from chairlift.execution.torch_backend.kv_cache import KVCache, KVShape
from chairlift.execution.torch_backend.model_config import ModelConfig
from chairlift.execution.torch_backend.models import opened, read_model
from chairlift.execution.torch_backend.numbers import choose_kv_dtype, choose_numbers

_MAX_DEFAULT_KV_BYTES = 8 * 2**30
_MIN_KV_TOKENS = 16
"""A pool that cannot hold even a request of this many tokens is refused."""


@dataclass(frozen=True, slots=True)
class BuiltExecutor:
    """A ready executor and what was found out while building it."""

    executor: TorchExecutor
    num_pages: int
    num_host_pages: int
    page_bytes: int
    page_size: int
    max_model_len: int
    dtype: str
    quantization: str
    eos_token_ids: frozenset[int]
    vocab_size: int
    embedding_size: int
    description: str
    """One line for the log: what was chosen and how much fits."""


def build_executor(
    source: ModelSource,
    model: ModelSettings,
    cache: CacheSettings,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    pipeline_depth: int = 1,
) -> BuiltExecutor:
    """Load the model and make it ready to serve; everything is compiled and allocated when this returns.

    Raises:
        ConfigurationError: a setting cannot work, such as KV memory too small for any request.
        ModelLoadError: the model's files cannot be served.
    """
    num_threads = model.num_threads or num_usable_cores()
    torch.set_num_threads(num_threads)
    with opened(source) as checkpoint:
        config: ModelConfig = checkpoint.config
        numbers = choose_numbers(model, checkpoint.is_quantized)
        kernel_set = make_cpu_kernels(numbers.dtype, num_threads, config.head_dim, deterministic=model.deterministic)
        if model.deterministic and not kernel_set.is_batch_invariant:
            kernel_set.close()
            raise ConfigurationError(
                f"--deterministic needs the C++ kernels, but this model would run with {kernel_set.description}"
            )
        kv_dtype = choose_kv_dtype(cache.kv_cache_dtype, numbers, kernel_set.kv_dtypes)
        loaded = read_model(
            checkpoint,
            kernel_set.activation_dtype or numbers.dtype,
            kernel_set.kernels,
            model.max_model_len,
            quantization=numbers.quantization,
            product_dtype=numbers.dtype,
        )
    torch.set_num_threads(kernel_set.num_torch_threads)
    max_model_len = _choose_max_model_len(model.max_model_len, config)
    shape = KVShape(config.num_layers, config.num_kv_heads, config.head_dim, cache.page_size, kv_dtype)
    num_pages = _choose_num_pages(cache, shape, max_model_len, _activation_bytes(config, max_num_batched_tokens))
    num_host_pages = _choose_num_host_pages(cache, shape, num_pages)
    device = torch.device("cpu")
    executor = TorchExecutor(
        kernel_set.prepared(loaded, max(max_num_batched_tokens, max_num_seqs)),
        KVCache(shape, num_pages, device, num_host_pages=num_host_pages),
        StandingBatch(max_num_seqs, max_model_len, cache.page_size, device),
        draw=kernel_set.draw,
        runs_ahead=pipeline_depth > 1,
        on_close=kernel_set.close,
    )
    dtype_name, kv_dtype_name = (str(kind).removeprefix("torch.") for kind in (numbers.dtype, kv_dtype))
    num_tokens = num_pages * cache.page_size
    threads = "1 thread" if num_threads == 1 else f"{num_threads} threads"
    return BuiltExecutor(
        executor=executor,
        num_pages=num_pages,
        num_host_pages=num_host_pages,
        page_bytes=shape.page_bytes,
        page_size=cache.page_size,
        max_model_len=max_model_len,
        dtype=dtype_name,
        quantization=numbers.weights,
        eos_token_ids=config.eos_token_ids,
        vocab_size=config.vocab_size,
        embedding_size=config.hidden_size,
        description=(
            f"{source.name} in {numbers.description} on {threads} with {kernel_set.description}; "
            f"KV memory {format_bytes(num_pages * shape.page_bytes)} in {kv_dtype_name}: "
            f"{num_pages} pages of {cache.page_size}, "
            f"{num_tokens} tokens, {num_tokens / max_model_len:.1f} requests of the full {max_model_len} tokens"
            f"{_describe_host_tier(num_host_pages, shape)}"
        ),
    )


def _choose_max_model_len(wanted: int | None, config: ModelConfig) -> int:
    limit = config.max_position_embeddings
    if wanted is not None and wanted > limit:
        raise ConfigurationError(f"--max-model-len is {wanted}, but the model was made for at most {limit} tokens")
    return wanted or limit


def _choose_num_pages(cache: CacheSettings, shape: KVShape, max_model_len: int, activation_bytes: int) -> int:
    if cache.kv_cache_memory is not None:
        num_bytes = parse_bytes(cache.kv_cache_memory, setting="--kv-cache-memory")
        setting = f"--kv-cache-memory {cache.kv_cache_memory}"
        available_bytes = available_memory_bytes()
        if num_bytes > available_bytes:
            # The system would hand it out page by page until it kills somebody.
            raise ConfigurationError(
                f"{setting} is more than the {format_bytes(available_bytes)} that are free after loading the model"
            )
    else:
        free_bytes = max(0, available_memory_bytes() - activation_bytes)
        num_bytes = min(int(free_bytes * cache.gpu_memory_utilization), _MAX_DEFAULT_KV_BYTES)
        setting = f"--gpu-memory-utilization {cache.gpu_memory_utilization} of {format_bytes(free_bytes)} free"
    num_pages = shape.num_pages(num_bytes)
    needed_tokens = min(_MIN_KV_TOKENS, max_model_len)
    if num_pages * shape.page_size < needed_tokens:
        needed_pages = -(-needed_tokens // shape.page_size)
        raise ConfigurationError(
            f"{setting} leaves {format_bytes(num_bytes)} for KV pages, but a request of {needed_tokens} tokens needs "
            f"{format_bytes(needed_pages * shape.page_bytes)} ({needed_pages} pages of --page-size {shape.page_size})"
        )
    return num_pages


def _choose_num_host_pages(cache: CacheSettings, shape: KVShape, num_pages: int) -> int:
    num_bytes = parse_bytes(cache.swap_space, setting="--swap-space")
    free_bytes = max(0, available_memory_bytes() - num_pages * shape.page_bytes)
    if num_bytes > free_bytes:
        raise ConfigurationError(
            f"--swap-space {cache.swap_space} is more than the {format_bytes(free_bytes)} that are free beside "
            f"{format_bytes(num_pages * shape.page_bytes)} of KV memory"
        )
    if 0 < num_bytes < shape.page_bytes:
        raise ConfigurationError(
            f"--swap-space {cache.swap_space} does not hold one KV page of {format_bytes(shape.page_bytes)}"
        )
    return shape.num_pages(num_bytes)


def _describe_host_tier(num_host_pages: int, shape: KVShape) -> str:
    if num_host_pages == 0:
        return ""
    return f"; {num_host_pages} more pages in {format_bytes(num_host_pages * shape.page_bytes)} of --swap-space"


def _activation_bytes(config: ModelConfig, num_tokens: int) -> int:
    """Return about what one step of ``num_tokens`` rows occupies beside weights and KV, in float32."""
    attention = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    return 4 * (num_tokens * (4 * config.hidden_size + 3 * config.intermediate_size + attention) + config.vocab_size)
