"""One request against answers whose moments are known: what is taken down is what happened."""

import httpx
import pytest

from chairlift.benchmark.client import Client
from chairlift.benchmark.connections import Connections
from chairlift.benchmark.records import CallRecord, TokenCounts, spread
from chairlift.benchmark.sse import EventDecoder
from chairlift.benchmark.wire import Wire
from tests.scripted_server import (
    DONE,
    Script,
    ScriptedServer,
    chat_event,
    event,
    steady,
    text_event,
    usage_event,
)
from tests.virtual_time import VirtualClock, run

MS = 1_000_000


def ask(script: Script, *, is_chat: bool = False) -> tuple[CallRecord, str]:
    async def main() -> tuple[CallRecord, str]:
        wire = Wire(is_chat=is_chat, model="m")
        async with Connections("http://server/v1", timeout_s=9, transport=ScriptedServer(lambda _: script)) as http:
            record = CallRecord(number=0, stream=0, tier=0, tenant="", due_ns=0)
            text = await Client(http, wire, VirtualClock()).answer(wire.body("hello", 8), record)
            return record, text

    return run(main())


def gaps_ms(record: CallRecord) -> list[float]:
    gaps, counts = record.gaps_ns()
    return [gap / MS for gap, count in zip(gaps, counts, strict=True) for _ in range(count)]


def test_latencies_are_what_their_definitions_say() -> None:
    # Tokens at 100 ms (1), 120 ms (3 in one chunk) and 160 ms (1); the end is told at 170 ms.
    script = Script(
        [
            (0.100, text_event("a", usage=(7, 1))),
            (0.020, text_event("bcd", usage=(7, 4))),
            (0.040, text_event("e", usage=(7, 5))),
            (0.010, text_event("", "length", usage=(7, 5))),
            (0.005, usage_event(7, 5) + DONE),
        ]
    )
    record, text = ask(script)
    assert record.is_ok
    assert text == "abcde"
    assert record.ttft_ns == 100 * MS
    assert record.tpot_ns == pytest.approx((160 - 100) / (5 - 1) * MS)
    assert record.e2e_ns == 170 * MS
    assert record.tally.basis is TokenCounts.PER_CHUNK
    assert list(record.tally.counts) == [1, 3, 1]
    assert gaps_ms(record) == pytest.approx([20 / 3, 20 / 3, 20 / 3, 40])
    assert sum(gaps_ms(record)) == pytest.approx(60)
    assert [pause / MS for pause in record.pauses_ns()] == [20, 40]
    assert (record.tally.num_prompt_tokens, record.tally.num_tokens) == (7, 5)
    assert record.end_ns == 175 * MS


def test_tokens_that_come_with_the_first_one_waited_for_nothing() -> None:
    script = Script([(0.1, text_event("abc", usage=(1, 3))), (0.05, text_event("d", "stop", usage=(1, 4)) + DONE)])
    record, _ = ask(script)
    assert gaps_ms(record) == pytest.approx([0, 0, 50])
    assert record.tpot_ns == pytest.approx(50 * MS / 3)


def test_one_token_has_no_time_per_further_token() -> None:
    record, _ = ask(steady(1, 0.1, 0.02))
    assert record.is_ok
    assert record.tpot_ns is None
    assert gaps_ms(record) == []


def test_b85_tokens_that_come_in_one_chunk_share_the_time_since_the_one_before() -> None:
    chunks = [(0.050, text_event("abcde", usage=(7, 5 * number))) for number in range(1, 21)]
    record, _ = ask(Script([*chunks, (0, text_event("", "length", usage=(7, 100))), (0, usage_event(7, 100) + DONE)]))
    assert record.tally.num_tokens == 100
    gaps = gaps_ms(record)
    assert len(gaps) == 99
    # The first five came together and waited for nothing but the first token.
    assert sum(gaps) / len(gaps) == pytest.approx(19 * 50 / 99)
    assert max(gaps) == pytest.approx(10)


def test_usage_at_the_end_counts_and_one_token_per_chunk_is_noticed() -> None:
    record, _ = ask(steady(5, 0.1, 0.02))
    assert record.tally.basis is TokenCounts.ONE_EACH
    assert gaps_ms(record) == pytest.approx([20] * 4)


