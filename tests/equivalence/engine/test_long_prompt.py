"""A long prompt arrives among streams of the real model: nobody misses a token, and a short prompt passes it."""

from collections.abc import Iterator

import pytest

from chairlift.config.load import load_settings
from chairlift.core.events import Event, Scheduled, TokensEmitted
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.build import build_engine, locate_model
from chairlift.engine.messages import AddRequest, Choice
from chairlift.engine.runner import EngineRunner
from tests.harness import present

STREAMS = range(8)
LONG, SHORT = 100, 101


class Recorded:
    """An engine on the embedded model whose events are kept."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        settings = load_settings({"max_model_len": 2048, "kv_cache_memory": "400MB", "max_num_seqs": 16}, env={})
        built = build_engine(settings, locate_model(settings), events=self)
        self.runner: EngineRunner = built.runner
        self.executor = built.executor

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def add(self, request_id: int, num_prompt_tokens: int, max_tokens: int) -> None:
        message = AddRequest(
            choices=(Choice(request_id, 0),),
            prompt_token_ids=tuple(1000 + (request_id * 7919 + i) % 40_000 for i in range(num_prompt_tokens)),
            sampling=SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True),
            stop_token_ids=frozenset(),
        )
        assert present(self.runner.add(message, 0)).error is None

    def step(self) -> int:
        outcome = self.runner.step(0)
        assert outcome is not None
        return outcome.step

    def steps_of_chunks(self, request_id: int) -> list[int]:
        scheduled = [event for event in self.events if isinstance(event, Scheduled)]
        return [event.step for event in scheduled for chunk in event.chunks if chunk.request_id == request_id]

    def steps_of_tokens(self, request_id: int) -> list[int]:
        return [e.step for e in self.events if isinstance(e, TokensEmitted) and request_id in e.request_ids]


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    recorded = Recorded()
    yield recorded
    recorded.executor.close()


def test_a_prompt_of_1500_tokens_among_eight_streams(recorded: Recorded) -> None:
    for stream in STREAMS:
        recorded.add(stream, 20, max_tokens=40)
    while any(not recorded.steps_of_tokens(stream) for stream in STREAMS):
        recorded.step()
    recorded.add(LONG, 1500, max_tokens=2)
    recorded.step()
    recorded.add(SHORT, 50, max_tokens=2)
    arrived = recorded.step()
    while not recorded.steps_of_tokens(LONG):
        recorded.step()
    prefill = recorded.steps_of_chunks(LONG)
    assert len(prefill) >= 6, "256 tokens a step at most"
    assert prefill == list(range(prefill[0], prefill[-1] + 1)), "it advances in every step"
    for stream in STREAMS:
        assert set(prefill) <= set(recorded.steps_of_tokens(stream)), "every stream has its token in every step of it"
    assert recorded.steps_of_tokens(SHORT)[0] < arrived + 3, "the short prompt has its first token within three steps"
    assert recorded.steps_of_tokens(SHORT)[0] < recorded.steps_of_tokens(LONG)[0]
