"""From token ids to what callers read: text, stop strings and finish reasons of one choice.

Knows nothing of scheduling or transports; the offline ``LLM`` and the API process both use it.
"""

from collections.abc import Sequence
from dataclasses import replace

from chairlift.core.sampling_params import SamplingParams
from chairlift.core.step_plan import PromptLogprobs, TokenLogprobs
from chairlift.engine.outputs import ChoiceDelta
from chairlift.engine.tokenizer import EngineTokenizer
from chairlift.tokenization.stop_strings import StopChecker


class ChoiceProcessor:
    """Follows one choice from its first token to its end.

    A choice ends in the engine (end token, length) or here (stop string). In the second case ``ended_here`` is true
    after :meth:`process`, and whoever drives the engine must tell it, with ``num_output_tokens`` to keep.
    """

    def __init__(
        self, index: int, sampling: SamplingParams, tokenizer: EngineTokenizer, prompt_token_ids: Sequence[int]
    ) -> None:
        self.index = index
        self.num_output_tokens = 0
        self.num_cached_tokens: int | None = None
        self.finish_reason: str | None = None
        self.ended_here = False
        self._sampling = sampling
        self._detokenizer = (
            tokenizer.detokenizer(prompt_token_ids, sampling.skip_special_tokens) if sampling.detokenize else None
        )
        self._stop_checker = (
            StopChecker(sampling.stop, sampling.include_stop_str_in_output, sampling.min_tokens)
            if sampling.stop
            else None
        )
        self._stop_string: str | None = None
        self._num_chars = 0
        """Characters of all tokens so far, those held back and cut off included."""
        self._embedding: bytes | None = None
        tells_prompt = index == 0 and sampling.prompt_logprobs is not None
        self._prompt_logprobs: list[TokenLogprobs] | None = [] if tells_prompt else None

    def process(
        self,
        token_ids: Sequence[int],
        *,
        finish_reason: str | None = None,
        stop_token: int | None = None,
        num_cached_tokens: int | None = None,
        logprobs: Sequence[TokenLogprobs] = (),
    ) -> ChoiceDelta:
        """Take what a step brought for this choice, and return what is new to its reader.

        Tokens after a stop string are dropped. Must not be called again once the choice has a finish reason.
        """
        if num_cached_tokens is not None and self.num_cached_tokens is None:
            self.num_cached_tokens = num_cached_tokens
        hidden_token = stop_token if not self._sampling.include_stop_str_in_output else None
        parts: list[str] = []
        offsets: list[int] = []
        num_taken = 0
        for position, token_id in enumerate(token_ids, 1):
            num_taken = position
            is_hidden = hidden_token is not None and position == len(token_ids)
            offsets.append(self._num_chars)
            parts.append(self._take(token_id, is_hidden=is_hidden))
            if self._stop_string is not None:
                break
        if self._stop_string is None and finish_reason is not None:
            parts.append(self._flush())
        self._settle(finish_reason)
        return ChoiceDelta(
            index=self.index,
            text="".join(parts),
            token_ids=tuple(token_ids[:num_taken]),
            num_output_tokens=self.num_output_tokens,
            num_cached_tokens=self.num_cached_tokens,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason(stop_token),
            logprobs=tuple(logprobs[:num_taken]),
            text_offsets=tuple(offsets),
            prompt_logprobs=self._take_prompt_logprobs() if num_taken else None,
            embedding=self._embedding,
        )

    def note_embedding(self, embedding: bytes) -> None:
        """Keep the vector that comes with the end of a pooled request."""
        self._embedding = embedding

    def note_prompt(self, found: PromptLogprobs) -> None:
        """Keep what a step said about some of the prompt's tokens; what it says a second time is the same."""
        known = self._prompt_logprobs
        if known is not None:
            # Index 0 is the prompt's second token: the first one has no log-probability.
            known.extend(found.logprobs[len(known) - (found.start - 1) :])

    def _take_prompt_logprobs(self) -> tuple[TokenLogprobs, ...] | None:
        known, self._prompt_logprobs = self._prompt_logprobs, None
        return None if known is None else tuple(known)

    def _take(self, token_id: int, *, is_hidden: bool) -> str:
        self.num_output_tokens += 1
        if self._detokenizer is None or is_hidden:
            return ""
        text = self._detokenizer.push(token_id)
        self._num_chars += len(text)
        return self._check(text)

    def _check(self, text: str) -> str:
        if self._stop_checker is None or not text:
            return text
        result = self._stop_checker.push(text, self.num_output_tokens)
        self._stop_string = result.stopped
        return result.emit

    def _flush(self) -> str:
        if self._detokenizer is None:
            return ""
        text = self._check(self._detokenizer.flush())
        if self._stop_checker is not None and self._stop_string is None:
            text += self._stop_checker.flush()
        return text

    def _settle(self, finish_reason: str | None) -> None:
        if self._stop_string is not None:
            self.finish_reason = "stop"
            self.ended_here = finish_reason is None
        else:
            self.finish_reason = finish_reason

    def _stop_reason(self, stop_token: int | None) -> int | str | None:
        if self._stop_string is not None:
            return self._stop_string
        return stop_token if stop_token in self._sampling.stop_token_ids else None


