"""The composition root: from settings to a model, an executor, a scheduler and the loop around them.

Knows nothing of processes. The only module that names concrete executors.
"""

import secrets
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chairlift.config.model_source import ModelSource, resolve_model_source
from chairlift.config.resolve import MemoryFacts, resolve_configs
from chairlift.config.resolved import CacheConfig, SchedulerConfig, TenantTable
from chairlift.config.settings import Settings
from chairlift.config.sizes import format_bytes
from chairlift.core.logged_scheduler import LoggedScheduler
from chairlift.core.ports import EventSink, Executor
from chairlift.core.scheduler import Scheduler
from chairlift.core.stepper import Stepper
from chairlift.engine import fake_model
from chairlift.engine.byte_tokenizer import ByteTokenizer
from chairlift.engine.decision_log_file import DecisionLogFile
from chairlift.engine.engine_events import EngineEvents
from chairlift.engine.grammar_gate import GrammarGate
from chairlift.engine.messages import ModelInfo
from chairlift.engine.runner import EngineRunner
from chairlift.engine.tokenizer import build_tokenizer
from chairlift.errors import ConfigurationError
from chairlift.execution.fake.embeddings import EMBEDDING_SIZE
from chairlift.structured.compiler import GrammarCompiler
from chairlift.structured.masks import GrammarMasks
from chairlift.structured.vocabulary import build_vocabulary

_MS_PER_S = 1e3


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """A runner, and what whoever built it must close."""

    runner: EngineRunner
    executor: Executor
    decision_log: DecisionLogFile | None = None
    page_bytes: int = 0
    """KV bytes of a page."""
    num_host_pages: int = 0

    def close_log(self) -> None:
        """Write the rest of the decision log, if there is one; also after the executor broke."""
        if self.decision_log is not None:
            self.decision_log.close()


@dataclass(frozen=True, slots=True)
class _LoadedModel:
    executor: Executor
    num_pages: int
    num_host_pages: int
    page_bytes: int
    max_model_len: int
    dtype: str
    vocab_size: int
    embedding_size: int
    eos_token_ids: frozenset[int]
    description: str
    quantization: str = "none"


def locate_model(settings: Settings) -> ModelSource | None:
    """Find the model's files, downloading them if they are on a hub; ``None`` for the fake executor, which has none.

    Raises:
        ModelLoadError: there is no such model.
    """
    return None if settings.model.executor == "fake" else resolve_model_source(settings.model.model)


def pin_model(settings: Settings, source: ModelSource | None) -> Settings:
    """Return settings that name the files found, so that another process serves the very same ones."""
    if source is None:
        return settings
    name = settings.model.served_model_name or source.name
    return replace(settings, model=replace(settings.model, model=str(source.path), served_model_name=name))


def build_engine(
    settings: Settings,
    source: ModelSource | None,
    *,
    tenants: TenantTable | None = None,
    decision_log: str | None = None,
    is_offline: bool = False,
    events: EventSink | None = None,
) -> BuiltEngine:
    """Load the model and put the engine around it, with a decision log if a file is named for it.

    Raises:
        ModelLoadError: the model cannot be served.
        ConfigurationError: the settings cannot work with it.
    """
    log = DecisionLogFile(Path(decision_log)) if decision_log is not None else None
    compiler = _grammar_compiler(settings, source, is_offline=is_offline)
    loaded = (
        _load_fake(settings, compiler)
        if source is None
        else _load_torch(settings, source, compiler, is_offline=is_offline)
    )
    scheduler_config, cache_config = resolve_configs(
        settings,
        max_model_len=loaded.max_model_len,
        memory=MemoryFacts(loaded.num_pages, loaded.num_host_pages, loaded.page_bytes),
        tenants=tenants,
        is_offline=is_offline,
    )
    compiler.end_tokens = loaded.eos_token_ids
    if scheduler_config.preemption_mode == "swap" and cache_config.num_host_pages == 0:
        raise ConfigurationError(
            f"--preemption-mode swap needs --swap-space: {settings.cache.swap_space} holds no page of "
            f"{format_bytes(loaded.page_bytes)}"
        )
    engine_events = EngineEvents(scheduler_config, cache_config, events)
    scheduler = _build_scheduler(scheduler_config, cache_config, engine_events, log)
    stepper = Stepper(scheduler, loaded.executor, settings.scheduler.pipeline_depth)
    info = ModelInfo(
        name=settings.model.served_model_name or (fake_model.NAME if source is None else source.name),
        max_model_len=loaded.max_model_len,
        num_pages=loaded.num_pages,
        page_size=cache_config.page_size,
        dtype=loaded.dtype,
        quantization=loaded.quantization,
        vocab_size=loaded.vocab_size,
        embedding_size=loaded.embedding_size,
        eos_token_ids=loaded.eos_token_ids,
        max_num_seqs=scheduler_config.max_num_seqs,
        max_num_batched_tokens=scheduler_config.max_num_batched_tokens,
        description=loaded.description,
    )
    runner = EngineRunner(scheduler, stepper, engine_events, settings.queue, info, GrammarGate(compiler))
    return BuiltEngine(runner, loaded.executor, log, loaded.page_bytes, loaded.num_host_pages)


