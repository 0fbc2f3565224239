"""Runs a batch of prompts on an engine in this process until each has ended, and measures it.

Knows nothing of progress bars or of how the engine was built.
"""

import signal
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from chairlift.core.outcome import RequestUpdate
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.end_tokens import end_tokens
from chairlift.engine.messages import AddRequest, Choice
from chairlift.engine.output_processor import ChoiceProcessor
from chairlift.engine.outputs import ChoiceDelta
from chairlift.engine.remote_errors import to_error
from chairlift.engine.runner import EngineRunner
from chairlift.engine.tokenizer import EngineTokenizer

_NS_PER_S = 1e9
_GRAMMAR_POLL_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStats:
    """What a batch of prompts took. ``slot_utilization`` is useful slot-steps over all slot-steps."""

    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_steps: int
    num_useful_slot_steps: int
    num_slots: int
    num_padding_tokens: int
    num_preemptions: int
    num_cached_tokens: int
    wall_s: float

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens."""
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens per second of wall time."""
        return self.num_output_tokens / self.wall_s if self.wall_s else 0.0

    @property
    def total_tokens_per_s(self) -> float:
        """Prompt and output tokens per second of wall time."""
        return self.num_tokens / self.wall_s if self.wall_s else 0.0

    @property
    def slot_utilization(self) -> float:
        """The part of all slot-steps in which a slot worked for a request that still lived."""
        num_slot_steps = self.num_steps * self.num_slots
        return self.num_useful_slot_steps / num_slot_steps if num_slot_steps else 0.0


class OfflineRun:
    """One batch. Add all requests, then iterate over the deltas; each comes with its request's place in the batch."""

    def __init__(self, runner: EngineRunner, tokenizer: EngineTokenizer) -> None:
        self._runner = runner
        self._tokenizer = tokenizer
        self._live: dict[int, tuple[int, ChoiceProcessor]] = {}
        self._num_requests = 0
        self._num_prompt_tokens = 0
        self._num_output_tokens = 0
        self._num_steps = 0
        self._num_useful = 0
        self._num_padding = 0
        self._before = runner.stats().scheduler
        self._start_ns = time.monotonic_ns()
        self._end_ns = self._start_ns

    def add(self, prompt_token_ids: tuple[int, ...], sampling: SamplingParams, choices: Sequence[Choice]) -> None:
        """Queue a request.

        Raises:
            InvalidRequestError: the engine refuses it.
        """
        message = AddRequest(
            choices=tuple(choices),
            prompt_token_ids=prompt_token_ids,
            sampling=sampling,
            stop_token_ids=end_tokens(sampling, self._runner.info.eos_token_ids),
        )
        verdict = self._runner.add(message, time.monotonic_ns())
        while verdict is None:
            time.sleep(_GRAMMAR_POLL_S)
            verdict = next(iter(self._runner.take_verdicts(time.monotonic_ns())), None)
        if verdict.error is not None:
            raise to_error(verdict)
        for index, choice in enumerate(choices):
            processor = ChoiceProcessor(index, sampling, self._tokenizer, prompt_token_ids)
            self._live[choice.request_id] = (self._num_requests, processor)
        self._num_requests += 1
        self._num_prompt_tokens += len(prompt_token_ids)

    def deltas(self) -> Iterator[tuple[int, ChoiceDelta]]:
        """Run steps until every choice has ended.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed; it is taken between two steps, so that nothing is left half done.
        """
        with _interrupt_flag() as interrupted:
            while self._live:
                if interrupted.is_set():
                    raise KeyboardInterrupt
                yield from self._step()
        self._end_ns = time.monotonic_ns()

    def close(self) -> None:
        """End what has not ended; afterwards the engine is idle."""
        now_ns = time.monotonic_ns()
        self._runner.abort(tuple(self._live), now_ns)
        self._live.clear()
        self._runner.settle(now_ns)

    @property
    def stats(self) -> RunStats:
        """What it took, once :meth:`deltas` is through."""
        after = self._runner.stats().scheduler
        return RunStats(
            num_requests=self._num_requests,
            num_prompt_tokens=self._num_prompt_tokens,
            num_output_tokens=self._num_output_tokens,
            num_steps=self._num_steps,
            num_useful_slot_steps=self._num_useful,
            num_slots=self._runner.info.max_num_seqs,
            num_padding_tokens=self._num_padding,
            num_preemptions=after.preemptions_total - self._before.preemptions_total,
            num_cached_tokens=after.prefix_hit_tokens_total - self._before.prefix_hit_tokens_total,
            wall_s=(self._end_ns - self._start_ns) / _NS_PER_S,
        )

    def _step(self) -> Iterator[tuple[int, ChoiceDelta]]:
        try:
            outcome = self._runner.step(time.monotonic_ns())
        except Exception:
            self._live.clear()
            self._runner.fail_all()
            raise
        updates = self._runner.take_expired()
        if outcome is not None:
            self._num_steps += 1
            self._num_useful += outcome.num_useful_slots
            self._num_padding += outcome.num_padding_tokens
            updates.extend(outcome.updates)
        elif not updates:
            raise RuntimeError(f"requests are alive but no step can be planned: {self._runner.describe_state()}")
        for update in updates:
            found = self._live.get(update.request_id)
            if found is not None:
                yield found[0], self._apply(update, found[1])

    def _apply(self, update: RequestUpdate, processor: ChoiceProcessor) -> ChoiceDelta:
        if update.prompt_logprobs is not None:
            processor.note_prompt(update.prompt_logprobs)
        if update.embedding is not None:
            processor.note_embedding(update.embedding)
        delta = processor.process(
            update.token_ids,
            finish_reason=update.finish_reason.value if update.finish_reason is not None else None,
            stop_token=update.stop_token,
            num_cached_tokens=update.num_cached_tokens,
            logprobs=() if update.logprobs is None else (update.logprobs,),
        )
        self._num_output_tokens += len(delta.token_ids)
        if processor.ended_here:
            self._runner.finish(update.request_id, processor.num_output_tokens, time.monotonic_ns())
        if delta.finish_reason is not None:
            del self._live[update.request_id]
        return delta


@contextmanager
def _interrupt_flag() -> Generator[threading.Event, None, None]:
    """Turn the first Ctrl-C into a flag; a second one interrupts at once. Only the main thread gets signals."""
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    previous = signal.getsignal(signal.SIGINT)

    def set_flag(number: int, frame: FrameType | None) -> None:
        del number, frame
        flag.set()
        signal.signal(signal.SIGINT, previous)

    signal.signal(signal.SIGINT, set_flag)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, previous)