class PromptLogprobsGate:
    """Gives every choice of a prompt the prompt's log-probabilities, though only the first choice computes them.

    Deltas of the other choices are held back until the first one has told; each choice's first delta then has them.
    """

    def __init__(self) -> None:
        self._found: tuple[TokenLogprobs, ...] | None = None
        self._is_open = False
        self._told: set[int] = set()
        self._held: list[ChoiceDelta] = []

    def let_through(self, delta: ChoiceDelta) -> list[ChoiceDelta]:
        """Take a delta and return what may go out now, in order."""
        if not self._is_open:
            if delta.prompt_logprobs is None and not (delta.index == 0 and delta.finish_reason is not None):
                self._held.append(delta)
                return []
            self._is_open, self._found = True, delta.prompt_logprobs
        held, self._held = self._held, []
        return [self._completed(one) for one in (delta, *held)]

    def _completed(self, delta: ChoiceDelta) -> ChoiceDelta:
        if delta.index in self._told:
            return delta
        self._told.add(delta.index)
        return replace(delta, prompt_logprobs=self._found)


class _Unread:
    """What is pending of one choice: pieces to join, and the last delta for everything that is not added up."""

    __slots__ = ("last", "logprobs", "prompt_logprobs", "text_offsets", "texts", "token_ids")

    def __init__(self, delta: ChoiceDelta) -> None:
        self.texts = [delta.text]
        self.token_ids = list(delta.token_ids)
        self.logprobs = list(delta.logprobs)
        self.text_offsets = list(delta.text_offsets)
        self.prompt_logprobs = delta.prompt_logprobs
        self.last = delta

    def add(self, delta: ChoiceDelta) -> None:
        if delta.text:
            self.texts.append(delta.text)
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs)
        self.text_offsets.extend(delta.text_offsets)
        self.prompt_logprobs = delta.prompt_logprobs if self.prompt_logprobs is None else self.prompt_logprobs
        self.last = delta

    def merged(self) -> ChoiceDelta:
        return replace(
            self.last,
            text="".join(self.texts),
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            text_offsets=tuple(self.text_offsets),
            prompt_logprobs=self.prompt_logprobs,
        )


class DeltaBuffer:
    """Deltas of one request that nobody has read yet: those of one choice are merged, so that a slow reader costs no
    more memory than the output itself.
    """

    def __init__(self) -> None:
        # Readers mostly keep up: then a delta passes through as it is.
        self._unread: dict[int, ChoiceDelta | _Unread] = {}

    def __bool__(self) -> bool:
        return bool(self._unread)

    def put(self, delta: ChoiceDelta) -> None:
        """Add a delta after those of its choice."""
        unread = self._unread.get(delta.index)
        if unread is None:
            self._unread[delta.index] = delta
            return
        if isinstance(unread, ChoiceDelta):
            self._unread[delta.index] = unread = _Unread(unread)
        unread.add(delta)

    def take(self) -> ChoiceDelta:
        """Remove and return all that is pending of the choice that waits longest, as one delta."""
        unread = self._unread.pop(next(iter(self._unread)))
        return unread if isinstance(unread, ChoiceDelta) else unread.merged()

    def take_all(self) -> list[ChoiceDelta]:
        """Remove and return all that is pending, one delta for each choice: in time that grows with their number, and
        not with its square as if each were taken alone.
        """
        unread, self._unread = self._unread, {}
        return [one if isinstance(one, ChoiceDelta) else one.merged() for one in unread.values()]
