"""Questions to the engine: each answer finds its question, a death answers all, and a restart forgets nothing."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from chairlift.config.resolved import SchedulerConfig, TenantConfig
from chairlift.config.sections import QueueSettings
from chairlift.engine.messages import Configure, Configured, Explain, Explained, Inbound, Listed
from chairlift.engine.questions import Questions
from chairlift.errors import EngineUnavailableError, InvalidRequestError
from chairlift.observability.metrics import Metrics
from chairlift.observability.recorder import Recorder

TENANTS = {"a": TenantConfig(weight=2.0)}


class Talk:
    """Questions, and what was sent."""

    def __init__(self) -> None:
        self.sent: list[Inbound] = []
        self.recorder = Recorder(Metrics())
        self.questions = Questions(self.sent.append, self.recorder, TENANTS, QueueSettings())

    async def asked(self, count: int) -> None:
        while len(self.sent) < count:  # noqa: ASYNC110 (what is awaited is a plain list)
            await asyncio.sleep(0)

    def configured(self, question: int, error: str | None = None, **scheduler: object) -> None:
        config = SchedulerConfig(**{"tenants": TENANTS, **scheduler})  # type: ignore[arg-type]
        self.questions.answered(Configured(question, config, QueueSettings(max_ttft_ms=9.0), error))


def run(test: Callable[[Talk], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(Talk()), 10))  # type: ignore[arg-type]


def test_answers_find_their_questions_in_any_order() -> None:
    async def test(talk: Talk) -> None:
        first = asyncio.create_task(talk.questions.explain([1]))
        second = asyncio.create_task(talk.questions.explain([2, 3]))
        await talk.asked(2)
        numbers = {message.request_ids: message.question for message in talk.sent if isinstance(message, Explain)}
        talk.questions.answered(Explained(numbers[2, 3], (None, None)))
        talk.questions.answered(Explained(numbers[1,], (None,)))
        talk.questions.answered(Listed(99, (), (), 0, 0))  # nobody asked, or not any more
        assert (len(await first), len(await second)) == (1, 2)

    run(test)


def test_a_death_answers_whoever_asked_before_it() -> None:
    async def test(talk: Talk) -> None:
        asking = asyncio.create_task(talk.questions.list_requests(5))
        await talk.asked(1)
        talk.questions.engine_lost("it died")
        with pytest.raises(EngineUnavailableError, match="it died"):
            await asking
        talk.questions.answered(Listed(0, (), (), 0, 0))

    run(test)


def test_a_refused_change_changes_nothing_here_either() -> None:
    async def test(talk: Talk) -> None:
        asking = asyncio.create_task(talk.questions.configure({"watermark": 2}))
        await talk.asked(1)
        talk.configured(0)
        await talk.asked(2)
        talk.configured(1, error="--watermark must be at most 0.9")
        with pytest.raises(InvalidRequestError, match="at most"):
            await asking
        talk.questions.engine_ready()
        assert len(talk.sent) == 2

    run(test)


def test_a_fresh_engine_gets_the_changes_before_anything_else(caplog: pytest.LogCaptureFixture) -> None:
    async def test(talk: Talk) -> None:
        changes = {"watermark": 0.25, "max_lookahead": 8, "tenants": {"a": None, "b": {}}}
        asking = asyncio.create_task(talk.questions.configure(changes))
        await talk.asked(1)
        talk.configured(0)
        await talk.asked(2)
        talk.configured(1, watermark=0.25, tenants={"b": TenantConfig(most_urgent_tier=-2)})
        assert (await asking)["watermark"] == 0.25
        assert talk.recorder.tenants.find("b").most_urgent_tier == -2
        assert talk.questions.queue.max_ttft_ms == 9.0
        talk.questions.engine_ready()
        again = talk.sent[-1]
        assert isinstance(again, Configure)
        assert again.changes["watermark"] == 0.25
        assert again.changes["tenants"]["a"] is None
        assert again.changes["tenants"]["b"]["most_urgent_tier"] == -2
        talk.configured(again.question, watermark=0.25, error="cannot be")

    with caplog.at_level(logging.INFO):
        run(test)
    assert "changed=watermark before=0.0 now=0.25" in caplog.text
    assert "changed=max_lookahead" not in caplog.text  # it was 8 before
    assert "could not be set again: cannot be" in caplog.text
