"""Loads in virtual time: when requests go out, and what is measured of the tool itself."""

import asyncio
import json
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from chairlift.benchmark.calls import Exchange, GivenPrompts, Load, PromptMaker
from chairlift.benchmark.client import Client
from chairlift.benchmark.connections import POOL_SIZE, Connections
from chairlift.benchmark.plan import ramp_up
from chairlift.benchmark.prompts import MadePrompts
from chairlift.benchmark.records import CallRecord
from chairlift.benchmark.runner import FinishedRun, Limits, LoadRunner
from chairlift.benchmark.summary import BenchRun, summarize
from chairlift.benchmark.wire import Wire
from chairlift.errors import ConfigurationError
from chairlift.workload.arrivals import RampPoint
from chairlift.workload.distributions import Fixed
from chairlift.workload.slo import Slo
from chairlift.workload.streams import Stream, Workload
from tests.scripted_server import Asked, Script, ScriptedServer, steady
from tests.virtual_time import VirtualClock, run

MS = 1_000_000
LENGTHS = {"prompt_tokens": Fixed(5), "output_tokens": Fixed(4)}
WIRE = Wire(is_chat=False, model="m", has_tiers=True)


def stream(name: str = "s", **fields: object) -> Stream:
    return Stream(name=name, **{**LENGTHS, "num_requests": 8, **fields})  # type: ignore[arg-type]


def execute(
    streams: Sequence[Stream],
    script: Callable[[Asked], Script],
    *,
    maker: PromptMaker | None = None,
    limits: Limits | None = None,
    wire: Wire = WIRE,
    stop_s: float | None = None,
    tenants: Sequence[str] = (),
    keys: dict[str, str] | None = None,
    clock: VirtualClock | None = None,
) -> tuple[FinishedRun, ScriptedServer]:
    server = ScriptedServer(script)
    clock = clock or VirtualClock()

    async def main() -> FinishedRun:
        load = Load(
            workload=Workload(tuple(streams)),
            maker=maker or MadePrompts(vocab_size=300),
            wire=wire,
            tenants=tenants,
            keyed=frozenset(keys or ()),
        )
        async with Connections("http://server", timeout_s=60, transport=server) as http:
            stop = asyncio.Event()
            if stop_s is not None:
                asyncio.get_running_loop().call_later(stop_s, stop.set)
            return await LoadRunner(load, Client(http, wire, clock, keys), clock, limits=limits).run(stop)

    return run(main()), server


def sent_s(server: ScriptedServer) -> list[float]:
    return [asked.at_s for asked in server.asked]


def test_an_open_loop_sends_when_requests_are_due_however_slow_answers_are() -> None:
    ramp = (RampPoint(0.0, 2.0), RampPoint(3.0, 2.0))
    due = [request.arrival_ns for request in Workload((stream(ramp=ramp),)).arrivals()]
    finished, server = execute([stream(ramp=ramp)], lambda _: steady(4, 100.0, 1.0))
    assert sent_s(server) == pytest.approx([at_ns * 1e-9 for at_ns in due])
    assert server.most_open == 8
    assert finished.own.lateness_ms is not None
    assert finished.own.lateness_ms.maximum == pytest.approx(0, abs=1e-6)


def test_a_closed_loop_replaces_each_request_when_it_ends() -> None:
    finished, server = execute([stream(concurrency=2)], lambda _: steady(4, 0.1, 0.1))
    assert server.most_open == 2
    assert sent_s(server) == pytest.approx([0, 0, 0.4, 0.4, 0.8, 0.8, 1.2, 1.2])
    assert finished.end_ns - finished.start_ns == pytest.approx(1600 * MS)


def test_think_time_passes_between_a_request_and_its_replacement() -> None:
    _, server = execute([stream(concurrency=1, num_requests=3, think_s=0.5)], lambda _: steady(4, 0.1, 0.1))
    assert sent_s(server) == pytest.approx([0, 0.9, 1.8])


def test_clocked_requests_beyond_the_concurrency_wait_here_and_that_is_not_the_servers_latency() -> None:
    ramp = (RampPoint(0.0, 1000.0),)
    finished, server = execute(
        [stream(ramp=ramp, num_requests=4)], lambda _: steady(1, 1.0, 0.0), limits=Limits(max_concurrency=2)
    )
    assert server.most_open == 2
    summary = summarize(finished, [stream()])
    queued, ttft = summary.total.latencies["client_queue_ms"], summary.total.latencies["ttft_ms"]
    assert queued is not None
    assert ttft is not None
    assert queued.maximum == pytest.approx(1000, abs=10)
    assert ttft.maximum == pytest.approx(1000)
    assert summary.own.lateness_ms is not None
    assert summary.own.lateness_ms.maximum == pytest.approx(0, abs=1e-6)


