"""Lists of requests that every engine is given: the same token ids, the same number of tokens to generate.

Knows nothing of engines.
"""

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from chairlift.config.model_source import resolve_model_source
from chairlift.engine.build import build_tokenizer
from chairlift.workload.lengths import FIRST_TOKEN_ID, VOCAB_SIZE, make_w1

PREFILL_TOKENS = 4096
STREAM_TOKENS = 256
STREAM_PROMPT_TOKENS = 32
GSM8K_OUTPUT_TOKENS = 96
GSM8K_PREFIX = "gsm8k_8shot_prefix.txt"
GSM8K_QUESTIONS = "gsm8k_test.jsonl.gz"
ROOT = Path(__file__).resolve().parents[1]
TRACES = (ROOT / "shared" / "traces", ROOT.parent / "shared" / "traces")
"""Folders in which files of public data are looked for."""


class MissingDataError(Exception):
    """A task needs files that are not there."""


@dataclass(frozen=True)
class Requests:
    """Requests that are all there at the start: prompts, and how many tokens to generate for each.

    Args:
        name: of the task.
        items: pairs of them.
        shares_prefix: whether they begin alike, so that a prefix cache is to be on.
        num_prefix_tokens: how many tokens all of them begin with.
    """

    name: str
    items: list[tuple[list[int], int]]
    shares_prefix: bool = False
    num_prefix_tokens: int = 0

    @property
    def num_output_tokens(self) -> int:
        """Tokens to generate."""
        return sum(num_tokens for _, num_tokens in self.items)

    def write(self, path: Path) -> None:
        """Write what a runner reads."""
        path.write_text(json.dumps({"requests": self.items, "shares_prefix": self.shares_prefix}), encoding="utf-8")


def w1(num_requests: int, traces: Path | None) -> Requests:
    """Heavy-tailed lengths, as ``chairlift bench offline --workload w1`` has them."""
    del traces
    return Requests("w1", [(list(item.prompt_token_ids), item.num_output_tokens) for item in make_w1(num_requests)])


def stream(num_requests: int, traces: Path | None) -> Requests:
    """One request alone, of a short prompt and a long answer."""
    del num_requests, traces
    return Requests("stream", [(_random_ids(STREAM_PROMPT_TOKENS), STREAM_TOKENS)])


def prefill(num_requests: int, traces: Path | None) -> Requests:
    """One prompt of 4,096 tokens and its first token."""
    del num_requests, traces
    return Requests("prefill", [(_random_ids(PREFILL_TOKENS), 1)])


def gsm8k(num_requests: int, traces: Path | None) -> Requests:
    """Questions of GSM8K, each behind the same eight examples.

    Raises:
        MissingDataError: the files are not there.
    """
    folder = find_traces(traces)
    prefix = (folder / GSM8K_PREFIX).read_text(encoding="utf-8")
    with gzip.open(folder / GSM8K_QUESTIONS, "rt", encoding="utf-8") as lines:
        questions = [json.loads(line)["question"] for line, _ in zip(lines, range(num_requests), strict=False)]
    source = resolve_model_source(None)
    tokenizer = build_tokenizer(source, None)
    prompts = [tokenizer.encode(f"{prefix}Question: {question}\nAnswer:") for question in questions]
    shared = min(_num_common(prompts[0], prompt) for prompt in prompts)
    return Requests("gsm8k", [(prompt, GSM8K_OUTPUT_TOKENS) for prompt in prompts], True, shared)


def find_traces(given: Path | None) -> Path:
    """Return the folder with the public data.

    Raises:
        MissingDataError: there is none.
    """
    for folder in (given,) if given is not None else TRACES:
        if folder is not None and (folder / GSM8K_PREFIX).exists() and (folder / GSM8K_QUESTIONS).exists():
            return folder
    raise MissingDataError(
        f"{GSM8K_PREFIX} and {GSM8K_QUESTIONS} are in no folder that is known; name it with --traces"
    )


_TASKS: Mapping[str, Callable[[int, Path | None], Requests]] = {
    "w1": w1,
    "w1-256": w1,
    "stream": stream,
    "prefill": prefill,
    "gsm8k": gsm8k,
}
NUM_REQUESTS: Mapping[str, int] = {"w1": 128, "w1-256": 256, "stream": 1, "prefill": 1, "gsm8k": 128}
"""Tasks, and how many requests each has if nobody says otherwise."""


def make_requests(task: str, num_requests: int | None = None, traces: Path | None = None) -> Requests:
    """Return the requests of a task.

    Args:
        task: one of :data:`NUM_REQUESTS`.
        num_requests: how many, where the task is not of one request by its nature.
        traces: folder of public data.

    Raises:
        MissingDataError: files are not there.
    """
    return _TASKS[task](num_requests or NUM_REQUESTS[task], traces)


def _random_ids(count: int) -> list[int]:
    rng = Random(7)
    return [rng.randrange(FIRST_TOKEN_ID, VOCAB_SIZE) for _ in range(count)]


def _num_common(first: list[int], second: list[int]) -> int:
    for place, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return place
    return min(len(first), len(second))
