"""The settings, in small frozen sections; each field says what it does, in which unit, and under which flags.

Knows nothing of how settings are parsed or used. The command line, the configuration reference and
:class:`chairlift.LLM` are made from these fields, so a setting is described once.
"""

from dataclasses import dataclass, field
from typing import Any

MAX_MS = 1e9
"""Longest time in milliseconds that a setting may ask for: about eleven days."""


def setting(
    default: Any,
    help_text: str,
    *,
    flags: tuple[str, ...] = (),
    choices: tuple[str, ...] = (),
    bounds: tuple[float | None, float | None] = (None, None),
    is_secret: bool = False,
) -> Any:
    """Declare a setting: its default, one sentence of help, further flag names and the allowed values.

    ``bounds`` are the least and greatest allowed number; ``is_secret`` keeps the value out of representations.
    """
    return field(
        default=default,
        repr=not is_secret,
        metadata={"help": help_text, "flags": flags, "choices": choices, "bounds": bounds, "is_secret": is_secret},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Which model, and in which numbers it runs."""

    model: str | None = setting(
        None, "Hugging Face folder, GGUF file or hub id; the embedded SmolLM2-135M-Instruct if absent."
    )
    served_model_name: str | None = setting(None, "Name that clients ask for; the folder's or file's name if absent.")
    dtype: str = setting(
        "auto",
        "Numbers for weights and KV: bfloat16 where the CPU computes it natively, else float32.",
        choices=("auto", "float32", "bfloat16"),
    )
    quantization: str = setting(
        "auto",
        "Weights while running: auto keeps the 4 and 8 bits that a GGUF file stores and leaves floats alone; int8 and "
        "q4 round to 8 or 4 bits per 32 inputs on loading; none computes with floats whatever is stored.",
        choices=("auto", "none", "int8", "q4"),
    )
    max_model_len: int | None = setting(
        None,
        "Prompt plus output tokens of one request at most; what the model was trained for if absent.",
        bounds=(2, None),
    )
    chat_template: str | None = setting(None, "File with a Jinja chat template, instead of the model's own.")
    seed: int = setting(0, "Seed for requests that bring none.")
    executor: str = setting(
        "torch", "What computes the steps; fake is a toy model for tests.", choices=("torch", "fake")
    )
    num_threads: int | None = setting(None, "Threads for the model; one per available core if absent.", bounds=(1, 256))


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """KV memory."""

    kv_cache_memory: str | None = setting(
        None,
        "Memory for KV pages, such as 2GiB or 500MB; if absent, --gpu-memory-utilization decides.",
        flags=("--kv-cache-memory-bytes",),
    )
    gpu_memory_utilization: float = setting(
        0.5,
        "Fraction of the memory that is free after loading the model to use for KV pages, at most 8 GiB on a CPU.",
        flags=("--mem-fraction-static",),
        bounds=(0.01, 1.0),
    )
    kv_cache_dtype: str = setting(
        "auto",
        "Numbers in KV pages; auto is what the model computes in. int8 has a scale per token and head, and needs a "
        "quarter of the memory of float32.",
        choices=("auto", "float32", "bfloat16", "bf16", "int8"),
    )
    page_size: int = setting(16, "Token slots in one KV page.", flags=("--block-size",), bounds=(1, None))
    enable_prefix_caching: bool = setting(True, "Share KV pages between requests that begin alike.")
    swap_space: str = setting("0", "Host memory for KV pages of preempted requests, such as 4GiB; 0 keeps none.")
    eviction_policy: str = setting("lru", "Which unused cached page is given up first.", choices=("lru",))


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """What one step may hold, and how steps are formed."""

    max_num_seqs: int = setting(
        64, "Slots: requests in the running batch.", flags=("--max-running-requests",), bounds=(1, 16384)
    )
    max_num_batched_tokens: int | None = setting(
        None,
        "Token budget: tokens one step may compute; 256 when serving, 512 offline if absent.",
        flags=("--chunked-prefill-size",),
        bounds=(1, None),
    )
    enable_chunked_prefill: bool = setting(True, "Split prompts over steps and mix them with decodes.")
    long_prefill_token_threshold: int = setting(
        0,
        "Tokens of one prompt per step at most while others want the budget too; 0 is no extra cap.",
        bounds=(0, None),
    )
    batching: str = setting(
        "continuous",
        "static freezes a group until its longest member ends, to measure what continuous batching gains.",
        choices=("continuous", "static"),
    )
    max_lookahead: int = setting(
        8, "Times a request that lacks pages may be passed by others before pages are kept for it.", bounds=(0, None)
    )
    pipeline_depth: int = setting(1, "Steps in flight: 2 plans the next step while one runs.", bounds=(1, 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """How the scheduler decides: who comes first, what must fit, who gives way. All can be changed while it runs."""

    scheduling_policy: str = setting(
        "fcfs",
        "Order of waiting requests of one tier and tenant; priority is fcfs under the name that vLLM uses, since tiers "
        "always come first.",
        choices=("fcfs", "priority", "deadline", "shortest", "lpm", "preemptive"),
    )
    tenant_order: str = setting(
        "none",
        "fair serves tenants of one tier so that their weighted tokens stay level; none looks at requests alone.",
        choices=("none", "fair"),
    )
    guaranteed_share: float = setting(
        0.05,
        "Part of the computed tokens that every tier, and the oldest request of every tier, is sure of; 0 lets less "
        "urgent work starve.",
        bounds=(0.0, 0.5),
    )
    quantum_tokens: int = setting(
        256,
        "With --scheduling-policy preemptive: output tokens after which a running request yields to an equal that has "
        "waited long.",
        bounds=(1, None),
    )
    max_equal_wait_ms: int = setting(
        1000, "With --scheduling-policy preemptive: how long an equal has to wait for that.", bounds=(0, MAX_MS)
    )
    admission: str = setting(
        "reserve-prompt",
        "KV pages that must be there before a request starts: those of its first chunk, of its prompt, or of prompt "
        "and longest output, which never preempts.",
        choices=("optimistic", "reserve-prompt", "reserve-full"),
    )
    watermark: float = setting(
        0.0, "Part of the KV pages that stays free when a request starts while others run.", bounds=(0.0, 0.9)
    )
    chunking_policy: str = setting(
        "shortest-first", "How prompts share the token budget of a step.", choices=("shortest-first",)
    )
    target_tpot_ms: float | None = setting(
        None,
        "Length of a step to stay within: a latency model fitted while running lowers the token budget to fit. "
        "Without it every step may fill --max-num-batched-tokens.",
        bounds=(0.1, MAX_MS),
    )
    preemption_policy: str = setting(
        "last-admitted",
        "Who gives up pages or a slot: the last admitted, or who costs least for what it frees.",
        choices=("last-admitted", "cheapest"),
    )
    preemption_mode: str = setting(
        "recompute",
        "What happens to a victim's KV: dropped, moved to --swap-space, only its last pages dropped, or whatever a "
        "fitted cost model finds cheapest.",
        choices=("recompute", "swap", "tail", "auto"),
    )
    max_preemptions: int = setting(
        3, "Times one request may be displaced by more urgent or equal ones; then it is left alone.", bounds=(0, None)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """How much work may wait."""

    max_num_queued_reqs: int | None = setting(
        None, "Waiting requests at most; more are answered 503. No cap if absent.", bounds=(0, None)
    )
    max_num_queued_tokens: int | None = setting(
        None, "Prompt tokens of waiting requests at most; more are answered 503. No cap if absent.", bounds=(0, None)
    )
    queue_timeout: float | None = setting(
        None,
        "Seconds that a request may wait for its first slot; then it is answered 503. No limit if absent.",
        bounds=(0, MAX_MS / 1000),
    )
    max_ttft_ms: float | None = setting(
        None,
        "Predicted time to first token at most; requests that would wait longer are answered 503 with a Retry-After. "
        "No limit if absent.",
        bounds=(0, MAX_MS),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TenancySettings:
    """Who the clients are."""

    tenants: str | None = setting(
        None, "TOML file with API keys, their tenants, weights, caps and quotas; one nameless tenant if absent."
    )
    trust_user: bool = setting(False, "Take a request's user field for its tenant, if its key names none.")
    tenant_header: str | None = setting(
        None, "Header that names the tenant, set by a proxy that is trusted; none if absent."
    )
    admin_api_key: str | None = setting(
        None, "Key for the administration endpoints, which are off without one.", is_secret=True
    )
    isolate_prefix_cache: bool = setting(
        False,
        "Share cached prefixes only within a tenant, so that nobody can tell from the time to first token what others "
        "have asked.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The HTTP server."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(8000, "Port to listen on; 0 takes a free one.", bounds=(0, 65535))
    api_key: str | None = setting(
        None,
        "Key that clients must send as a bearer token; better in the environment than on a command line.",
        is_secret=True,
    )
    shutdown_timeout: float = setting(30.0, "Seconds that running requests get to end after SIGTERM.", bounds=(0, None))
    watchdog_timeout: float = setting(
        120.0,
        "Seconds of silence after which the engine process counts as hung and is replaced; ten times its slowest step "
        "if that is more. A stopped process is noticed sooner. 0 never looks.",
        bounds=(0, MAX_MS / 1000),
    )
    max_body_bytes: int = setting(
        4 * 2**20,
        "Size of a request body at most. Other requests wait while a body is read, about 10 ms for each MiB.",
        bounds=(1, None),
    )
    max_choices: int = setting(16, "Largest n of a request.", bounds=(1, None))
    max_prompts: int = setting(256, "Prompts in one completions request at most.", bounds=(1, 65_536))
    decision_log: str | None = setting(
        None, "File to log every input and decision of the scheduler to, for chairlift replay; none if absent."
    )
    log_level: str = setting("info", "Least severe log line to write.", choices=("debug", "info", "warning", "error"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """What one request, or one key, may ask for."""

    max_body_values: int = setting(
        2**18,
        "JSON values in a request body at most, where an array or object counts as 8 and a key as 4: other requests "
        "wait while they are made.",
        bounds=(1, None),
    )
    max_prompt_chars: int = setting(2**20, "Characters of one text that is tokenized at most.", bounds=(1, None))
    template_timeout: float = setting(
        2.0, "Seconds that a chat template may take for one conversation.", bounds=(0.01, 600.0)
    )
    max_stop_strings: int = setting(64, "Stop strings of a request at most.", bounds=(0, 65_536))
    max_logit_bias: int = setting(1024, "Tokens in the logit_bias of a request at most.", bounds=(0, None))
    max_logprobs: int = setting(20, "Largest logprobs, top_logprobs or prompt_logprobs of a request.", bounds=(0, 1024))
    max_concurrent_requests: int | None = setting(
        None,
        "Generating requests of one API key at a time at most; more are answered 429. No cap if absent.",
        bounds=(1, None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """How much of the server a connection may take, for how long, and from where it may come."""

    max_connections: int = setting(10_000, "Open connections at most; more are closed at once.", bounds=(1, None))
    max_header_bytes: int = setting(65_536, "Size of a request's line and headers at most.", bounds=(1024, None))
    max_buffered_bytes: int = setting(
        256 * 2**20, "Request bodies in memory at a time at most; more are answered 503.", bounds=(1, None)
    )
    header_timeout: float = setting(
        10.0, "Seconds in which the line and the headers of a request must be here.", bounds=(0.01, MAX_MS / 1000)
    )
    body_timeout: float = setting(
        60.0, "Seconds in which the body of a request must be here.", bounds=(0.01, MAX_MS / 1000)
    )
    write_timeout: float = setting(
        60.0,
        "Seconds after which a client that takes nothing of an answer that waits for it is cut off.",
        bounds=(0.01, MAX_MS / 1000),
    )
    allowed_hosts: str | None = setting(
        None,
        "Names, with commas, that the Host header may have, against DNS rebinding; if absent, IP addresses and "
        "localhost where only this machine can reach the server, else any.",
    )
    allowed_origins: str | None = setting(
        None,
        "Origins, with commas, whose web pages may send requests, or * for all; none but the server's own if absent.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilitySettings:
    """What the server tells about its work."""

    metrics_compat: str = setting("none", "vllm shows the metrics under vLLM's names too.", choices=("none", "vllm"))
    log_format: str = setting("text", "How log lines are written.", choices=("text", "json"))
    enable_log_requests: bool = setting(
        False, "Log a line for each request that ends: id, tenant, tokens and times, never its text."
    )
    log_prompt_chars: int = setting(
        0, "Characters of a prompt that such a line quotes at most; 0 shows no text.", bounds=(0, 65_536)
    )
    otlp_traces_endpoint: str | None = setting(
        None,
        "Address of an OpenTelemetry collector (OTLP over HTTP) to send a span of each request to; none if absent.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSettings:
    """How answers are held to a form, and read."""

    tool_call_parser: str = setting(
        "auto",
        "How the model writes calls of tools; auto looks at its chat template, and where that does not tell, tools can "
        "only be forced.",
        choices=("auto", "none", "hermes", "qwen3", "qwen3_coder", "llama3_json", "mistral"),
    )
    reasoning_parser: str = setting(
        "auto",
        "How the model marks its reasoning, which is then told apart from its answer; auto looks at its chat template.",
        choices=("auto", "none", "qwen3", "deepseek_r1"),
    )
    max_grammar_bytes: int = setting(
        131_072, "Size of the schema, expression or grammar of a request, tools included, at most.", bounds=(1, None)
    )
    grammar_timeout: float = setting(
        10.0,
        "Seconds that a request may wait for its grammar to be compiled; then it is answered 400.",
        bounds=(0.01, 600.0),
    )


SECTIONS: tuple[type, ...] = (
    ModelSettings,
    CacheSettings,
    SchedulerSettings,
    PolicySettings,
    QueueSettings,
    TenancySettings,
    ServerSettings,
    LimitSettings,
    ConnectionSettings,
    ObservabilitySettings,
    AnswerSettings,
)
