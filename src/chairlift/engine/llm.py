"""Offline generation: the whole engine in this process, for scripts, evaluations and benchmarks.

Knows nothing of HTTP. Nothing runs between two calls.
"""

import itertools
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, cast

from tqdm import tqdm

from chairlift.config.load import load_settings
from chairlift.config.sections import QueueSettings
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.bad_words import with_bad_tokens
from chairlift.engine.build import build_engine, locate_model
from chairlift.engine.embeddings import check_dimensions, pooling_params, shape_embedding
from chairlift.engine.messages import Choice, ModelInfo
from chairlift.engine.offline_run import OfflineRun, RunStats
from chairlift.engine.outputs import (
    ChoiceDelta,
    CompletionOutput,
    EmbeddingRequestOutput,
    RequestOutput,
    describe_token,
)
from chairlift.engine.prompts import EncodedPrompt, Prompt, encode_prompt, match_sampling, split_prompts
from chairlift.engine.seeds import SeedSource
from chairlift.engine.tokenizer import EngineTokenizer, build_tokenizer
from chairlift.engine.validation import check_request
from chairlift.errors import EngineUnavailableError, InvalidRequestError

Message = Mapping[str, Any]


class LLM:
    """A model and an engine in this process.

    Example::

        llm = LLM(max_num_seqs=32, kv_cache_memory="2GiB")
        for output in llm.generate(["Hello", "Bonjour"], SamplingParams(max_tokens=20)):
            print(output.outputs[0].text)

    Args:
        model: Hugging Face folder, GGUF file or hub id; the embedded model if absent.
        **settings: any setting of the command line under its name with underscores, such as ``max_num_seqs``.

    Raises:
        ConfigurationError: a setting is unknown or cannot work.
        ModelLoadError: the model cannot be loaded.
    """

    def __init__(self, model: str | None = None, **settings: object) -> None:
        # Everything is queued at once here, so a cap on the queue would refuse work that nobody else waits behind.
        self.settings = replace(load_settings({"model": model, **settings}), queue=QueueSettings())
        source = locate_model(self.settings)
        self._tokenizer = build_tokenizer(source, self.settings.model.chat_template)
        self._built = build_engine(self.settings, source, is_offline=True)
        self._request_ids = itertools.count()
        self._seeds = SeedSource(self.settings.model.seed)
        self._is_busy = threading.Lock()
        self._is_closed = False
        self.last_run_stats: RunStats | None = None
        """What the last :meth:`generate`, :meth:`chat` or :meth:`embed` took."""

    @property
    def tokenizer(self) -> EngineTokenizer:
        """The model's tokenizer."""
        return self._tokenizer

    @property
    def model_info(self) -> ModelInfo:
        """What was loaded, and what fits."""
        return self._built.runner.info

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Generate for all prompts together, and return the results in the order of the prompts.

        Every prompt is checked before the first one starts. Ctrl-C ends all of them and leaves the engine usable.

        Args:
            prompts: one or many; each is text, a list of token ids, or ``{"prompt_token_ids": ids}``.
            sampling_params: one for all prompts or one for each; ``SamplingParams()`` if absent.
            use_tqdm: whether to show a progress bar.

        Raises:
            InvalidRequestError: a prompt or its sampling choices are wrong.
        """
        encoded = [encode_prompt(prompt, self._tokenizer.encode) for prompt in split_prompts(prompts)]
        return self._run(encoded, self._match(sampling_params, len(encoded)), use_tqdm=use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Continue one conversation or many, each a list of ``{"role": ..., "content": ...}``; see :meth:`generate`."""
        is_one = not messages or isinstance(messages[0], Mapping)
        conversations = cast("Sequence[Sequence[Message]]", [messages] if is_one else messages)
        encoded: list[EncodedPrompt] = []
        for conversation in conversations:
            text = self._tokenizer.apply_chat_template(
                conversation,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **(chat_template_kwargs or {}),
            )
            # The template has written the special tokens already.
            encoded.append(EncodedPrompt(text, tuple(self._tokenizer.encode(text, add_special_tokens=False))))
        return self._run(encoded, self._match(sampling_params, len(encoded)), use_tqdm=use_tqdm)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Generator[ChoiceDelta]:
        """Generate for one prompt and yield what is new as it comes; leaving the loop early aborts."""
        encoded = [encode_prompt(prompt, self._tokenizer.encode)]
        with self._start(encoded, self._match(sampling_params, 1)) as run:
            for _, delta in run.deltas():
                yield delta

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        use_tqdm: bool = True,
        *,
        dimensions: int | None = None,
        normalize: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """Make a vector of each prompt, as ``pooling_type`` says, and return them in the order of the prompts.

        Args:
            prompts: as for :meth:`generate`.
            use_tqdm: whether to show a progress bar.
            dimensions: keep the first so many numbers of each; only with ``matryoshka``.
            normalize: scale each to length 1.

        Raises:
            InvalidRequestError: a prompt is wrong, or vectors may not be cut like that.
            EngineUnavailableError: a vector is not finite.
        """
        settings = self.settings.embeddings
        check_dimensions(dimensions, self.model_info.embedding_size, is_matryoshka=settings.matryoshka)
        encoded = [encode_prompt(prompt, self._tokenizer.encode) for prompt in split_prompts(prompts)]
        results = [EmbeddingRequestOutput(str(i), one.text, list(one.token_ids)) for i, one in enumerate(encoded)]
        with (
            self._start(encoded, [pooling_params(settings.pooling_type)] * len(encoded)) as run,
            _progress(len(encoded), use_tqdm=use_tqdm) as bar,
        ):
            for place, delta in run.deltas():
                if delta.embedding is None:
                    raise EngineUnavailableError(f"the vector of prompt {place} is not finite")
                vector = shape_embedding(delta.embedding, dimensions, is_normalized=normalize)
                results[place].outputs.embedding = vector.tolist()
                results[place].num_cached_tokens = delta.num_cached_tokens or 0
                bar.update()
            self.last_run_stats = run.stats
        return results

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes."""
        return self._built.runner.reset_prefix_cache()

    def close(self) -> None:
        """Free the model; the object cannot be used afterwards."""
        self._is_closed = True
        self._built.executor.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _match(
        self, sampling_params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
    ) -> list[SamplingParams]:
        matched = match_sampling(sampling_params, num_prompts)
        known: dict[int, SamplingParams] = {}
        for sampling in matched:
            if id(sampling) not in known:
                known[id(sampling)] = with_bad_tokens(sampling, self._tokenizer.encode)
        return [known[id(sampling)] for sampling in matched]

    @contextmanager
    def _start(
        self, prompts: Sequence[EncodedPrompt], sampling_params: Sequence[SamplingParams]
    ) -> Generator[OfflineRun]:
        """One batch, alone on the engine: two at once would take each other's tokens."""
        if self._is_closed:
            raise InvalidRequestError("this LLM is closed")
        if not self._is_busy.acquire(blocking=False):
            raise InvalidRequestError(
                "this LLM is busy: another generate, chat, embed or stream has not ended; let it end, or close the "
                "stream"
            )
        try:
            with closing(self._queue(prompts, sampling_params)) as run:
                yield run
        finally:
            self._is_busy.release()

    def _queue(self, prompts: Sequence[EncodedPrompt], sampling_params: Sequence[SamplingParams]) -> OfflineRun:
        for prompt, sampling in zip(prompts, sampling_params, strict=True):
            check_request(prompt.token_ids, sampling, self.model_info)
        run = OfflineRun(self._built.runner, self._tokenizer)
        try:
            for prompt, sampling in zip(prompts, sampling_params, strict=True):
                seeds = self._seeds.choice_seeds(sampling.seed, sampling.n)
                run.add(prompt.token_ids, sampling, [Choice(next(self._request_ids), seed) for seed in seeds])
        except BaseException:
            run.close()
            raise
        return run

    def _run(
        self, prompts: Sequence[EncodedPrompt], sampling_params: Sequence[SamplingParams], *, use_tqdm: bool
    ) -> list[RequestOutput]:
        results = [
            RequestOutput(
                request_id=str(place),
                prompt=prompt.text,
                prompt_token_ids=list(prompt.token_ids),
                outputs=[CompletionOutput(index) for index in range(sampling.n)],
                finished=False,
            )
            for place, (prompt, sampling) in enumerate(zip(prompts, sampling_params, strict=True))
        ]
        with (
            self._start(prompts, sampling_params) as run,
            _progress(len(prompts), use_tqdm=use_tqdm) as bar,
        ):
            num_output_tokens = 0
            for place, delta in run.deltas():
                num_output_tokens += len(delta.token_ids)
                if _add(results[place], delta, self._tokenizer.token_text):
                    bar.set_postfix_str(f"{num_output_tokens} output tokens", refresh=False)
                    bar.update()
            self.last_run_stats = run.stats
        return results


