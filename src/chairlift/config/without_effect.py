"""Finds settings that were chosen and change nothing beside the others, so that whoever starts a server is told.

Knows nothing of where settings come from; one that has its default counts as not chosen.
"""

from collections.abc import Iterable, Iterator

from chairlift.config.settings import Settings, describe_settings
from chairlift.config.sizes import parse_bytes
from chairlift.config.tenants import Tenants

_OF_A_MODEL = (
    *("model", "dtype", "quantization", "deterministic", "chat_template", "num_threads"),
    *("gpu_memory_utilization", "kv_cache_dtype"),
)
_OF_BATCHES = (
    *("batch_concurrency", "max_batch_requests", "max_batch_file_bytes", "max_open_batches", "max_batch_files"),
    "max_batch_storage_bytes",
)
_MAX_TOLD = 5


def settings_without_effect(settings: Settings, tenants: Tenants | None = None) -> list[str]:
    """One line for each setting without effect, which names it and says why."""
    chosen = {
        info.name: info.flag
        for info in describe_settings()
        if getattr(getattr(settings, info.section), info.name) != info.default
    }
    told: dict[str, str] = {}
    for names, why in (*_of_the_engine(settings), *_of_the_server(settings, tenants or Tenants())):
        for name in names:
            if name in chosen:
                told.setdefault(name, f"{chosen[name]} has no effect: {why}")
    return [*told.values(), *_unreachable(settings, tenants or Tenants())]


def _of_the_engine(settings: Settings) -> Iterator[tuple[Iterable[str], str]]:
    model, cache, scheduler, policy = settings.model, settings.cache, settings.scheduler, settings.policy
    if model.executor == "fake":
        yield _OF_A_MODEL, "--executor fake computes with a toy model, which has no files, weights or threads"
    else:
        yield ("fake_step_ms",), f"it slows the toy model down, and --executor is {model.executor}"
    if cache.kv_cache_memory is not None:
        yield ("gpu_memory_utilization",), f"--kv-cache-memory {cache.kv_cache_memory} says how much there is"
    if policy.preemption_mode not in ("swap", "auto") and parse_bytes(cache.swap_space, setting="--swap-space"):
        yield ("swap_space",), f"--preemption-mode {policy.preemption_mode} moves nothing there; swap and auto do"
    if policy.scheduling_policy != "preemptive":
        why = f"--scheduling-policy is {policy.scheduling_policy}, not preemptive"
        yield ("quantum_tokens", "max_equal_wait_ms"), why
    if not scheduler.enable_chunked_prefill:
        yield ("long_prefill_token_threshold",), "--no-enable-chunked-prefill computes every prompt in one step"
    if not cache.enable_prefix_caching:
        yield ("isolate_prefix_cache",), "--no-enable-prefix-caching shares no prefixes"


def _of_the_server(settings: Settings, tenants: Tenants) -> Iterator[tuple[Iterable[str], str]]:
    if not (tenants.keys or _names_tenants(settings)):
        why = "all requests are one tenant's; keys of --tenants, --tenant-header or --trust-user tell others apart"
        yield ("tenant_order", "isolate_prefix_cache"), why
    if tenants.keys and settings.server.api_key is None:
        yield ("tenant_header", "trust_user"), "every key of --tenants names its tenant, and there is no other key"
    if not settings.observability.enable_log_requests:
        yield ("log_prompt_chars",), "it is for the lines of --enable-log-requests, which is off"
    if settings.batches.batch_dir is None:
        yield _OF_BATCHES, "without --batch-dir there are no files and batches"


def _unreachable(settings: Settings, tenants: Tenants) -> Iterator[str]:
    """Tenants that no request can be of."""
    keyless = sorted(tenants.table.by_name.keys() - tenants.names_with_keys)
    if keyless and not _names_tenants(settings):
        yield (
            f"[tenants] {', '.join(keyless[:_MAX_TOLD])}{', ...' if len(keyless) > _MAX_TOLD else ''} of --tenants: no "
            "request can be theirs, as they have no keys, and neither --tenant-header nor --trust-user names tenants"
        )


def _names_tenants(settings: Settings) -> bool:
    return settings.tenancy.tenant_header is not None or settings.tenancy.trust_user
