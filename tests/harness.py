"""Drives the scheduler on the toy model, with the invariants checked after every step. Knows nothing of pytest."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from chairlift.config.resolved import CacheConfig, SchedulerConfig
from chairlift.core import invariants
from chairlift.core.events import Event
from chairlift.core.outcome import StepOutcome
from chairlift.core.request import FinishReason, Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.scheduler import Scheduler
from chairlift.core.stepper import Stepper
from chairlift.execution.fake import FakeExecutor, reference_output

VOCAB_SIZE = 50
STOP_TOKEN = 7


def present(value: Any) -> Any:
    """The value, which a test knows to be there."""
    assert value is not None
    return value


class EventLog:
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]


class Rig:
    """A scheduler, a toy executor and a stepper, and what came out for each request."""

    def __init__(
        self,
        *,
        num_pages: int = 64,
        page_size: int = 4,
        depth: int = 1,
        prefix_caching: bool = True,
        num_host_pages: int = 0,
        **scheduler: object,
    ) -> None:
        settings: dict = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 400, **scheduler}
        self.log = EventLog()
        self.scheduler = Scheduler(
            SchedulerConfig(**settings),
            CacheConfig(
                num_pages=num_pages,
                page_size=page_size,
                num_host_pages=num_host_pages,
                enable_prefix_caching=prefix_caching,
            ),
            events=self.log,
        )
        self.executor = FakeExecutor(
            num_pages, page_size, num_host_pages=num_host_pages, vocab_size=VOCAB_SIZE, step_duration_ns=1
        )
        self.stepper = Stepper(self.scheduler, self.executor, depth)
        self.output: dict[int, list[int]] = defaultdict(list)
        self.vectors: dict[int, bytes] = {}
        self.finished: dict[int, FinishReason] = {}
        self.num_steps = 0
        self._next_id = 0

    def add(
        self,
        prompt: Sequence[int] | int,
        max_tokens: int | None = 8,
        *,
        stops: bool = False,
        priority: int = 0,
        tenant: str = "",
        salt: str | None = None,
        ttft_deadline_ns: int | None = None,
        deadline_ns: int | None = None,
        **sampling: object,
    ) -> int:
        """Add a request and return its id. A number as prompt makes a prompt of that length that no other shares."""
        request_id = self._next_id
        self._next_id += 1
        if isinstance(prompt, int):
            prompt = [(request_id * 31 + 17 * i) % 1000 + 1000 * request_id for i in range(prompt)]
        request = Request(
            request_id,
            prompt,
            SamplingParams(max_tokens=max_tokens, **{"temperature": 0.0, **sampling}),
            seed=request_id + 1,
            stop_token_ids=frozenset([STOP_TOKEN]) if stops else frozenset(),
            priority=priority,
            tenant=tenant,
            cache_salt=salt,
            ttft_deadline_ns=ttft_deadline_ns,
            deadline_ns=deadline_ns,
        )
        self.scheduler.add(request, self.num_steps)
        return request_id

    def step(self) -> StepOutcome | None:
        """Run one step, check the invariants, and collect what came."""
        outcome = self.stepper.step(self.num_steps)
        invariants.require(self.scheduler)
        for update in self.scheduler.take_expired():
            assert update.request_id not in self.finished
            assert update.finish_reason is not None
            self.finished[update.request_id] = update.finish_reason
        if outcome is not None:
            self.num_steps += 1
            for update in outcome.updates:
                self.output[update.request_id].extend(update.token_ids)
                if update.embedding is not None:
                    self.vectors[update.request_id] = update.embedding
                if update.finish_reason is not None:
                    assert update.request_id not in self.finished
                    self.finished[update.request_id] = update.finish_reason
        return outcome

    def run(self, max_steps: int = 5000) -> int:
        """Step until nothing is left, and check that every page came back."""
        start = self.num_steps
        while self.step() is not None:
            assert self.num_steps - start < max_steps, "no end in sight"
        assert not self.scheduler.has_unfinished
        stats = self.scheduler.stats()
        assert stats.num_leased_pages == 0
        assert stats.num_free_pages + stats.num_cached_pages == stats.num_pages
        assert stats.num_free_host_pages == stats.num_host_pages
        return self.num_steps - start


def alone(
    prompt: Sequence[int], max_tokens: int, *, stops: bool = False, min_tokens: int = 0, seed: int = 0
) -> list[int]:
    """What the toy model says to this prompt with nobody else around."""
    stop_token_ids = frozenset([STOP_TOKEN]) if stops else frozenset()
    return reference_output(
        prompt, max_tokens, VOCAB_SIZE, seed=seed, stop_token_ids=stop_token_ids, min_tokens=min_tokens
    )