def _progress(num_prompts: int, *, use_tqdm: bool) -> "tqdm[Any]":
    return tqdm(total=num_prompts, desc="Prompts", unit="prompt", dynamic_ncols=True, disable=not use_tqdm)


def _add(result: RequestOutput, delta: ChoiceDelta, token_text: Callable[[int], str]) -> bool:
    """Put a delta where it belongs; true if the whole request ended with it."""
    output = result.outputs[delta.index]
    output.token_ids.extend(delta.token_ids)
    output.text += delta.text
    result.num_cached_tokens = max(result.num_cached_tokens, delta.num_cached_tokens or 0)
    if delta.logprobs:
        output.logprobs = output.logprobs or []
        output.cumulative_logprob = output.cumulative_logprob or 0.0
        for token_id, found in zip(delta.token_ids, delta.logprobs, strict=True):
            output.logprobs.append(describe_token(token_id, found, token_text))
            output.cumulative_logprob += found.token_logprob
    if delta.prompt_logprobs is not None:
        pairs = zip(result.prompt_token_ids[1:], delta.prompt_logprobs, strict=True)
        result.prompt_logprobs = [None, *(describe_token(token_id, found, token_text) for token_id, found in pairs)]
    if delta.finish_reason is None:
        return False
    output.finish_reason, output.stop_reason = delta.finish_reason, delta.stop_reason
    result.finished = all(choice.finish_reason is not None for choice in result.outputs)
    return result.finished
