"""Which settings may change while the scheduler runs, and whether new values can work together.

Knows nothing of what a change does to the scheduler; a change that is refused has changed nothing.
"""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from chairlift.config.resolved import CacheConfig, SchedulerConfig, check_step_budget
from chairlift.core.policies import build_policies
from chairlift.errors import ConfigurationError

FIXED = frozenset({"max_model_len", "enable_chunked_prefill", "batching"})
"""Fields that requests, pages and executor were sized or built by."""
_CHOICES = {"tenant_order": ("none", "fair"), "preemption_mode": ("recompute", "swap", "tail", "auto")}
_UP_TO_BUILT = {"max_num_seqs": "--max-num-seqs", "max_num_batched_tokens": "--max-num-batched-tokens"}
"""Fields that the executor has buffers for, so that they can be lowered, and raised again to what they were."""


def change_config(
    now: SchedulerConfig, built: SchedulerConfig, cache: CacheConfig, changes: Mapping[str, object]
) -> SchedulerConfig:
    """Return the configuration after a change.

    Args:
        now: what is in force.
        built: what the scheduler was built with.
        cache: the pool.
        changes: new values by field.

    Raises:
        ConfigurationError: a field is unknown or fixed, or the new values cannot work together.
    """
    names = {field.name for field in dataclasses.fields(SchedulerConfig)}
    for name in changes:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            raise ConfigurationError(
                f"there is no setting {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")
            )
        if name in FIXED:
            raise ConfigurationError(f"{name} cannot be changed while running")
    values: dict[str, Any] = dict(changes)
    changed = dataclasses.replace(now, **values)
    for name, flag in _UP_TO_BUILT.items():
        value, most = getattr(changed, name), getattr(built, name)
        if value > most:
            raise ConfigurationError(
                f"{flag} can be raised to {most} while running, which it was started with, got {value}"
            )
    if changes.get("preemption_mode") == "swap" and cache.num_host_pages == 0:
        raise ConfigurationError("--preemption-mode swap needs --swap-space, and the server was started without it")
    check_step_budget(changed, cache)
    check_names(changed)
    build_policies(changed)
    return changed


def check_names(config: SchedulerConfig) -> None:
    """Refuse a name that stands for nothing, where no table of policies does.

    Raises:
        ConfigurationError: the message lists the names there are.
    """
    for name, choices in _CHOICES.items():
        value = getattr(config, name)
        if value not in choices:
            flag = "--" + name.replace("_", "-")
            raise ConfigurationError(f"{flag} {value!r} is unknown; there are: {', '.join(choices)}")
