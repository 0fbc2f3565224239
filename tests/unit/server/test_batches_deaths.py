"""An engine that is down, or dies, while lines of a batch are sent: only the line that kills it fails."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from chairlift.config.sections import BatchSettings
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.outputs import ChoiceDelta
from chairlift.errors import EngineDiedError, EngineDownError, EngineUnavailableError, OverloadedError
from chairlift.server.batches import calls
from chairlift.server.batches.objects import ENDED
from tests.unit.server.stub_engine import StubEngine, letters
from tests.unit.server.test_batches import Site, line, run, until
from tests.unit.server.test_batches_windows import at_work, kept

NUM_LINES = 6
MOST_TURNS = 100_000


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "FIRST_PAUSE_S", 0.0)


class Mortal:
    """A script of the stub engine: it dies, and takes along all that run, where it is told to."""

    def __init__(self, is_deadly: Callable[[bytes, int], bool]) -> None:
        self.is_deadly = is_deadly
        self.num_sent: Counter[bytes] = Counter()
        self.running: list[bytes] = []
        self.beside_deaths: list[list[bytes]] = []
        self._life = asyncio.Event()

    async def __call__(self, prompt: Sequence[int], sampling: SamplingParams) -> AsyncIterator[ChoiceDelta]:
        name, life = bytes(prompt), self._life
        self.num_sent[name] += 1
        self.running.append(name)
        try:
            for _ in range(5):
                await asyncio.sleep(0)
                if life.is_set():
                    raise EngineDiedError("the engine process died")
            if self.is_deadly(name, self.num_sent[name]):
                for _ in range(MOST_TURNS if self.num_sent[name] == 1 else 0):
                    if len(self.running) == 1:  # the first death is to be beside others
                        await asyncio.sleep(0)
                self.beside_deaths.append([other for other in self.running if other != name])
                life.set()
                self._life = asyncio.Event()
                raise EngineDiedError("the engine process died")
            async for delta in letters(prompt, sampling):
                if life.is_set():
                    raise EngineDiedError("the engine process died")
                yield delta
        finally:
            self.running.remove(name)


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("error", [EngineDownError("it is down"), OverloadedError("it is full")])
def test_lines_wait_while_the_engine_is_down_as_while_it_is_full(tmp_path: Path, error: Exception) -> None:
    num_refused: Counter[bytes] = Counter()

    def refuse(prompt: Sequence[int]) -> Exception | None:
        num_refused[bytes(prompt)] += 1
        return error if num_refused[bytes(prompt)] <= 30 else None

    async def work(site: Site) -> None:
        batch_id = await site.start(*map(line, range(NUM_LINES)))
        await site.work()
        assert (await site.show(batch_id))["request_counts"] == {"total": 6, "completed": 6, "failed": 0}

    run(Site(tmp_path, StubEngine(refuse=refuse)), work)


@pytest.mark.usefixtures("no_pauses")
def test_only_the_line_that_kills_the_engine_fails(tmp_path: Path) -> None:
    script = Mortal(lambda name, _: name == b"p2")

    async def work(site: Site) -> None:
        batch_id = await site.start(*map(line, range(NUM_LINES)))
        await site.work()
        shown = await site.show(batch_id)
        assert (shown["status"], shown["request_counts"]) == ("completed", {"total": 6, "completed": 5, "failed": 1})
        failed = await site.results(shown["error_file_id"])
        assert list(failed) == ["line-2"]
        answer = failed["line-2"]
        assert (answer["status_code"], answer["body"]["error"]["type"]) == (503, "engine_unavailable")
        assert len(script.beside_deaths) == calls.MAX_DEATHS_IN_COMPANY + calls.MAX_FAILURES
        assert script.beside_deaths[0]
        assert script.beside_deaths[-calls.MAX_FAILURES :] == [[]] * calls.MAX_FAILURES

    run(Site(tmp_path, StubEngine(script=script), BatchSettings(batch_concurrency=3)), work)


@pytest.mark.usefixtures("no_pauses")
def test_no_line_fails_at_deaths_that_several_are_beside(tmp_path: Path) -> None:
    """Somebody ends the engine again and again, whichever line is there, and each is sent many times."""
    script = Mortal(lambda name, num_sent: num_sent < calls.MAX_DEATHS_IN_COMPANY + calls.MAX_FAILURES)

    async def work(site: Site) -> None:
        batch_id = await site.start(*map(line, range(NUM_LINES)))
        await site.work()
        assert (await site.show(batch_id))["request_counts"] == {"total": 6, "completed": 6, "failed": 0}

    run(Site(tmp_path, StubEngine(script=script), BatchSettings(batch_concurrency=3)), work)
    assert len(script.beside_deaths) > calls.MAX_DEATHS_IN_COMPANY + calls.MAX_FAILURES


@pytest.mark.usefixtures("no_pauses")
def test_a_line_at_which_the_engine_fails_without_dying_is_tried_a_few_times(tmp_path: Path) -> None:
    def refuse(prompt: Sequence[int]) -> Exception | None:
        return EngineUnavailableError("no numbers") if bytes(prompt) == b"p2" else None

    async def work(site: Site) -> None:
        batch_id = await site.start(*map(line, range(3)))
        await site.work()
        assert (await site.show(batch_id))["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
        assert len(site.engine.submitted) == 2 + calls.MAX_FAILURES

    run(Site(tmp_path, StubEngine(refuse=refuse)), work)


@pytest.mark.parametrize("end", ["cancelled", "expired"])
def test_a_batch_ends_while_its_lines_wait_for_an_engine(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "FIRST_PAUSE_S", 1e6)

    async def work(site: Site) -> None:
        monkeypatch.setattr("chairlift.server.batches.api.now_s", lambda: site.now_s)
        batch_id = await site.start(*map(line, range(3)), window="1h")
        stored = kept(site, batch_id)
        async with at_work(site):
            await until(lambda: len(site.engine.submitted) == 3)
            if end == "cancelled":
                await site.a.post(f"/v1/batches/{batch_id}/cancel")
            else:
                site.now_s = stored.batch.expires_at
                site.runner.notice()
            await until(lambda: stored.batch.status in ENDED)
        assert stored.batch.status == end

    run(Site(tmp_path, StubEngine(refuse=lambda _: EngineDownError("it is down"))), work)
