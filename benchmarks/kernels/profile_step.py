"""Runs a heavy-tailed workload through scheduler and torch executor in one process, and says where the time goes.

Knows nothing of servers: token ids in, token ids out. Example::

    python benchmarks/kernels/profile_step.py --num-requests 128 --max-num-seqs 64 --max-num-batched-tokens 512
"""

import argparse
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from chairlift.config.model_source import resolve_model_source
from chairlift.config.resolved import CacheConfig, SchedulerConfig
from chairlift.config.sections import CacheSettings, ModelSettings
from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.scheduler import Scheduler
from chairlift.core.stepper import Stepper
from chairlift.execution.torch_backend.build import build_executor

_KERNELS = ("linear", "rms_norm", "add_rms_norm", "rope_and_write_kv", "attention", "silu_mul")


def heavy_tailed_lengths(num_requests: int, seed: int) -> list[tuple[list[int], int]]:
    """Return prompts of random tokens and numbers of output tokens, both lognormal."""
    rng = random.Random(seed)
    pairs: list[tuple[list[int], int]] = []
    for _ in range(num_requests):
        prompt = min(1024, max(4, int(rng.lognormvariate(math.log(96), 0.9))))
        output = min(512, max(2, int(rng.lognormvariate(math.log(64), 1.0))))
        pairs.append(([rng.randrange(100, 49000) for _ in range(prompt)], output))
    return pairs


class Stopwatch:
    """Adds up the seconds spent in wrapped calls, by name."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)

    def wrap(self, owner: Any, method: str, name: str) -> None:
        """Replace a method of an object by one that is timed."""
        call: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = self.clock()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds[name] += self.clock() - started
                self.calls[name] += 1

        setattr(owner, method, timed)


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--num-requests", type=int, default=128)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-num-batched-tokens", type=int, default=512)
    parser.add_argument("--max-output", type=int, default=512)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--pipeline-depth", type=int, default=1)
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--cpu-time", action="store_true", help="count CPU time of one thread: for a busy machine")
    options = parser.parse_args()

    started = time.perf_counter()
    built = build_executor(
        resolve_model_source(options.model),
        ModelSettings(dtype=options.dtype, num_threads=1 if options.cpu_time else options.num_threads),
        CacheSettings(kv_cache_memory="4GiB"),
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        pipeline_depth=options.pipeline_depth,
    )
    print(f"{built.description}; ready in {time.perf_counter() - started:.1f} s")
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_model_len=built.max_model_len,
        ),
        CacheConfig(num_pages=built.num_pages, page_size=built.page_size, enable_prefix_caching=False),
    )
    watch = Stopwatch(time.thread_time if options.cpu_time else time.perf_counter)
    executor: Any = built.executor
    kernels = executor._model._kernels
    for method in _KERNELS:
        watch.wrap(kernels, method, method)
    watch.wrap(executor._model, "logits", "head (part of linear)")
    watch.wrap(executor._model, "forward", "forward (all but the head)")
    watch.wrap(executor, "_sample", "head and sampler")
    watch.wrap(executor._batch, "apply", "plan to batch")
    watch.wrap(executor._batch, "rows", "batch to tensors")
    watch.wrap(scheduler, "plan", "scheduler plan")
    watch.wrap(scheduler, "commit", "scheduler commit")

    pairs = heavy_tailed_lengths(options.num_requests, seed=7)
    for index, (prompt, num_outputs) in enumerate(pairs):
        sampling = SamplingParams(
            temperature=options.temperature,
            top_p=options.top_p,
            max_tokens=min(num_outputs, options.max_output),
            ignore_eos=True,
        )
        scheduler.add(Request(index, prompt, sampling, seed=index), 0)
    stepper = Stepper(scheduler, executor, options.pipeline_depth)
    num_steps = num_outputs_done = num_rows = 0
    started = watch.clock()
    while (outcome := stepper.step(time.perf_counter_ns())) is not None:
        num_steps += 1
        num_outputs_done += sum(len(update.token_ids) for update in outcome.updates)
        num_rows += outcome.num_prefill_tokens + outcome.num_decode_tokens
    elapsed_s = watch.clock() - started
    print(
        f"{elapsed_s:.1f} s, {num_steps} steps, {num_rows} rows, {num_outputs_done} output tokens: "
        f"{num_outputs_done / elapsed_s:.1f} output tok/s, {num_rows / elapsed_s:.1f} rows/s"
    )
    for name, seconds in sorted(watch.seconds.items(), key=lambda entry: -entry[1]):
        calls = watch.calls[name]
        share, each_us = seconds / elapsed_s, seconds / calls * 1e6
        print(f"{name:28s} {seconds:8.2f} s  {share:6.1%}  {calls:7d} calls  {each_us:9.1f} us")


if __name__ == "__main__":
    main()
