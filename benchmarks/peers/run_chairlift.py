"""Runs the requests with Chairlift, in this process: what ``chairlift bench offline`` does, for requests of one's own.

Knows nothing of other engines.
"""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.peers.timing import Request, measure, read_task
from chairlift import LLM, SamplingParams, __version__


def main() -> None:
    task = read_task()
    settings: dict[str, object] = {"max_num_seqs": task.num_slots, "enable_prefix_caching": task.shares_prefix}
    with LLM(str(task.model), **settings, **task.settings) as llm:

        def run(requests: Sequence[Request]) -> None:
            sampling = [
                SamplingParams(temperature=0.0, max_tokens=one.num_output_tokens, ignore_eos=True, detokenize=False)
                for one in requests
            ]
            llm.generate([one.prompt for one in requests], sampling, use_tqdm=False)

        precision = f"{llm.model_info.numbers}, KV in {llm.settings.cache.kv_cache_dtype}"
        measure(replace(task, precision=precision), run, __version__)


if __name__ == "__main__":
    main()
