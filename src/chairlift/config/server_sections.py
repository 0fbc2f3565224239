"""The settings of the server and of whoever may use it, in small frozen sections like those of the engine.

Knows nothing of how settings are parsed or used.
"""

from dataclasses import dataclass

from chairlift.config.setting import MAX_MS, setting


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
        200_000,
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
class EmbeddingSettings:
    """Vectors of texts."""

    pooling_type: str = setting(
        "last",
        "What a text's vector is: the model's last hidden state of its last token, or the mean over all of its tokens.",
        choices=("last", "mean"),
    )
    matryoshka: bool = setting(
        False,
        "Let requests cut vectors with dimensions; only for models that were trained for it, since no model's files "
        "say so reliably.",
    )
    max_embedding_inputs: int = setting(2048, "Texts in one embeddings request at most.", bounds=(1, 65_536))


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
        "Seconds that the grammar of a request may take to be compiled, then it is answered 400; and that it may wait "
        "before that while those of others are compiled, then it is answered 503.",
        bounds=(0.01, 600.0),
    )
    grammar_step_time: float = setting(
        0.1,
        "Seconds of a processor that the grammar of a request may take in one step, all its choices together, and a "
        "tenth of it in every step for long; a request that needs more ends with an error.",
        bounds=(0.001, 60.0),
    )
