"""Runs the requests with the continuous batching of OpenVINO GenAI, in this process.

Knows nothing of how its environment came about.
"""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import openvino
import openvino_genai as genai

from benchmarks.peers.timing import Request, measure, read_task

KV_GIB = 4
MAX_NUM_BATCHED_TOKENS = 512
_HINTS = {"bf16": "bf16"}


def model_folder(gguf: Path, cache: Path) -> Path:
    """Return the folder with OpenVINO's own form of a GGUF file, which its reader of such files writes."""
    folder = cache / f"openvino-{gguf.stem}"
    if not (folder / "openvino_model.xml").exists():
        folder.mkdir(parents=True, exist_ok=True)
        link = folder / gguf.name
        link.unlink(missing_ok=True)
        link.symlink_to(gguf.resolve())
        genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
    return folder


def main() -> None:
    task = read_task()
    folder = model_folder(task.model, task.cache)
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = KV_GIB
    scheduler.max_num_batched_tokens = MAX_NUM_BATCHED_TOKENS
    scheduler.max_num_seqs = task.num_slots
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = task.shares_prefix
    hint = _HINTS.get(task.precision, "f32")
    pipeline = genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", {"INFERENCE_PRECISION_HINT": hint})

    def run(requests: Sequence[Request]) -> None:
        configs: list[genai.GenerationConfig] = []
        for one in requests:
            config = genai.GenerationConfig()
            config.max_new_tokens, config.ignore_eos, config.do_sample = one.num_output_tokens, True, False
            configs.append(config)
        prompts = [openvino.Tensor(np.array([one.prompt], dtype=np.int64)) for one in requests]
        answers = pipeline.generate(prompts, configs)
        for one, answer in zip(requests, answers, strict=True):
            if len(answer.m_generation_ids[0]) != one.num_output_tokens:
                raise RuntimeError(f"wanted {one.num_output_tokens} tokens, got {len(answer.m_generation_ids[0])}")

    measure(task, run, version("openvino-genai"))


if __name__ == "__main__":
    main()
