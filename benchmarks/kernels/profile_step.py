"""Runs a heavy-tailed workload through scheduler and torch executor in one process, and says where the time goes.

Knows nothing of servers: token ids in, token ids out. Example::

    python benchmarks/kernels/profile_step.py --num-requests 128 --max-num-seqs 64 --max-num-batched-tokens 512

With the C++ kernels, operations run one by one, so that each can be timed, and products are compared with what two
ceilings allow that are measured just before: reading their weights from memory once per step, and as many products per
second as torch makes of float32 matrices of 512 rows. Products of small whole numbers may beat the latter.
"""

import argparse
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from chairlift.config.model_source import resolve_model_source
from chairlift.config.resolved import CacheConfig, SchedulerConfig
from chairlift.config.sections import CacheSettings, ModelSettings
from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.scheduler import Scheduler
from chairlift.core.stepper import Stepper
from chairlift.execution.torch_backend.build import build_executor
from chairlift.execution.torch_backend.kernels_native.kernels import NativeKernels
from chairlift.execution.torch_backend.kernels_native.operations import FIRST_ARGUMENT, OperationList, Operations

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


class OperationWatch:
    """Runs the C++ kernels' operations one by one, and adds up what each kind takes."""

    def __init__(self, watch: Stopwatch, kernels: NativeKernels) -> None:
        self.multiplications: dict[str, float] = defaultdict(float)
        self.weight_bytes: dict[str, float] = defaultdict(float)
        due = kernels._due
        self._names = {address: name for name, address in due._library.bodies.items()}
        self._lanes = kernels._num_lanes
        run_these = due.run_these

        def run_each(operations: Operations, count: int, *, parallel: bool = True) -> None:
            for index in range(count):
                some = operations.fields[index : index + 1]
                name = self._describe(some[0])
                started = watch.clock()
                run_these(Operations(some), 1, parallel=parallel)
                watch.seconds[name] += watch.clock() - started
                watch.calls[name] += 1

        setattr(due, OperationList.run_these.__name__, run_each)

    def _describe(self, fields: Any) -> str:
        name = self._names[int(fields[0])]
        if not name.startswith("linear"):
            return name
        rows, depth, panels = (int(fields[FIRST_ARGUMENT + argument]) for argument in (7, 8, 9))
        outputs = panels * self._lanes * (2 if name == "linear_float" else 1)
        name = f"{name} {depth} -> {outputs}"
        self.multiplications[name] += rows * depth * outputs
        self.weight_bytes[name] += depth * outputs * {"nibble": 0.625, "byte": 1.0625}.get(name[7:].split()[0], 4.0)
        return name


def ceilings() -> tuple[float, float]:
    """Bytes read per second, and products of float32 numbers per second, with all threads; the best of several."""
    memory = torch.ones(64 << 20)
    x, weight = torch.ones(512, 1536), torch.ones(1536, 1536)
    read_s = min(_timed(memory.sum) for _ in range(5))
    multiply_s = min(_timed(lambda: x @ weight) for _ in range(20))
    return memory.nbytes / read_s, x.shape[0] * weight.numel() / multiply_s


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def show_products(watch: Stopwatch, operations: OperationWatch, num_steps: int) -> None:
    """Print each product's speed beside the ceilings."""
    bytes_per_s, products_per_s = ceilings()
    print(f"\nmemory: {bytes_per_s / 1e9:.1f} GB/s; float32 matrices: {products_per_s / 1e9:.0f} billion products/s")
    total_s = least_s = 0.0
    for name, products in sorted(operations.multiplications.items(), key=lambda entry: -watch.seconds[entry[0]]):
        seconds = watch.seconds[name]
        per_s, read_per_s = products / seconds, operations.weight_bytes[name] / seconds
        print(
            f"{name:28s} {seconds:8.2f} s  {per_s / 1e9:6.1f} billion products/s ({per_s / products_per_s:4.2f} of "
            f"float32's)  {read_per_s / 1e9:6.2f} GB/s of weights"
        )
        total_s += seconds
        least_s += max(products / products_per_s, operations.weight_bytes[name] / bytes_per_s)
    print(f"all products: {total_s:.2f} s in {num_steps} steps; as float32 at these ceilings: {least_s:.2f} s")


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
    operations = OperationWatch(watch, kernels) if isinstance(kernels, NativeKernels) else None
    for method in _KERNELS if operations is None else ():
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
    if operations is not None:
        show_products(watch, operations, num_steps)


if __name__ == "__main__":
    main()
