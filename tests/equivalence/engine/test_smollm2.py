"""The embedded model says what transformers says, token for token, however it is batched, chunked, cached or preempted.

A difference is allowed only where transformers' own two best logits lie within 1e-3 of each other: there, the order of
float32 sums decides. It is printed, and the prompt is compared no further.

transformers takes minutes for all prompts, so its answers lie in ``tests/data``; two are made again in every run,
and ``pytest tests/equivalence/engine --update-golden`` makes them all.
"""

import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from chairlift.config.model_source import ModelSource
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.llm import LLM
from chairlift.execution.torch_backend import build
from chairlift.execution.torch_backend.cpu_kernels import CpuKernelSet, make_cpu_kernels
from chairlift.execution.torch_backend.kernels import Kernels
from chairlift.execution.torch_backend.models import Llama, opened, read_model
from chairlift.execution.torch_backend.weights.checkpoint import Checkpoint

NUM_TOKENS = 64
TIE = 1e-3
EXACT: dict[str, Any] = {"dtype": "float32", "quantization": "none"}
KV_BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 4
"""Layers, keys and values, heads, head size, bytes of a float32."""
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
DATA = Path(__file__).parents[2] / "data"
QUESTIONS = DATA / "mt_bench_first_turns.jsonl"
ANSWERS = DATA / "mt_bench_greedy_by_transformers.json"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def questions() -> list[str]:
    return [json.loads(line)["prompt"] for line in QUESTIONS.read_text(encoding="utf-8").split("\n") if line]


class Truth:
    """transformers' greedy continuation of each prompt, and its logits where somebody differs."""

    def __init__(self, model: PreTrainedModel, prompts: Sequence[list[int]]) -> None:
        self.prompts = list(prompts)
        self._model = model
        self.outputs: list[list[int]] = json.loads(ANSWERS.read_text(encoding="utf-8")) if ANSWERS.exists() else []

    def make(self) -> None:
        """Let transformers answer all prompts, and keep it."""
        self.outputs = [self.generate(prompt) for prompt in self.prompts]
        ANSWERS.write_text(json.dumps(self.outputs) + "\n", encoding="utf-8")

    @torch.inference_mode()
    def generate(self, prompt: list[int]) -> list[int]:
        """Let transformers answer a prompt."""
        ids = torch.tensor([prompt])
        generate: Any = self._model.generate
        output = generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=2
        )
        assert isinstance(output, torch.Tensor)
        return output[0, len(prompt) :].tolist()

    @torch.inference_mode()
    def gap(self, index: int, position: int) -> float:
        """Difference of the two best logits for the token at this place of the output."""
        context = self.prompts[index] + self.outputs[index][:position]
        best = self._model(torch.tensor([context])).logits[0, -1].topk(2).values
        return float(best[0] - best[1])

    def check(self, name: str, outputs: Sequence[Sequence[int]]) -> None:
        """Compare, allowing ties."""
        for index, (theirs, ours) in enumerate(zip(self.outputs, outputs, strict=True)):
            if list(ours) == theirs:
                continue
            position = next(
                (i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b),
                min(len(theirs), len(ours)),
            )
            gap = self.gap(index, position)
            print(f"{name}: prompt {index} differs at token {position}, where the two best logits lie {gap:.2e} apart")
            assert gap < TIE, f"{name}: prompt {index} differs at token {position}, gap {gap}"


class OneModel:
    """Weights and kernels of the first engine, for all that follow: reading them takes longer than most tests here.

    Everything else of an engine (KV pages, scheduler, the recorded forward pass) is its own.
    """

    def __init__(self) -> None:
        self.models: dict[tuple[object, ...], Llama] = {}
        self._kernel_sets: dict[tuple[object, ...], CpuKernelSet] = {}
        self._checkpoints: dict[ModelSource, Checkpoint] = {}
        self._ends = ExitStack()

    @contextmanager
    def opened(self, source: ModelSource) -> Generator[Checkpoint]:
        if source not in self._checkpoints:
            self._checkpoints[source] = self._ends.enter_context(opened(source))
        yield self._checkpoints[source]

    def make_cpu_kernels(self, dtype: torch.dtype, num_threads: int, head_size: int, **settings: Any) -> CpuKernelSet:
        key = (dtype, num_threads, head_size, *settings.items())
        if key not in self._kernel_sets:
            self._kernel_sets[key] = made = make_cpu_kernels(dtype, num_threads, head_size, **settings)
            self._ends.callback(made.close)
        return replace(self._kernel_sets[key], close=lambda: None)

    def read_model(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        kernels: Kernels,
        max_model_len: int | None = None,
        **settings: Any,
    ) -> Llama:
        key = (id(checkpoint), dtype, id(kernels), max_model_len, *settings.items())
        if key not in self.models:
            self.models[key] = read_model(checkpoint, dtype, kernels, max_model_len, **settings)
        return self.models[key]

    def close(self) -> None:
        self._ends.close()


