"""The engine process from the inside: what it says and how it exits when it cannot start, breaks or is told to stop."""

import io
from collections import deque

import pytest

from chairlift.config.load import load_settings
from chairlift.config.settings import Settings
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine import process
from chairlift.engine.messages import (
    AddRequest,
    Choice,
    EngineConfig,
    Failed,
    Outbound,
    Ready,
    Shutdown,
    decode_outbound,
    encode,
)
from chairlift.execution.fake import FakeExecutor


class Sockets:
    """Stands in for the engine's sockets; the inbox is written before."""

    def __init__(self, *inbox: bytes | None) -> None:
        self.inbox = deque(inbox)
        self.sent: list[Outbound] = []

    def receive(self, timeout_ms: int | None) -> bytes | None:
        del timeout_ms
        return self.inbox.popleft()

    def send(self, data: bytes) -> None:
        self.sent.append(decode_outbound(data))


def config(**values: object) -> EngineConfig:
    settings: Settings = load_settings({"executor": "fake", **values}, env={})
    return EngineConfig(
        model=settings.model,
        cache=settings.cache,
        scheduler=settings.scheduler,
        policy=settings.policy,
        queue=settings.queue,
        socket_dir="",
        inbound_address="",
        outbound_address="",
        log_level="info",
    )


REQUEST = AddRequest(
    choices=(Choice(1, 0),), prompt_token_ids=(1, 2), sampling=SamplingParams(), stop_token_ids=frozenset()
)


def run(sockets: Sockets, **values: object) -> int:
    return process._run(config(**values), sockets)  # type: ignore[arg-type]


def test_says_ready_and_exits_cleanly_when_told_to() -> None:
    sockets = Sockets(encode(REQUEST), None, encode(Shutdown()))
    assert run(sockets, max_model_len=99) == process.EXIT_OK
    ready = sockets.sent[0]
    assert isinstance(ready, Ready)
    assert (ready.info.name, ready.info.max_model_len) == ("fake", 99)


def test_settings_that_cannot_work_are_reported_by_their_class() -> None:
    sockets = Sockets()
    assert run(sockets, kv_cache_memory="1KiB") == process.EXIT_START_FAILED
    (failed,) = sockets.sent
    assert isinstance(failed, Failed)
    assert failed.error == "ConfigurationError"
    assert "--kv-cache-memory is 1KiB" in failed.message


def test_any_other_trouble_at_start_is_reported_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: object, **__: object) -> None:
        raise ZeroDivisionError("no luck")

    monkeypatch.setattr(process, "build_engine", explode)
    sockets = Sockets()
    assert run(sockets) == process.EXIT_START_FAILED
    (failed,) = sockets.sent
    assert isinstance(failed, Failed)
    assert "no luck" in failed.message


def test_broken_executor_is_reported_and_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(*_: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(FakeExecutor, "wait", explode)
    sockets = Sockets(encode(REQUEST), None)
    assert run(sockets) == process.EXIT_EXECUTOR_BROKE
    failed = sockets.sent[-1]
    assert isinstance(failed, Failed)
    assert "out of order" in failed.message
    assert "1 requests end with an error" in caplog.text


def test_configuration_is_read_with_its_length_before_it() -> None:
    data = encode(config())
    stream = io.BytesIO(len(data).to_bytes(process.LENGTH_BYTES, "big") + data + b"more")
    assert process._read_config(stream) == config()
    assert stream.read() == b"more"


def test_garbage_instead_of_a_configuration_ends_the_process() -> None:
    with pytest.raises(SystemExit, match="no engine configuration"):
        process._read_config(io.BytesIO(b"\x00\x00\x00\x02hi"))
