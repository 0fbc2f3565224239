"""What the scheduler is told once everything is known: no ``None`` left, every number checked against the others.

Knows nothing of where the numbers came from.
"""

from dataclasses import dataclass

from chairlift.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of one step, in tokens, slots and passes; see :class:`~chairlift.config.sections.SchedulerSettings`.

    Raises:
        ConfigurationError: the numbers cannot work together; the message names limit, value and setting.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 256
    max_model_len: int = 2048
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    max_lookahead: int = 8
    batching: str = "continuous"
    scheduling_policy: str = "fcfs"
    admission: str = "reserve-prompt"
    chunking_policy: str = "shortest-first"
    preemption_policy: str = "last-admitted"

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if getattr(self, name) < 1:
                flag = "--" + name.replace("_", "-")
                raise ConfigurationError(f"{flag} must be at least 1, got {getattr(self, name)}")
        if self.max_lookahead < 0:
            raise ConfigurationError(f"--max-lookahead must be at least 0, got {self.max_lookahead}")
        if self.long_prefill_token_threshold < 0:
            raise ConfigurationError(
                f"--long-prefill-token-threshold must be at least 0, got {self.long_prefill_token_threshold}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """KV memory in pages.

    Raises:
        ConfigurationError: a number is not positive.
    """

    num_pages: int
    page_size: int = 16
    enable_prefix_caching: bool = True
    eviction_policy: str = "lru"

    def __post_init__(self) -> None:
        for name, flag in (("num_pages", "--kv-cache-memory"), ("page_size", "--page-size")):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{flag} must leave at least 1, got {name}={getattr(self, name)}")

    @property
    def num_token_slots(self) -> int:
        """Tokens whose KV fits in all pages together."""
        return self.num_pages * self.page_size


def check_step_budget(scheduler: SchedulerConfig, cache: CacheConfig) -> None:
    """Refuse a token budget with which prefill could stand still: decodes of all slots plus one page must fit.

    Raises:
        ConfigurationError: the budget is too small; the message names both settings that change it.
    """
    needed = scheduler.max_num_seqs + cache.page_size
    if scheduler.max_num_batched_tokens < needed:
        raise ConfigurationError(
            f"--max-num-batched-tokens is {scheduler.max_num_batched_tokens}, but {needed} are needed "
            f"(--max-num-seqs {scheduler.max_num_seqs} plus one page of --page-size {cache.page_size}), "
            "so that prompts advance while every slot decodes"
        )
