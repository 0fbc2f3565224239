"""Runs the requests with ``generate`` of transformers in static, padded batches: what batching without slots comes to.

Knows nothing of how its environment came about. Tokens that a request did not ask for, generated while its group's
longest one is not through, do not count.
"""

import os
from collections.abc import Sequence
from importlib.metadata import version

from benchmarks.peers.timing import Request, cpu_list, measure, read_task

_PAD_ID = 2


def main() -> None:
    task = read_task()
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(len(cpu_list()))
    dtype = torch.bfloat16 if task.precision == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(task.model, dtype=dtype)

    def generate(group: Sequence[Request]) -> None:
        width = max(len(one.prompt) for one in group)
        num_tokens = max(one.num_output_tokens for one in group)
        padding = [width - len(one.prompt) for one in group]
        ids = [[_PAD_ID] * before + one.prompt for one, before in zip(group, padding, strict=True)]
        mask = [[0] * before + [1] * len(one.prompt) for one, before in zip(group, padding, strict=True)]
        model.generate(
            input_ids=torch.tensor(ids),
            attention_mask=torch.tensor(mask),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=_PAD_ID,
        )

    def run(requests: Sequence[Request]) -> None:
        for first in range(0, len(requests), task.num_slots):
            generate(requests[first : first + task.num_slots])

    measure(task, run, version("transformers"))


if __name__ == "__main__":
    main()
