"""What is chosen at start-up, what is refused, and that the description says so."""

import sys
from pathlib import Path

import pytest
import torch

from chairlift.config.model_source import ModelSource
from chairlift.config.sections import CacheSettings, ModelSettings
from chairlift.errors import ConfigurationError
from chairlift.execution.torch_backend import build, device, numbers
from chairlift.execution.torch_backend.build import BuiltExecutor, build_executor
from chairlift.execution.torch_backend.cpu_kernels import make_cpu_kernels, plain_kernels
from chairlift.execution.torch_backend.kernels_native import library
from chairlift.execution.torch_backend.kernels_native.library import LibraryError, open_library
from chairlift.execution.torch_backend.reference_kernels import ReferenceKernels
from chairlift.execution.torch_backend.weights.blocks import quantize_q4

PAGE_BYTES = 2 * 3 * 2 * 16 * 16 * 4  # keys and values, layers, heads, head size, page size, float32


def built(source: ModelSource, cache: CacheSettings, **model: object) -> BuiltExecutor:
    settings: dict = {"dtype": "float32", "num_threads": 1, **model}
    ready = build_executor(source, ModelSettings(**settings), cache, max_num_seqs=4, max_num_batched_tokens=64)
    ready.executor.close()
    return ready


def test_kv_memory_decides_the_number_of_pages(source: ModelSource) -> None:
    ready = built(source, CacheSettings(kv_cache_memory=str(100 * PAGE_BYTES + 5)))
    assert (ready.num_pages, ready.page_size, ready.max_model_len) == (100, 16, 512)
    assert (ready.dtype, ready.vocab_size, ready.eos_token_ids) == ("float32", 320, frozenset({2}))
    assert "100 pages of 16, 1600 tokens, 3.1 requests of the full 512 tokens" in ready.description
    assert "on 1 thread with" in ready.description


def test_a_fraction_of_free_memory_at_most_8_gib(source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "available_memory_bytes", lambda: 64 * 2**20)
    ready = built(source, CacheSettings(gpu_memory_utilization=0.25))
    assert 0.8 * 16 * 2**20 < ready.num_pages * PAGE_BYTES <= 16 * 2**20
    monkeypatch.setattr(build, "available_memory_bytes", lambda: 2**50)
    assert built(source, CacheSettings()).num_pages == 8 * 2**30 // PAGE_BYTES


def test_memory_for_no_request_at_all_is_refused(source: ModelSource) -> None:
    with pytest.raises(ConfigurationError, match=r"--kv-cache-memory 1KiB .* request of 16 tokens needs 12 KiB"):
        built(source, CacheSettings(kv_cache_memory="1KiB"))
    with pytest.raises(ConfigurationError, match="--page-size 4"):
        built(source, CacheSettings(kv_cache_memory=str(PAGE_BYTES - 1), page_size=4))


@pytest.mark.parametrize("memory", ["1PiB", "99999999999999999999GiB"])
def test_more_memory_than_there_is_is_refused(source: ModelSource, memory: str) -> None:
    with pytest.raises(ConfigurationError, match=f"--kv-cache-memory {memory} is more than the .* that are free"):
        built(source, CacheSettings(kv_cache_memory=memory))