def test_nothing_is_sent_after_the_duration_and_what_is_on_its_way_may_end() -> None:
    limits = Limits(duration_s=1.0)
    finished, server = execute([stream(concurrency=1, num_requests=99)], lambda _: steady(4, 0.1, 0.1), limits=limits)
    assert sent_s(server) == pytest.approx([0, 0.4, 0.8])
    assert all(record.is_ok for record in finished.records)
    assert not finished.is_interrupted


def test_a_stop_keeps_what_has_ended_and_gives_up_the_rest() -> None:
    finished, server = execute([stream(concurrency=2)], lambda _: steady(4, 0.1, 0.1), stop_s=0.6)
    assert finished.is_interrupted
    summary = summarize(finished, [stream()])
    assert (summary.total.num_ok, summary.total.num_interrupted, summary.total.num_failed) == (2, 2, 0)
    assert summary.total.errors == {}
    assert summary.total.num_output_tokens == 8
    assert server.num_open == 0


def test_a_turn_of_a_conversation_waits_for_the_answer_before_it_and_contains_it() -> None:
    maker = GivenPrompts([Exchange(("one", "two", "three"))], prefix="Be brief. ")
    wire = Wire(is_chat=True, model="m")
    chat = [stream(num_requests=1, concurrency=1, think_s=0.5)]
    finished, server = execute(chat, lambda _: steady(2, 0.1, 0.1), maker=maker, wire=wire)
    assert sent_s(server) == pytest.approx([0, 0.7, 1.4])
    said = [[(m["role"], m["content"]) for m in asked.body["messages"]] for asked in server.asked]
    assert said[0] == [("user", "Be brief. one")]
    assert said[2] == [*said[1], ("assistant", "aa"), ("user", "three")]
    assert [record.turn for record in finished.records] == [0, 1, 2]


def test_a_conversation_ends_where_a_turn_fails() -> None:
    maker = GivenPrompts([Exchange(("one", "two"))])
    refusal = Script([(0.1, b'{"error": "no"}')], status=429)
    finished, _ = execute([stream(num_requests=1, concurrency=1)], lambda _: refusal, maker=maker)
    assert [record.error for record in finished.records] == ["HTTP 429"]


def test_tenants_take_turns_and_are_named_by_key_or_as_user() -> None:
    keys = {"": "sk-all", "a": "sk-a"}
    finished, server = execute(
        [stream(concurrency=1, num_requests=4, tier=2)], lambda _: steady(1, 0.1, 0), tenants=["a", "b"], keys=keys
    )
    assert [asked.headers["authorization"] for asked in server.asked] == ["Bearer sk-a", "Bearer sk-all"] * 2
    assert [asked.body.get("user") for asked in server.asked] == [None, "b"] * 2
    assert {asked.body["priority"] for asked in server.asked} == {2}
    assert [group.name for group in summarize(finished, [stream()]).tenants] == ["a", "b"]


def test_a_tool_that_is_busy_reports_how_late_it_was() -> None:
    clock = VirtualClock()

    def busy(asked: Asked) -> Script:
        clock.block(0.2)
        return steady(4, 0.01, 0.01)

    finished, _ = execute([stream(num_requests=5)], busy, clock=clock)  # all due at 0
    summary = summarize(finished, [stream()])
    lateness = summary.own.lateness_ms
    assert lateness is not None
    assert lateness.maximum == pytest.approx(800, abs=1)
    assert summary.own.loop_lag_ms is not None
    assert summary.own.loop_lag_ms.maximum >= 700
    assert summary.own.cpu_busy > 0.9
    assert len(summary.warnings) >= 3
    assert any("sent late" in warning for warning in summary.warnings)


def test_an_idle_tool_warns_of_nothing() -> None:
    finished, _ = execute([stream(concurrency=2)], lambda _: steady(4, 0.1, 0.1))
    assert summarize(finished, [stream()]).warnings == ()