@pytest.fixture(scope="module", autouse=True)
def one_model() -> Iterator[OneModel]:
    one = OneModel()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("opened", "make_cpu_kernels", "read_model"):
            patch.setattr(build, name, getattr(one, name))
        yield one
    assert len(one.models) <= 1
    one.close()


@pytest.fixture(scope="module")
def llm(one_model: OneModel) -> Iterator[LLM]:
    with LLM(**EXACT, max_num_seqs=20, max_model_len=1024, kv_cache_memory="300MB") as llm:
        yield llm


@pytest.fixture(scope="module")
def truth(embedded_reference: PreTrainedModel, llm: LLM, request: pytest.FixtureRequest) -> Truth:
    texts = [llm.tokenizer.apply_chat_template([{"role": "user", "content": question}]) for question in questions()]
    truth = Truth(embedded_reference, [llm.tokenizer.encode(text, add_special_tokens=False) for text in texts])
    if request.config.getoption("--update-golden"):
        truth.make()
    assert len(truth.prompts) == len(truth.outputs) == 20
    return truth


def tokens(llm: LLM, prompts: Sequence[list[int]]) -> list[list[int]]:
    return [result.outputs[0].token_ids for result in llm.generate(prompts, GREEDY, use_tqdm=False)]


def test_the_answers_kept_are_those_of_transformers(truth: Truth) -> None:
    shortest = sorted(range(20), key=lambda index: len(truth.prompts[index]))[:2]
    again = [truth.generate(prompt) if i in shortest else truth.outputs[i] for i, prompt in enumerate(truth.prompts)]
    truth.check("kept", again)


def test_alone(llm: LLM, truth: Truth) -> None:
    assert llm.reset_prefix_cache()
    truth.check("alone", [tokens(llm, [prompt])[0] for prompt in truth.prompts])


def test_in_a_batch_of_twenty_and_with_a_warm_cache(llm: LLM, truth: Truth) -> None:
    assert llm.reset_prefix_cache()
    truth.check("batch", tokens(llm, truth.prompts))
    results = llm.generate(truth.prompts, GREEDY, use_tqdm=False)
    assert all(result.num_cached_tokens > 0 for result in results if len(result.prompt_token_ids) > 32)
    truth.check("warm", [result.outputs[0].token_ids for result in results])


def test_in_chunks_of_sixteen(truth: Truth) -> None:
    with LLM(
        **EXACT,
        max_model_len=1024,
        kv_cache_memory="300MB",
        max_num_seqs=4,
        max_num_batched_tokens=16,
        page_size=4,
    ) as llm:
        truth.check("chunked", tokens(llm, truth.prompts))


def test_under_preemption(truth: Truth) -> None:
    longest = max(map(len, truth.prompts)) + NUM_TOKENS
    memory = str(int(longest * 2.5 * KV_BYTES_PER_TOKEN))
    with LLM(**EXACT, max_num_seqs=20, max_model_len=1024, kv_cache_memory=memory) as llm:
        truth.check("preempted", tokens(llm, truth.prompts))
        assert llm.last_run_stats is not None
        assert llm.last_run_stats.num_preemptions > 0


@pytest.mark.parametrize("mode", ["recompute", "swap", "tail", "auto"])
def test_in_every_mode_with_two_fifths_of_the_pages(truth: Truth, mode: str) -> None:
    page_bytes = 16 * KV_BYTES_PER_TOKEN
    peak_pages = sum(-(-(len(prompt) + NUM_TOKENS) // 16) for prompt in truth.prompts)
    memory, space = str(int(0.4 * peak_pages) * page_bytes), str(peak_pages * page_bytes)
    with LLM(
        **EXACT,
        max_num_seqs=20,
        max_model_len=1024,
        kv_cache_memory=memory,
        swap_space=space,
        preemption_mode=mode,
        preemption_policy="cheapest" if mode == "auto" else "last-admitted",
    ) as llm:
        truth.check(mode, tokens(llm, truth.prompts))
        assert llm.last_run_stats is not None
        assert llm.last_run_stats.num_preemptions > 0


@pytest.mark.parametrize("depth", [2])
def test_with_two_steps_in_flight(truth: Truth, depth: int) -> None:
    with LLM(**EXACT, max_model_len=1024, kv_cache_memory="300MB", pipeline_depth=depth) as llm:
        truth.check("two steps in flight", tokens(llm, truth.prompts))


def test_in_static_groups(truth: Truth) -> None:
    with LLM(
        **EXACT,
        max_model_len=1024,
        kv_cache_memory="600MB",
        batching="static",
        max_num_seqs=10,
    ) as llm:
        truth.check("static", tokens(llm, truth.prompts))
