"""Settings that may be changed while the engine runs, and what a change has to look like.

Knows nothing of who changes them or of how the scheduler takes it.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from chairlift.config.load import coerce
from chairlift.config.resolved import SchedulerConfig, TenantConfig
from chairlift.config.sections import QueueSettings
from chairlift.config.settings import settings_by_name
from chairlift.config.tenants import MAX_TENANTS, change_tenant, check_tenant_name
from chairlift.errors import ConfigurationError

SCHEDULER_FIELDS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "long_prefill_token_threshold",
    "max_lookahead",
    "scheduling_policy",
    "tenant_order",
    "guaranteed_share",
    "quantum_tokens",
    "max_equal_wait_ms",
    "admission",
    "watermark",
    "target_tpot_ms",
    "preemption_policy",
    "preemption_mode",
    "max_preemptions",
)
"""Settings that are fields of :class:`SchedulerConfig` under the same name."""

QUEUE_FIELDS = ("max_num_queued_reqs", "max_num_queued_tokens", "queue_timeout", "max_ttft_ms")
TENANT_FIELDS = ("tenants", "default_tenant")
CHANGEABLE = (*SCHEDULER_FIELDS, *QUEUE_FIELDS, *TENANT_FIELDS)
"""Every name that a change may have."""

_KINDS: Mapping[type, str] = {bool: "true or false", int: "a whole number", float: "a number"}
_NEVER_NONE = frozenset({"max_num_batched_tokens"})


@dataclass(frozen=True, slots=True)
class Changes:
    """Checked changes: fields of the scheduler's configuration, and the queue's settings as they will be."""

    scheduler: Mapping[str, object]
    queue: QueueSettings


def check_changes(given: Mapping[str, object], scheduler: SchedulerConfig, queue: QueueSettings) -> Changes:
    """Check changes against what each setting allows; the scheduler checks them against each other.

    Args:
        given: values by name of the setting; under ``tenants`` fields by tenant, only those that change, or ``None``
            for a tenant that is to be like all others again.
        scheduler: what is in force.
        queue: likewise.

    Raises:
        ConfigurationError: there is no such setting, it cannot change while running, or the value is not possible.
    """
    fields: dict[str, object] = {}
    queue_fields: dict[str, Any] = {}
    for name, value in given.items():
        if name in TENANT_FIELDS:
            continue
        checked = _checked(name, value)
        if name in SCHEDULER_FIELDS:
            fields[name] = checked
        else:
            queue_fields[name] = checked
        if name == "queue_timeout":
            fields["queue_timeout_s"] = checked
    default = scheduler.default_tenant
    if "default_tenant" in given:
        default = fields["default_tenant"] = change_tenant(default, _table(given, "default_tenant"), "default_tenant")
    if "tenants" in given:
        fields["tenants"] = _changed_tenants(_table(given, "tenants"), scheduler.tenants, default)
    return Changes(fields, replace(queue, **queue_fields))


def settings_in_force(scheduler: SchedulerConfig, queue: QueueSettings) -> dict[str, object]:
    """Return every changeable setting with its value now."""
    values: dict[str, object] = {name: getattr(scheduler, name) for name in SCHEDULER_FIELDS}
    values.update((name, getattr(queue, name)) for name in QUEUE_FIELDS)
    values["tenants"] = {name: asdict(tenant) for name, tenant in scheduler.tenants.items()}
    values["default_tenant"] = asdict(scheduler.default_tenant)
    return values


def changes_again(
    names: Iterable[str], scheduler: SchedulerConfig, queue: QueueSettings, configured: Iterable[str]
) -> dict[str, object]:
    """Return the change that brings a fresh engine to what is in force now.

    Args:
        names: settings that were changed.
        scheduler: what is in force.
        queue: likewise.
        configured: tenants that a fresh engine knows.
    """
    now = settings_in_force(scheduler, queue)
    again = {name: now[name] for name in CHANGEABLE if name in set(names)}
    if "tenants" in again:
        again["tenants"] = {**dict.fromkeys(configured), **cast("dict[str, object]", now["tenants"])}
    return again


def _checked(name: str, value: object) -> object:
    info = settings_by_name().get(name)
    if name not in CHANGEABLE or info is None:
        if info is not None:
            raise ConfigurationError(f"{info.flag} cannot be changed while running; start the server anew with it")
        close = difflib.get_close_matches(name, CHANGEABLE, n=1)
        raise ConfigurationError(f"there is no setting {name!r}{f'; did you mean {close[0]}?' if close else ''}")
    if value is None:
        if not info.is_optional or name in _NEVER_NONE:
            raise ConfigurationError(f"{info.flag} needs a value, got null")
        return None
    if isinstance(value, str) and info.kind is not str:
        # A command line has nothing but text; JSON has numbers.
        raise ConfigurationError(f"{info.flag} must be {_KINDS[info.kind]}, got the text {value!r}")
    return coerce(info, value)


def _changed_tenants(
    given: Mapping[str, object], tenants: Mapping[str, TenantConfig], default: TenantConfig
) -> Mapping[str, TenantConfig]:
    changed = dict(tenants)
    for name, fields in given.items():
        shown = f"tenants.{name}"
        check_tenant_name(name, "tenants")
        if fields is None:
            changed.pop(name, None)
        else:
            changed[name] = change_tenant(changed.get(name, default), _table(given, name, shown), shown)
    if len(changed) > MAX_TENANTS:
        raise ConfigurationError(f"tenants: {len(changed)} would be configured, and {MAX_TENANTS} is the limit")
    return changed


def _table(given: Mapping[str, object], name: str, shown: str | None = None) -> Mapping[str, object]:
    value = given[name]
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{shown or name} must be an object with a value per name")
    return cast("Mapping[str, object]", value)
