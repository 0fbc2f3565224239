"""The settings, in small frozen sections; each field says what it does, in which unit, and under which flags.

Knows nothing of how settings are parsed or used. The command line, the configuration reference and
:class:`chairlift.LLM` are made from these fields, so a setting is described once.
"""

from dataclasses import dataclass

from chairlift.config.server_sections import (
    AnswerSettings,
    ConnectionSettings,
    EmbeddingSettings,
    LimitSettings,
    ObservabilitySettings,
    ServerSettings,
    TenancySettings,
)
from chairlift.config.setting import MAX_MS, setting


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
    deterministic: bool = setting(
        False,
        "Make a request's tokens the same whatever else is in its batch, or refuse to start: the C++ kernels in "
        "float32, with weights and KV in any numbers. Slower while many requests begin with the same cached pages, "
        "and on CPUs with AMX while few requests run. Another --page-size may change last bits.",
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
    fake_step_ms: float = setting(
        0.0,
        "Milliseconds that a step of the toy model takes at least, to play a slower machine.",
        bounds=(0.0, 10_000.0),
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
        "Numbers in KV pages; auto is int8 beside weights of 4 or 8 bits, else what the model computes in. int8 has a "
        "scale per token and head, and needs a quarter of the memory of float32.",
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
        "Seconds that a request may wait for its first slot; then it is answered 503. With 0 only what can start at "
        "once is served. No limit if absent.",
        bounds=(0, MAX_MS / 1000),
    )
    max_ttft_ms: float | None = setting(
        None,
        "Predicted time to first token at most; requests that would wait longer are answered 503 with a Retry-After. "
        "No limit if absent.",
        bounds=(0, MAX_MS),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """Files and batches."""

    batch_dir: str | None = setting(
        None, "Folder for /v1/files and /v1/batches, which are off without one; a restart goes on with what is there."
    )
    batch_concurrency: int = setting(16, "Requests of batches that are sent to the engine at a time.", bounds=(1, 4096))
    max_batch_requests: int = setting(50_000, "Requests in a batch at most.", bounds=(1, None))
    max_batch_file_bytes: int = setting(100 * 2**20, "Size of an uploaded file at most.", bounds=(1, None))
    max_open_batches: int = setting(
        100, "Batches of one tenant that have not ended at most; more are answered 429.", bounds=(1, None)
    )
    max_batch_files: int = setting(
        1000, "Files that one tenant keeps at most, results of batches among them.", bounds=(1, None)
    )
    max_batch_storage_bytes: int = setting(
        10 * 2**30, "Bytes of the files and results that one tenant keeps at most.", bounds=(1, None)
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
    EmbeddingSettings,
    BatchSettings,
)
