import httpx
import pytest

from chairlift.benchmark.connections import Connections
from chairlift.benchmark.probe import Dialect, Probe, check_wire, find_model
from chairlift.benchmark.wire import UsageStyle, Wire, refusal_text
from chairlift.errors import ChairliftError, ConfigurationError, EngineUnavailableError, InvalidRequestError
from tests.scripted_server import DONE, Asked, Script, ScriptedServer, text_event, usage_event
from tests.virtual_time import VirtualClock, run

REFUSAL = Script([(0, b'{"error": {"message": "unknown field"}}')], status=400)


def answer(asked: Asked) -> Script:
    """Counts 3 tokens and 2 more for each word."""
    prompt = asked.body["prompt"]
    size = len(prompt) if isinstance(prompt, list) else 3 + 2 * len(prompt.split())
    options = asked.body.get("stream_options", {})
    usage = (size, 1) if options.get("continuous_usage_stats") else None
    last = usage_event(size, 1) if options.get("include_usage") else b""
    return Script([(0.1, text_event("a", "length", usage)), (0, last + DONE)])


def find(server: ScriptedServer, *, prompts: str = "auto", is_chat: bool = False) -> Dialect:
    async def main() -> Dialect:
        async with Connections("http://server", timeout_s=9, transport=server) as http:
            return await Probe(http, VirtualClock()).find_dialect(Wire(is_chat=is_chat, model="m"), prompts=prompts)

    return run(main())


def test_a_server_that_understands_everything_is_asked_for_everything() -> None:
    dialect = find(ScriptedServer(answer))
    assert dialect.wire.usage is UsageStyle.EACH_CHUNK
    assert dialect.vocab_size == 32_000


@pytest.mark.parametrize(
    ("refused", "style"),
    [("continuous_usage_stats", UsageStyle.AT_THE_END), ("include_usage", UsageStyle.NONE)],
)
def test_less_is_asked_of_a_server_that_refuses_more(refused: str, style: UsageStyle) -> None:
    def script(asked: Asked) -> Script:
        return REFUSAL if refused in asked.body.get("stream_options", {}) else answer(asked)

    assert find(ScriptedServer(script)).wire.usage is style


def test_a_small_vocabulary_is_found() -> None:
    def script(asked: Asked) -> Script:
        prompt = asked.body["prompt"]
        return REFUSAL if isinstance(prompt, list) and max(prompt) >= 1000 else answer(asked)

    assert find(ScriptedServer(script)).vocab_size == 256


def test_words_are_counted_where_ids_are_refused() -> None:
    def script(asked: Asked) -> Script:
        return REFUSAL if isinstance(asked.body["prompt"], list) else answer(asked)

    dialect = find(ScriptedServer(script))
    assert dialect.vocab_size is None
    assert (dialect.scale.tokens_per_word, dialect.scale.overhead_tokens) == (2.0, 3.0)
    assert dialect.scale.num_words(103) == 50
    with pytest.raises(InvalidRequestError, match="no token ids"):
        find(ScriptedServer(script), prompts="ids")


def test_a_server_that_answers_nothing_is_refused_with_its_own_words() -> None:
    with pytest.raises(InvalidRequestError, match="unknown field"):
        find(ScriptedServer(lambda _: REFUSAL))


def test_no_server_is_said() -> None:
    nobody = ScriptedServer(lambda _: Script([(0, httpx.ConnectError("refused"))]))
    with pytest.raises(EngineUnavailableError, match="no server answers at http://server"):
        find(nobody)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (Script([(0, b'{"data": []}')]), "lists no model"),
        (Script([(0, b'{"error": {"message": "bad key"}}')], 401), "401: bad key"),
        (Script([(0, httpx.ConnectError("refused"))]), "no server answers"),
    ],
)
def test_a_server_without_models_is_said(script: Script, error: str) -> None:
    async def main() -> str:
        async with Connections("http://server", timeout_s=9, transport=ScriptedServer(lambda _: script)) as http:
            return await find_model(http, None, None)

    with pytest.raises(ChairliftError, match=error):
        run(main())


def test_the_first_model_is_taken_with_the_key() -> None:
    server = ScriptedServer(lambda _: Script([(0, b'{"data": [{"id": "first"}, {"id": "second"}]}')]))

    async def main() -> list[str]:
        async with Connections("http://server", timeout_s=9, transport=server) as http:
            return [await find_model(http, None, "sk"), await find_model(http, "mine", None)]

    assert run(main()) == ["first", "mine"]
    assert server.asked[0].headers["authorization"] == "Bearer sk"


def test_fields_that_the_tool_sets_cannot_be_extra() -> None:
    check_wire({"top_p": 0.5})
    with pytest.raises(ConfigurationError, match="prompt, stream"):
        check_wire({"stream": False, "prompt": "x"})


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": {"message": "a"}}', "a"),
        (b'{"message": "b"}', "b"),
        (b'{"detail": [{"loc": 1}]}', "[{'loc': 1}]"),
        (b'{"error": "c"}', "c"),
        (b"plain", "plain"),
        (b"[]", "[]"),
    ],
)
def test_refusals_of_all_forms_are_quoted(body: bytes, text: str) -> None:
    assert refusal_text(body) == text