def test_more_tokens_than_chunks_are_spread_by_length_of_text() -> None:
    pieces = [(0.1, text_event("a")), (0.02, text_event("bcdefg")), (0.02, text_event("h", "stop"))]
    record, _ = ask(Script([*pieces, (0.0, usage_event(3, 7) + DONE)]))
    assert record.tally.basis is TokenCounts.SPREAD
    assert list(record.tally.counts) == [1, 5, 1]
    assert record.tally.num_tokens == 7
    assert len(gaps_ms(record)) == 6


@pytest.mark.parametrize(
    ("total", "sizes", "counts"),
    [(7, [1, 6, 1], [1, 5, 1]), (3, [5, 5, 5], [1, 1, 1]), (4, [0, 0], [2, 2]), (2, [1, 1, 1, 1], [0, 1, 1, 0])],
)
def test_spread_tokens_add_up(total: int, sizes: list[int], counts: list[int]) -> None:
    assert sum(spread(total, sizes)) == total
    assert sorted(spread(total, sizes)) == sorted(counts)


def test_without_usage_tokens_are_estimated_and_that_is_said() -> None:
    pieces = [(0.1, text_event("a")), (0.02, text_event("b", "stop") + DONE)]
    record, _ = ask(Script(pieces))
    assert record.is_ok
    assert record.tally.basis is TokenCounts.ESTIMATED
    assert record.tally.num_tokens == 2
    assert record.tally.num_prompt_tokens is None


def test_the_role_of_a_chat_is_no_token_and_reasoning_is_no_answer() -> None:
    pieces = [
        (0.01, chat_event(role="assistant", content="")),
        (0.09, chat_event(reasoning_content="hm")),
        (0.02, chat_event("Yes")),
        (0.02, chat_event(finish="stop")),
        (0.0, usage_event(9, 2) + DONE),
    ]
    record, text = ask(Script(pieces), is_chat=True)
    assert record.ttft_ns == 100 * MS
    assert record.e2e_ns == 140 * MS
    assert record.tally.num_tokens == 2
    assert text == "Yes"


def test_tokens_without_any_text_are_there_when_the_answer_ends() -> None:
    record, text = ask(Script([(0.3, text_event("", "length")), (0.0, usage_event(3, 2) + DONE)]))
    assert record.is_ok
    assert text == ""
    assert record.ttft_ns == 300 * MS
    assert record.tally.num_tokens == 2


BROKEN = httpx.ReadError("connection reset")


@pytest.mark.parametrize(
    ("script", "kind", "said"),
    [
        (Script([(0, b'{"error": {"message": "too long"}}')], 400), "HTTP 400", "too long"),
        (Script([(0, b'{"detail": "queue full"}')], 503), "HTTP 503", "queue full"),
        (Script([(0, b"<html>gateway")], 502), "HTTP 502", "<html>gateway"),
        (Script([(0, httpx.ConnectError("refused"))]), "connect", "refused"),
        (Script([(0.1, text_event("a")), (0.1, BROKEN)]), "connection broken", "connection reset"),
        (Script([(0.1, text_event("a")), (9, httpx.ReadTimeout(""))]), "timeout", "ReadTimeout"),
        (Script([(0.1, text_event("a")), (0, event(error={"message": "died"}) + DONE)]), "error in stream", "died"),
        (Script([(0.1, text_event("", "stop")), (0, usage_event(3, 0) + DONE)]), "no tokens", "without a token"),
        (Script([(0.1, text_event("a"))]), "broken off", "ended before"),
        (Script([(0.1, b"data: {oops\n\n"), (0, DONE)]), "not a chunk", "oops"),
    ],
)
def test_b87_every_way_to_fail_has_a_kind_and_raises_nothing(script: Script, kind: str, said: str) -> None:
    record, _ = ask(script)
    assert record.error == kind
    assert said in record.message
    assert record.end_ns >= record.sent_ns


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_are_found_however_the_bytes_are_cut(size: int) -> None:
    stream = b": hi\r\n\r\ndata: one\r\n\r\nevent: x\ndata:two\ndata: three\n\nid: 4\n\ndata: last"
    decoder, found = EventDecoder(), []
    for start in range(0, len(stream), size):
        found += decoder.feed(stream[start : start + size])
    assert found == [b"one", b"two\nthree"]
    assert decoder.finish() == [b"last"]
