"""What a request waits for, and the settings that change while it does."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest

from chairlift.config.sections import ServerSettings, TenancySettings
from chairlift.config.tenants import TenantKey, Tenants
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.outputs import ChoiceDelta
from chairlift.errors import DeadlineExceededError, QueueTimeoutError
from chairlift.server.access import Access
from chairlift.server.app import create_app
from tests.unit.server.stub_engine import StubEngine, letters, post, request

ACCESS = Access(
    ServerSettings(),
    TenancySettings(admin_api_key="sk-admin"),
    Tenants(keys=(TenantKey("a", "sk-a"), TenantKey("a", "sk-a2"), TenantKey("b", "sk-b"))),
)
COMPLETIONS = "/v1/completions"


class Gate:
    """A script that says nothing until it is opened."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()

    async def script(self, prompt: Sequence[int], sampling: SamplingParams) -> AsyncIterator[ChoiceDelta]:
        await self.is_open.wait()
        async for delta in letters(prompt, sampling):
            yield delta


class Conversation:
    """One request that waits at the gate, and others that ask about it."""

    def __init__(self, client: httpx.AsyncClient, engine: StubEngine) -> None:
        self.client, self.engine = client, engine

    async def ask(self, path: str, key: str | None = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return await self.client.get(path, headers=headers)


def while_waiting(check: Any, *, access: Access = ACCESS, key: str | None = "sk-a", **options: Any) -> httpx.Response:
    """Run ``check`` while a completion with two choices of two prompts waits; return its answer."""

    async def run() -> httpx.Response:
        gate = Gate()
        engine = StubEngine(script=gate.script)
        app = create_app(engine, ServerSettings(), access)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            body = {"prompt": ["x", "y"], "n": 2, "max_tokens": 1, **options.pop("body", {})}
            waiting = asyncio.ensure_future(
                client.post(COMPLETIONS, json=body, headers={**headers, "X-Request-Id": "mine/own"})
            )
            while len(app.state.context.directory) == 0:  # noqa: ASYNC110 (nothing tells of it)
                await asyncio.sleep(0)
            (request_id,) = app.state.context.directory._by_id
            try:
                await check(Conversation(client, engine), request_id)
            finally:
                gate.is_open.set()
            answer = await waiting
            assert len(app.state.context.directory) == 0
            assert not app.state.context.directory._by_engine_id
            assert not app.state.context.directory._by_label
            assert (await client.get(f"/v1/requests/{request_id}", headers=headers)).status_code == 404
            return answer

    return asyncio.run(run())


def test_a_waiting_request_is_explained_to_its_sender_choice_by_choice() -> None:
    async def check(talk: Conversation, request_id: str) -> None:
        answer = (await talk.ask(f"/v1/requests/{request_id}", "sk-a")).json()
        assert (answer["id"], answer["object"], answer["label"]) == (request_id, "request", "mine/own")
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        first = answer["choices"][0]
        assert (first["blocked_on"], first["reason"], first["position"]) == ("pages", "3 pages are missing", 2)
        assert talk.engine.explained == [[100, 101, 102, 103]]
        assert answer["deadline_ms"] == 5000

    answer = while_waiting(check, body={"deadline_ms": 5000})
    assert answer.headers["x-chairlift-request-id"] == answer.json()["id"]


def test_nobody_else_learns_that_it_exists() -> None:
    async def check(talk: Conversation, request_id: str) -> None:
        strangers = [await talk.ask(f"/v1/requests/{request_id}", key) for key in ("sk-a2", "sk-b")]
        unknown = await talk.ask("/v1/requests/cmpl-0", "sk-a")
        assert [response.status_code for response in [*strangers, unknown]] == [404, 404, 404]
        assert (
            strangers[0].json()["error"]["message"].replace(request_id, "cmpl-0")
            == (unknown.json()["error"]["message"])
        )
        assert (await talk.ask(f"/v1/requests/{request_id}")).status_code == 401
        assert (await talk.ask(f"/v1/requests/{request_id}", "sk-admin")).status_code == 200
        assert len(talk.engine.explained) == 1

    while_waiting(check)


def test_the_sender_s_own_label_finds_it_but_nobody_else_s() -> None:
    async def check(talk: Conversation, request_id: str) -> None:
        assert (await talk.ask("/v1/requests/mine%2Fown", "sk-a")).json()["id"] == request_id
        for key in ("sk-a2", "sk-b", "sk-admin"):
            assert (await talk.ask("/v1/requests/mine%2Fown", key)).status_code == 404

    while_waiting(check)


def test_without_keys_only_the_id_itself_finds_it() -> None:
    async def check(talk: Conversation, request_id: str) -> None:
        assert (await talk.ask(f"/v1/requests/{request_id}")).status_code == 200
        assert (await talk.ask("/v1/requests/mine%2Fown")).status_code == 404

    while_waiting(check, access=Access(ServerSettings()), key=None)


def test_choices_that_ended_are_left_out() -> None:
    async def check(talk: Conversation, request_id: str) -> None:
        talk.engine.ended.update({100, 103})
        answer = (await talk.ask(f"/v1/requests/{request_id}", "sk-a")).json()
        assert [choice["index"] for choice in answer["choices"]] == [1, 2]

    while_waiting(check)


def test_the_list_names_requests_and_is_bounded() -> None:
    async def check(talk: Conversation, request_id: str) -> None:
        listed = (await talk.ask("/v1/requests", "sk-admin")).json()
        assert (listed["num_running"], listed["num_waiting"]) == (4, 0)
        assert [(entry["id"], entry["choice"]["index"]) for entry in listed["running"]] == [
            (request_id, index) for index in range(4)
        ]
        assert len((await talk.ask("/v1/requests?limit=3", "sk-admin")).json()["running"]) == 3
        for limit in ("0", "257", "-1", "x", "", "9" * 5000, "000000100999", "000000100" + "9" * 5000, "٣"):
            refused = await talk.ask(f"/v1/requests?limit={limit}", "sk-admin")
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "limit")

    while_waiting(check)