def _build_scheduler(
    scheduler: SchedulerConfig, cache: CacheConfig, events: EventSink, log: DecisionLogFile | None
) -> Scheduler:
    if log is None:
        return Scheduler(scheduler, cache, events=events)
    return LoggedScheduler(scheduler, cache, write=log.write, secret=secrets.token_bytes(32), events=events)


def _grammar_compiler(settings: Settings, source: ModelSource | None, *, is_offline: bool) -> GrammarCompiler:
    def load_vocabulary(end_tokens: Collection[int]) -> Any:
        # Only now: most engines are never asked for a grammar, and do without the tokenizer.
        tokenizer = build_tokenizer(source, settings.model.chat_template)
        return build_vocabulary(tokenizer, tokenizer.vocab_size, end_tokens)

    answers = settings.answers
    return GrammarCompiler(
        load_vocabulary,
        max_bytes=answers.max_grammar_bytes,
        timeout_s=answers.grammar_timeout,
        # Whoever has the engine to themselves may wait for their own grammars.
        step_time_s=None if is_offline else answers.grammar_step_time,
    )


def _load_fake(settings: Settings, compiler: GrammarCompiler) -> _LoadedModel:
    page_size = settings.cache.page_size
    num_pages, num_host_pages = fake_model.pool_size(settings.cache), fake_model.host_tier_size(settings.cache)
    return _LoadedModel(
        executor=fake_model.build_executor(
            num_pages, page_size, num_host_pages, compiler, pace_s=settings.model.fake_step_ms / _MS_PER_S
        ),
        num_pages=num_pages,
        num_host_pages=num_host_pages,
        page_bytes=fake_model.KV_BYTES_PER_TOKEN * page_size,
        max_model_len=settings.model.max_model_len or fake_model.MAX_MODEL_LEN,
        dtype="float32",
        vocab_size=ByteTokenizer.vocab_size,
        embedding_size=EMBEDDING_SIZE,
        eos_token_ids=ByteTokenizer.eos_token_ids,
        description="toy model without weights",
    )


def _load_torch(
    settings: Settings, source: ModelSource, compiler: GrammarCompiler, *, is_offline: bool
) -> _LoadedModel:
    from chairlift.execution.torch_backend.build import build_executor
    from chairlift.execution.torch_backend.grammar_edit import GrammarEdit

    # The configs need the model's length, and the executor needs the step's size: with any length the size is the same.
    scheduler, _ = resolve_configs(settings, max_model_len=1, memory=MemoryFacts(1), is_offline=is_offline)
    built = build_executor(
        source,
        settings.model,
        settings.cache,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        pipeline_depth=settings.scheduler.pipeline_depth,
    )
    built.executor.add_edit(GrammarEdit(GrammarMasks(compiler)))
    return _LoadedModel(
        executor=built.executor,
        num_pages=built.num_pages,
        num_host_pages=built.num_host_pages,
        page_bytes=built.page_bytes,
        max_model_len=built.max_model_len,
        dtype=built.dtype,
        quantization=built.quantization,
        vocab_size=built.vocab_size,
        embedding_size=built.embedding_size,
        eos_token_ids=built.eos_token_ids,
        description=built.description,
    )
