"""What the API process and the engine process say to each other: msgpack, tagged, of bounded size, never pickled.

Knows nothing of sockets. The API process sends :data:`Inbound` messages and the engine answers with :data:`Outbound`
ones, each direction in order.

::

    API process                            engine process
        │  EngineConfig (standard input)        │
        │ ────────────────────────────────────> │  builds executor and scheduler
        │ <──────────────────── Ready | Failed  │
        │  AddRequest, AbortRequests,           │
        │  FinishRequest, ResetPrefixCache,     │
        │  Explain, ListRequests, Configure     │
        │ ────────────────────────────────────> │
        │ <─────── Verdicts (one per drain)     │  accepted or rejected: every AddRequest gets one answer
        │ <─────── StepDone (one per step)      │  all new tokens and the metrics
        │ <─────── Explained, Listed,           │  one for each question, with its number
        │          Configured                   │
        │  Ping ──────────────────────────────> │
        │ <──────────────────────────────  Pong │  so that a hung process is noticed
        │  Shutdown                             │
        │ ────────────────────────────────────> │  exits with 0
"""

from typing import Any

import msgspec

from chairlift.config.resolved import SchedulerConfig, TenantTable
from chairlift.config.sections import (
    AnswerSettings,
    CacheSettings,
    ModelSettings,
    PolicySettings,
    QueueSettings,
    SchedulerSettings,
)
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.step_plan import PromptLogprobs, TokenLogprobs
from chairlift.observability.step_stats import StepStats

MAX_MESSAGE_BYTES = 64 * 2**20
"""Larger messages are refused by the sender; a socket that gets one anyway closes the connection."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All that an engine process is told at birth.

    It has no server and no tenancy section, hence no key: ``tenants`` are names and what they may have.
    """

    model: ModelSettings
    cache: CacheSettings
    scheduler: SchedulerSettings
    policy: PolicySettings
    queue: QueueSettings
    answers: AnswerSettings = AnswerSettings()
    tenants: TenantTable = TenantTable()
    decision_log: str | None = None
    socket_dir: str
    inbound_address: str
    outbound_address: str
    log_level: str
    log_format: str = "text"


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What was loaded, and what fits: lengths in tokens, memory in pages, ``embedding_size`` in numbers."""

    name: str
    max_model_len: int
    num_pages: int
    page_size: int
    dtype: str
    """Of activations, and of weights that are not quantized."""
    quantization: str = "none"
    """Of weights: ``none``, ``stored`` (as the file has them), ``int8`` or ``q4``."""
    vocab_size: int
    embedding_size: int
    eos_token_ids: frozenset[int]
    max_num_seqs: int
    max_num_batched_tokens: int
    description: str

    @property
    def numbers(self) -> str:
        """What is computed with, in words: ``float32 with int8 weights``."""
        weights = {"none": "", "stored": " with weights as stored, in 4 or 8 bits"}
        return self.dtype + weights.get(self.quantization, f" with {self.quantization} weights")

    @property
    def num_token_slots(self) -> int:
        """Tokens whose KV fits in all pages together."""
        return self.num_pages * self.page_size


# ---------------------------------------------------------------------------------------------------------- inbound


class Choice(msgspec.Struct, frozen=True, array_like=True):
    """One sequence to generate: its id, unique for ever, and the seed of its random numbers."""

    request_id: int
    seed: int


class AddRequest(msgspec.Struct, frozen=True, kw_only=True, tag="add"):
    """A prompt with one or more choices, accepted or rejected as a whole; its id is that of the first choice.

    ``stop_token_ids`` are all tokens that end it, the model's own included where they count. Deadlines are in
    milliseconds from ``arrival_ns``, a time on the monotonic clock, which all processes of a machine share.
    """

    choices: tuple[Choice, ...]
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    stop_token_ids: frozenset[int]
    priority: int = 0
    tenant: str = ""
    cache_salt: str | None = None
    adapter: str | None = None
    ttft_deadline_ms: float | None = None
    deadline_ms: float | None = None
    arrival_ns: int | None = None

    @property
    def request_id(self) -> int:
        """Id under which it is accepted or rejected."""
        return self.choices[0].request_id


class AbortRequests(msgspec.Struct, frozen=True, tag="abort"):
    """Nobody wants these choices any more. Unknown or finished ids are fine."""

    request_ids: tuple[int, ...]


class FinishRequest(msgspec.Struct, frozen=True, tag="finish"):
    """A stop string ended this choice after ``keep_tokens`` output tokens."""

    request_id: int
    keep_tokens: int


class ResetPrefixCache(msgspec.Struct, frozen=True, tag="reset"):
    """Forget all cached prefixes, if nothing runs or waits; answered by :class:`CacheReset`."""


class Explain(msgspec.Struct, frozen=True, tag="explain"):
    """What do these choices wait for? Answered by :class:`Explained`."""

    question: int
    request_ids: tuple[int, ...]


class ListRequests(msgspec.Struct, frozen=True, tag="list"):
    """Which choices run and wait, at most so many of each? Answered by :class:`Listed`."""

    question: int
    limit: int


class Configure(msgspec.Struct, frozen=True, tag="configure"):
    """Change settings of the scheduler and the queue; nothing to change asks how they are. By name of the setting.

    ``tenants`` are fields of :class:`~chairlift.config.resolved.TenantConfig` by tenant, ``default_tenant`` those of
    everybody else. Answered by :class:`Configured`.
    """

    question: int
    changes: dict[str, Any] = {}


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Are you there? Answered by :class:`Pong`, between two steps."""


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Exit now. Whoever wants running requests to end first waits before sending it."""


Inbound = (
    AddRequest | AbortRequests | FinishRequest | ResetPrefixCache | Explain | ListRequests | Configure | Ping | Shutdown
)


# --------------------------------------------------------------------------------------------------------- outbound


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The model is loaded and requests are welcome."""

    info: ModelInfo


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine process ends: it could not start (``error`` names the exception class), or the executor broke."""

    error: str
    message: str


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """Accepted if ``error`` is ``None``; else ``error`` names the exception class that the caller gets."""

    request_id: int
    error: str | None = None
    message: str = ""
    param: str | None = None
    retry_after_s: int = 1


class Verdicts(msgspec.Struct, frozen=True, tag="verdicts"):
    """Answers to all requests taken from the socket since the last step."""

    verdicts: tuple[Verdict, ...]


class Update(msgspec.Struct, frozen=True, array_like=True):
    """New tokens of one choice, and its end if it ended."""

    request_id: int
    token_ids: tuple[int, ...]
    finish_reason: str | None = None
    stop_token: int | None = None
    num_cached_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token, if they were asked for."""
    prompt_logprobs: PromptLogprobs | None = None
    embedding: bytes | None = None
    failure: str | None = None
    """Why it could not go on, where that is known."""