def summary_of_two() -> BenchRun:
    """One answer of 5 tokens (TTFT 100, gaps 20), one of 3 (TTFT 300, gaps 50), and one refusal; all sent at 0."""
    scripts = iter([steady(5, 0.1, 0.02, prompt=10), steady(3, 0.3, 0.05, prompt=20), Script([(0.01, b"{}")], 500)])
    objective = stream(num_requests=3, slo=Slo(ttft_ms=200, tpot_ms=30, e2e_ms=1000))
    finished, _ = execute([objective], lambda _: next(scripts))
    return summarize(finished, [objective])


def test_a_summary_is_what_can_be_computed_by_hand() -> None:
    summary = summary_of_two()
    total = summary.total
    assert (total.num_requests, total.num_ok, total.num_failed) == (3, 2, 1)
    assert {kind: error.count for kind, error in total.errors.items()} == {"HTTP 500": 1}
    assert summary.duration_s == pytest.approx(0.4)
    assert total.output_tokens_per_s == pytest.approx(8 / 0.4)
    assert total.total_tokens_per_s == pytest.approx((8 + 30) / 0.4)
    assert total.requests_per_s == pytest.approx(2 / 0.4)
    assert total.slo_attainment == pytest.approx(1 / 3)
    assert total.goodput_per_s == pytest.approx(1 / 0.4)
    ttft, itl, tpot, e2e = (total.latencies[name] for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"))
    assert ttft is not None
    assert itl is not None
    assert tpot is not None
    assert e2e is not None
    assert (ttft.at(50), ttft.at(99), ttft.mean) == pytest.approx((100, 300, 200))
    assert (itl.count, itl.at(50), itl.at(90), itl.mean) == pytest.approx((6, 20, 50, 30))
    assert (tpot.at(50), tpot.at(99)) == pytest.approx((20, 50))
    assert (e2e.at(50), e2e.at(99)) == pytest.approx((180, 400))
    assert summary.num_short == 1  # 4 tokens were asked for
    json.dumps(summary.to_json(detailed=True))


def test_an_exponential_ramp_has_the_number_of_requests_it_is_made_for() -> None:
    for strategy in ("linear", "exponential"):
        points = ramp_up(strategy, 1.0, 16.0, 400)
        expected = sum((b.at_s - a.at_s) * (a.rate_per_s + b.rate_per_s) / 2 for a, b in pairwise(points))
        assert expected == pytest.approx(400, rel=0.01)
        assert (points[0].rate_per_s, points[-1].rate_per_s) == pytest.approx((1, 16))
    with pytest.raises(ConfigurationError, match="above 0"):
        ramp_up("exponential", 0.0, 5.0, 10)


def test_a_second_run_asks_for_the_same_lengths_and_other_content() -> None:
    def prompts(salt: int) -> list[list[int]]:
        _, server = execute(
            [stream(concurrency=1)], lambda _: steady(1, 0.1, 0), maker=MadePrompts(vocab_size=300, salt=salt)
        )
        return [asked.body["prompt"] for asked in server.asked]

    first, again, second = prompts(1), prompts(1), prompts(2)
    assert first == again
    assert [len(prompt) for prompt in first] == [len(prompt) for prompt in second] == [5] * 8
    assert not {tuple(prompt) for prompt in first} & {tuple(prompt) for prompt in second}
    assert len({tuple(prompt) for prompt in first}) == 8


def test_a_record_that_failed_first_in_one_way_keeps_it() -> None:
    record = CallRecord(number=0, stream=0, tier=0, tenant="", due_ns=0)
    record.fail("error in stream", "died")
    record.fail("broken off", "")
    assert (record.error, record.message) == ("error in stream", "died")


def test_a_trace_that_turns_out_to_be_broken_is_said_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chairlift.benchmark.calls._READ_AHEAD_CALLS", 3)

    class Broken:
        def exchange(self, request: object, number: int) -> Exchange:
            del request
            if number == 5:  # behind what is read ahead
                raise ConfigurationError("line 5 is broken")
            return Exchange(("a",))

    with pytest.raises(ConfigurationError, match="line 5"):
        execute([stream(num_requests=8)], lambda _: steady(1, 0.1, 0), maker=Broken())


def test_many_requests_share_pools_of_few_and_those_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Connections] = []
    open_one = Connections._open
    monkeypatch.setattr(Connections, "_open", lambda self: opened.append(self) or open_one(self))
    finished, server = execute([stream(num_requests=90, concurrency=30)], lambda _: steady(2, 0.1, 0.1))
    assert server.most_open == 30
    assert len(opened) == -(-30 // POOL_SIZE)
    assert all(record.is_ok for record in finished.records)
