"""Messages: they survive the wire as they are, and what is not one of them is refused."""

import msgspec
import pytest

from chairlift.config.resolved import SchedulerConfig, TenantConfig, TenantTable
from chairlift.config.sections import QueueSettings
from chairlift.config.settings import Settings
from chairlift.core.sampling_params import MAX_SEED, SamplingParams
from chairlift.engine import messages
from chairlift.engine.remote_errors import named_error, to_error, to_verdict
from chairlift.errors import (
    ChairliftError,
    DrainingError,
    EngineUnavailableError,
    InvalidRequestError,
    OverloadedError,
    RequestTooLongError,
)
from chairlift.observability.step_stats import NO_SCHEDULER, PreemptionNote, ResumeNote, StepStats

STATUS = messages.RequestStatus(
    request_id=1,
    phase="waiting",
    tier=-1,
    tenant="t",
    blocked_on="pages",
    reason="pages are missing",
    waited_s=0.5,
    position=3,
    predicted_wait_s=1.5,
    num_prompt_tokens=7,
    num_output_tokens=0,
    max_tokens=16,
    num_computed_tokens=0,
    num_kv_pages=0,
    num_preemptions=1,
)
INBOUND: list[messages.Inbound] = [
    messages.Ping(),
    messages.AddRequest(
        choices=(messages.Choice(1, MAX_SEED), messages.Choice(2, 0)),
        prompt_token_ids=(1, 2, 3),
        sampling=SamplingParams(seed=-(2**63), stop=("é",), max_tokens=None, top_p=0.5),
        stop_token_ids=frozenset({5}),
        priority=-3,
        tenant="t",
        cache_salt="s",
        ttft_deadline_ms=1.5,
        deadline_ms=20,
        arrival_ns=2**60,
    ),
    messages.AbortRequests((1, 2)),
    messages.FinishRequest(3, 7),
    messages.ResetPrefixCache(),
    messages.Explain(4, (1, 2)),
    messages.ListRequests(5, 100),
    messages.Configure(6, {"watermark": 0.5, "target_tpot_ms": None, "tenants": {"a": {"weight": 2}, "b": None}}),
    messages.Shutdown(),
]
OUTBOUND: list[messages.Outbound] = [
    messages.Pong(),
    messages.Failed("ModelLoadError", "no such file"),
    messages.Verdicts((messages.Verdict(1), messages.Verdict(2, "OverloadedError", "full", None, 3))),
    messages.StepDone(
        (messages.Update(1, (4,), None, None, 16), messages.Update(2, (5, 6), "stop", 6)),
        StepStats(
            scheduler=NO_SCHEDULER,
            num_steps=1,
            queue_times_ns=(1, 2),
            preemptions=(PreemptionNote(-1, "search", "urgency", "swap", 3),),
            resumes=(ResumeNote(0, "", 0, 3),),
            waiting_by_reason={"pages": 3},
        ),
    ),
    messages.CacheReset(done=True),
    messages.Explained(4, (STATUS, None)),
    messages.Listed(5, (STATUS,), (), 1, 0),
    messages.Configured(6, SchedulerConfig(tenants={"a": TenantConfig(weight=2.0)}), QueueSettings(), "no"),
]


@pytest.mark.parametrize("message", INBOUND)
def test_messages_into_the_engine_survive(message: messages.Inbound) -> None:
    assert messages.decode_inbound(messages.encode(message)) == message


@pytest.mark.parametrize("message", OUTBOUND)
def test_messages_out_of_the_engine_survive(message: messages.Outbound) -> None:
    assert messages.decode_outbound(messages.encode(message)) == message


def test_configuration_survives_and_has_no_place_for_a_key() -> None:
    settings = Settings()
    config = messages.EngineConfig(
        model=settings.model,
        cache=settings.cache,
        scheduler=settings.scheduler,
        policy=settings.policy,
        queue=settings.queue,
        tenants=TenantTable(by_name={"a": TenantConfig(weight=2.0, max_kv_pages=3)}),
        socket_dir="d",
        inbound_address="i",
        outbound_address="o",
        log_level="info",
    )
    data = messages.encode(config)
    assert messages.decode_config(data) == config
    assert b"api_key" not in data


@pytest.mark.parametrize("data", [b"", b"\x80", b"cos\nsystem\n(S'true'\ntR.", messages.encode(OUTBOUND[0])])
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        messages.decode_inbound(data)


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequestError("bad", param="top_p"),
        RequestTooLongError("long", param="prompt"),
        OverloadedError("full", retry_after_s=7),
        DrainingError("ending"),
        EngineUnavailableError("down"),
    ],
)
def test_errors_come_back_as_what_they_were(error: ChairliftError) -> None:
    back = to_error(to_verdict(4, error))
    assert type(back) is type(error)
    assert vars(back) == vars(error)


@pytest.mark.parametrize("name", ["SystemExit", "os.system", ""])
def test_no_other_class_can_be_named(name: str) -> None:
    assert named_error(name) is EngineUnavailableError