class StepDone(msgspec.Struct, frozen=True, tag="step"):
    """All that a step brought; without updates also sent when only the numbers changed."""

    updates: tuple[Update, ...]
    stats: StepStats


class CacheReset(msgspec.Struct, frozen=True, tag="reset"):
    """Whether the prefix cache was emptied."""

    done: bool


class RequestStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A choice as :class:`~chairlift.core.explain.RequestExplanation` has it, in seconds and words."""

    request_id: int
    phase: str
    tier: int
    tenant: str
    blocked_on: str | None
    reason: str
    waited_s: float
    position: int | None = None
    num_tokens_ahead: int | None = None
    predicted_wait_s: float | None = None
    num_prompt_tokens: int
    num_output_tokens: int
    max_tokens: int
    num_computed_tokens: int
    num_kv_pages: int
    num_preemptions: int


class Explained(msgspec.Struct, frozen=True, tag="explained"):
    """One status per choice asked for, ``None`` for those that are not alive."""

    question: int
    statuses: tuple[RequestStatus | None, ...]


class Listed(msgspec.Struct, frozen=True, tag="listed"):
    """Running choices in the order of their admission, waiting ones in theirs, and how many there are in all."""

    question: int
    running: tuple[RequestStatus, ...]
    waiting: tuple[RequestStatus, ...]
    num_running: int
    num_waiting: int


class Configured(msgspec.Struct, frozen=True, tag="configured"):
    """The settings that are in force now. If ``error`` is set, nothing was changed, and it says why."""

    question: int
    scheduler: SchedulerConfig
    queue: QueueSettings
    error: str | None = None


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """Here I am."""


Outbound = Ready | Failed | Verdicts | StepDone | CacheReset | Explained | Listed | Configured | Pong

_encoder = msgspec.msgpack.Encoder()
_config_decoder = msgspec.msgpack.Decoder(EngineConfig)
_inbound_decoder: msgspec.msgpack.Decoder[Inbound] = msgspec.msgpack.Decoder(Inbound)
_outbound_decoder: msgspec.msgpack.Decoder[Outbound] = msgspec.msgpack.Decoder(Outbound)


def encode(message: Inbound | Outbound | EngineConfig) -> bytes:
    """Return the message as msgpack."""
    return _encoder.encode(message)


def decode_config(data: bytes) -> EngineConfig:
    """Read the engine's configuration.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return _config_decoder.decode(data)


def decode_inbound(data: bytes) -> Inbound:
    """Read a message from the API process.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return _inbound_decoder.decode(data)


def decode_outbound(data: bytes) -> Outbound:
    """Read a message from the engine process.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return _outbound_decoder.decode(data)