def test_swap_space_is_pages_in_host_memory(source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CacheSettings(kv_cache_memory=str(10 * PAGE_BYTES), swap_space=str(7 * PAGE_BYTES + 5))
    ready = built(source, cache)
    assert (ready.num_host_pages, ready.page_bytes) == (7, PAGE_BYTES)
    assert "7 more pages in 84 KiB of --swap-space" in ready.description
    with pytest.raises(ConfigurationError, match=r"--swap-space 1KiB does not hold one KV page of 12 KiB"):
        built(source, CacheSettings(kv_cache_memory="1MiB", swap_space="1KiB"))
    monkeypatch.setattr(build, "available_memory_bytes", lambda: 2**20)
    with pytest.raises(ConfigurationError, match=r"--swap-space 1MiB is more than the .* beside"):
        built(source, CacheSettings(kv_cache_memory="512KiB", swap_space="1MiB"))


def test_a_model_length_beyond_the_models_own_is_refused(source: ModelSource) -> None:
    with pytest.raises(ConfigurationError, match=r"--max-model-len is 513.*512"):
        built(source, CacheSettings(kv_cache_memory="1MiB"), max_model_len=513)
    assert built(source, CacheSettings(kv_cache_memory="1MiB"), max_model_len=100).max_model_len == 100


@pytest.mark.parametrize(("native", "expected"), [(True, "bfloat16"), (False, "float32")])
def test_auto_takes_bfloat16_only_where_the_cpu_computes_it(
    source: ModelSource, monkeypatch: pytest.MonkeyPatch, native: bool, expected: str
) -> None:
    monkeypatch.setattr(numbers, "computes_bfloat16", lambda: native)
    assert built(source, CacheSettings(kv_cache_memory="1MiB"), dtype="auto").dtype == expected


@pytest.mark.skipif(not library.LIBRARY.exists(), reason="there was no C++ compiler")
def test_bfloat16_runs_in_cpp_where_there_are_tiles(source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "open_library", lambda: open_library("tiles"))
    ready = built(source, CacheSettings(kv_cache_memory="1MiB", kv_cache_dtype="int8"), dtype="bfloat16")
    assert "in bfloat16 on 1 thread with C++ kernels for tiles" in ready.description
    assert ready.dtype == "bfloat16"
    monkeypatch.setattr(library, "open_library", lambda: open_library("generic"))
    with pytest.raises(ConfigurationError, match="--kv-cache-dtype int8 does not work with the kernels"):
        built(source, CacheSettings(kv_cache_memory="1MiB", kv_cache_dtype="int8"), dtype="bfloat16")


def test_without_numba_plain_kernels_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if "kernels_cpu" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    chosen = make_cpu_kernels(torch.float32, 2, 16)
    assert isinstance(chosen.kernels, ReferenceKernels)
    assert chosen.num_torch_threads == 2
    chosen.close()


def test_container_limits_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_CGROUP", tmp_path)
    monkeypatch.setattr(device, "_system_available_bytes", lambda: 2**40)
    assert device.available_memory_bytes() == 2**40
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 600\ninactive_file 50\nactive_file 30\n")
    assert device.available_memory_bytes() == 350
    (tmp_path / "memory.max").write_text("max\n")
    assert device.available_memory_bytes() == 2**40
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert device.num_usable_cores() == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert device.num_usable_cores() >= 1


def test_system_memory_is_read() -> None:
    assert device.available_memory_bytes() > 2**20


@pytest.mark.parametrize("name", ["amx", "tiles", "avx512", "avx2", "generic"])
def test_of_products_only_few_rows_in_tiles_depend_on_the_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        opened = open_library(name)
    except LibraryError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(library, "open_library", lambda: opened)
    for deterministic in (False, True):
        chosen = make_cpu_kernels(torch.float32, 1, 64, deterministic=deterministic)
        assert chosen.is_batch_invariant == deterministic  # attention depends on the batch, whatever is multiplied how
        packed = chosen.kernels.pack_linear(quantize_q4(torch.randn(32, 64)))
        x = torch.randn(12, 64)
        outputs = [chosen.kernels.linear(x[:count], packed) for count in (3, 12)]
        chosen.kernels.finish()
        assert torch.equal(outputs[0], outputs[1][:3]) == (deterministic or not opened.has_tiles)
        del outputs
        chosen.close()


def test_deterministic_means_kernels_that_do_not_care_for_company(
    source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert built(source, CacheSettings(), dtype="auto", deterministic=True).dtype == "float32"
    with pytest.raises(ConfigurationError, match="leave out --dtype bfloat16"):
        built(source, CacheSettings(), dtype="bfloat16", deterministic=True)
    monkeypatch.setattr(build, "make_cpu_kernels", lambda dtype, threads, *_, **__: plain_kernels(dtype, threads))
    with pytest.raises(ConfigurationError, match=r"needs the C\+\+ kernels, .* would run with plain torch kernels"):
        built(source, CacheSettings(), deterministic=True)