def test_ids_cannot_be_guessed() -> None:
    ids = [post(COMPLETIONS, {"prompt": "x"}).json()["id"] for _ in range(20)]
    assert len({request_id.removeprefix("cmpl-") for request_id in ids}) == 20
    assert all(len(request_id) == len("cmpl-") + 32 for request_id in ids)


def admin(method: str, body: object = None, *, engine: StubEngine | None = None) -> httpx.Response:
    content: dict[str, Any] = {}
    if body is not None:
        content = {"content": body} if isinstance(body, str | bytes) else {"json": body}
    headers = {"Authorization": "Bearer sk-admin"}
    return request(method, "/admin/scheduler", engine=engine, access=ACCESS, headers=headers, **content)


def test_settings_are_read_and_changed() -> None:
    engine = StubEngine()
    assert admin("GET", engine=engine).json() == {"settings": {"scheduling_policy": "fcfs"}}
    changes = {"scheduling_policy": "deadline", "watermark": 0.1, "tenants": {"a": {"weight": 2, "max_kv_pages": None}}}
    assert admin("PATCH", changes, engine=engine).json()["settings"]["watermark"] == 0.1
    assert engine.configured == [{}, changes]


@pytest.mark.parametrize(
    "body", ["", "[]", "3", "{}", '{"watermark": NaN}', '{"max_num_seqs": 99999999999999999999}', '{"a": [1]}', "{"]
)
def test_a_change_that_is_no_object_of_settings_is_refused(body: str) -> None:
    engine = StubEngine()
    assert admin("PATCH", body, engine=engine).status_code == 400
    assert engine.configured == []


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"watermark": 0.1, "tenants": {"search": {"weight": 2, "keys": ["x"]}}}, "tenants.search.keys"),
        ({"tenants": {"search": ["x"]}}, "tenants.search"),
        ({"default_tenant": [1]}, "default_tenant"),
        ({"tenants": {"a": {"b": {}}}}, "tenants.a.b"),
    ],
    ids=str,
)
def test_a_value_that_no_setting_has_is_refused_by_the_name_of_the_setting(body: dict[str, Any], name: str) -> None:
    error = admin("PATCH", body).json()["error"]
    assert error["message"].startswith(f"{name} must be a text, ")
    assert error["param"] == name


@pytest.mark.parametrize("field", ["deadline_ms", "ttft_deadline_ms"])
@pytest.mark.parametrize("value", [0, -1, 1e12, "5", True, [5]])
def test_deadlines_that_make_no_sense_are_refused_with_the_value(field: str, value: object) -> None:
    response = post(COMPLETIONS, {"prompt": "x", field: value})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == field
    assert repr(value) in error["message"]


def test_a_first_token_after_the_last_one_is_refused_with_both_numbers() -> None:
    error = post(COMPLETIONS, {"prompt": "x", "ttft_deadline_ms": 50, "deadline_ms": 20}).json()["error"]
    assert error["param"] == "ttft_deadline_ms"
    assert "50" in error["message"]
    assert "20" in error["message"]


def late(error: Exception) -> StubEngine:
    async def script(prompt: Sequence[int], sampling: SamplingParams) -> AsyncIterator[ChoiceDelta]:
        if prompt:
            raise error
        yield ChoiceDelta(0, "", (), 0)

    return StubEngine(script=script)


def test_a_missed_deadline_is_a_504_and_a_queue_timeout_a_503_to_be_tried_again() -> None:
    missed = post(COMPLETIONS, {"prompt": "x"}, engine=late(DeadlineExceededError("too late")))
    assert (missed.status_code, missed.json()["error"]["type"]) == (504, "deadline_exceeded")
    assert "retry-after" not in missed.headers
    assert missed.headers["x-should-retry"] == "false"
    timeout = post(COMPLETIONS, {"prompt": "x"}, engine=late(QueueTimeoutError("waited", retry_after_s=7)))
    assert (timeout.status_code, timeout.json()["error"]["type"]) == (503, "overloaded_error")
    assert timeout.headers["retry-after"] == "7"
    streamed = post(COMPLETIONS, {"prompt": "x", "stream": True}, engine=late(DeadlineExceededError("too late")))
    assert streamed.status_code == 200
    assert '"type":"deadline_exceeded"' in streamed.text
    assert streamed.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/chat/completions"])
def test_what_was_there_at_the_deadline_is_answered_under_a_reason_that_clients_know(path: str, stream: bool) -> None:
    async def script(prompt: Sequence[int], sampling: SamplingParams) -> AsyncIterator[ChoiceDelta]:
        yield ChoiceDelta(0, "ab", (1, 2), 2)
        yield ChoiceDelta(0, "", (), 2, finish_reason="deadline")

    body = {
        "stream": stream,
        **({"prompt": "x"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "x"}]}),
    }
    response = post(path, body, engine=StubEngine(script=script))
    assert response.status_code == 200
    assert '"finish_reason":"length","stop_reason":"deadline"' in response.text
    assert "ab" in response.text
