"""What all runners do alike: read the requests, warm up, time them once, print one JSON line.

Knows nothing of engines, and needs the standard library only: runners are executed in the engines' own environments.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

NUM_WARMUPS = 8
NUM_WARMUP_TOKENS = 8


@dataclass(frozen=True)
class Request:
    """A prompt, and exactly how many tokens to generate: greedily, end tokens ignored."""

    prompt: list[int]
    num_output_tokens: int


@dataclass(frozen=True)
class Task:
    """What a runner is to do.

    Args:
        requests: all there at the start.
        shares_prefix: whether prompts begin alike, and prefix caching is on.
        model: the model in the form that this configuration reads.
        cache: folder for what the engine makes of it.
        precision: name of the configuration's arithmetic.
        num_slots: requests in a batch.
        program: the engine, where it is no Python package.
        settings: what else the engine is told.
    """

    requests: list[Request]
    shares_prefix: bool
    model: Path
    cache: Path
    precision: str
    num_slots: int
    program: Path | None
    settings: dict[str, str]

    @property
    def longest_tokens(self) -> int:
        """Prompt and output of the longest request."""
        return max(len(request.prompt) + request.num_output_tokens for request in self.requests)

    @property
    def warmups(self) -> list[Request]:
        """Some requests, short and backwards: no prefix of theirs helps any other."""
        few = self.requests[:NUM_WARMUPS]
        return [Request(one.prompt[::-1], min(NUM_WARMUP_TOKENS, one.num_output_tokens)) for one in few]


def read_task() -> Task:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=Path, required=True, help="JSON written by benchmarks.peers")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--precision", required=True)
    parser.add_argument("--num-slots", type=int, required=True)
    parser.add_argument("--program", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    given = json.loads(options.requests.read_text(encoding="utf-8"))
    requests = [Request(prompt, num_tokens) for prompt, num_tokens in given["requests"]]
    return Task(
        requests=requests,
        shares_prefix=given["shares_prefix"],
        model=options.model,
        cache=options.cache,
        precision=options.precision,
        num_slots=options.num_slots,
        program=options.program,
        settings=dict(text.split("=", 1) for text in options.set),
    )


def measure(task: Task, run: Callable[[Sequence[Request]], None], version: str) -> None:
    """Warm up, time the requests, and print the line."""
    run(task.warmups)
    start_s = time.perf_counter()
    run(task.requests)
    report(task, time.perf_counter() - start_s, version)


def report(task: Task, wall_s: float, version: str) -> None:
    """Print the line."""
    num_output = sum(request.num_output_tokens for request in task.requests)
    num_prompt = sum(len(request.prompt) for request in task.requests)
    figures = {
        "output_tok_s": num_output / wall_s,
        "total_tok_s": (num_output + num_prompt) / wall_s,
        "wall_s": wall_s,
        "num_requests": len(task.requests),
        "precision": task.precision,
        "version": version,
    }
    print(json.dumps(figures), flush=True)


def decline(reason: str) -> None:
    """Say that the engine cannot do this here, instead of figures."""
    print(json.dumps({"cannot_run": reason}), flush=True)


def cpu_list() -> list[int]:
    """CPUs that this process may use."""
    return sorted(os.sched_getaffinity(0))
