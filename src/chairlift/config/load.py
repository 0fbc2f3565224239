"""Settings from the environment and from given values: defaults < ``CHAIRLIFT_*`` variables < values.

The only module that reads ``os.environ``. Knows nothing of command lines, models or devices.
"""

import contextlib
import difflib
import math
import os
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from chairlift.config.settings import (
    ENVIRONMENT_PREFIX,
    SettingInfo,
    Settings,
    canonical_name,
    settings_by_name,
)
from chairlift.config.tenants import Tenants, read_tenants
from chairlift.errors import ConfigurationError

_MIN_INT, _MAX_INT = -(2**63), 2**63 - 1
"""Whole numbers travel to the engine process in 64 bits."""

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})

# Kubernetes gives every container the addresses of the services in its namespace, as CHAIRLIFT_PORT=tcp://10.0.0.7:80
# and the like where a service is called "chairlift". They are not ours.
_SERVICE_LINK_NAME = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$")
_SERVICE_LINK_VALUE = re.compile(r"^(tcp|udp|sctp)://", re.IGNORECASE)


def load_settings(values: Mapping[str, object] | None = None, env: Mapping[str, str] | None = None) -> Settings:
    """Put the settings together.

    Args:
        values: what the command line or a caller chose, by field name, flag or alias (``max_num_seqs``,
            ``--max-num-seqs``, ``--max-running-requests``); ``None`` means not given.
        env: environment variables; the process's own if absent. Empty ones count as not set.

    Returns:
        Frozen settings, each value of its declared type.

    Raises:
        ConfigurationError: a key is unknown (the message names the nearest one), is given twice with different
            values, or a value is of the wrong type, out of range or not among the choices.
    """
    chosen = _read_environment(os.environ if env is None else env)
    chosen.update(_read_values(values or {}))
    sections: dict[str, Any] = {}
    for field in fields(Settings):
        section = get_type_hints(Settings)[field.name]
        known = {f.name for f in fields(section)}
        sections[field.name] = section(**{name: value for name, value in chosen.items() if name in known})
    return Settings(**sections)


def load_tenants(path: str | None, env: Mapping[str, str] | None = None) -> Tenants:
    """Read the tenants file of ``--tenants``; without one there is one nameless tenant and no key.

    Raises:
        ConfigurationError: it cannot be read, or something in it cannot work.
    """
    return Tenants() if path is None else read_tenants(Path(path).expanduser(), os.environ if env is None else env)


def read_secret(variable: str, shown: str, env: Mapping[str, str] | None = None) -> str:
    """Return what an environment variable holds that ``shown`` names; a secret is never an argument itself.

    Raises:
        ConfigurationError: it is not set, or empty.
    """
    value = (os.environ if env is None else env).get(variable, "").strip()
    if not value:
        raise ConfigurationError(f"{shown} names the environment variable {variable}, which is not set")
    return value


def _read_environment(env: Mapping[str, str]) -> dict[str, object]:
    chosen: dict[str, object] = {}
    for variable, text in sorted(env.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or text == "":
            continue
        if _SERVICE_LINK_NAME.search(variable) or _SERVICE_LINK_VALUE.search(text):
            continue
        info = _find(variable.removeprefix(ENVIRONMENT_PREFIX), shown=variable, in_environment=True)
        _put(chosen, info, coerce(info, text, shown=variable), shown=variable)
    return chosen


def _read_values(values: Mapping[str, object]) -> dict[str, object]:
    chosen: dict[str, object] = {}
    for key, value in values.items():
        info = _find(key, shown=key, in_environment=False)
        if value is None:
            continue
        _put(chosen, info, coerce(info, value, shown=info.flag), shown=key)
    return chosen


def _put(chosen: dict[str, object], info: SettingInfo, value: object, *, shown: str) -> None:
    if info.name in chosen and chosen[info.name] != value:
        raise ConfigurationError(f"{shown} is another name of {info.flag}, and both are given with different values")
    chosen[info.name] = value


def _find(key: str, *, shown: str, in_environment: bool) -> SettingInfo:
    table = settings_by_name()
    name = canonical_name(key)
    if name in table:
        return table[name]
    nearest = difflib.get_close_matches(name, table, n=1, cutoff=0.6)
    hint = ""
    if nearest:
        info = table[nearest[0]]
        spelt = info.environment_variable if in_environment else nearest[0]
        hint = f"; did you mean {spelt}?"
    raise ConfigurationError(f"there is no setting {shown}{hint}")


def coerce(info: SettingInfo, value: object, *, shown: str | None = None) -> object:
    """Turn a given value into one of the setting's type, and check it.

    Args:
        info: the setting.
        value: a string, as command lines and environments give it, or a value of the right type.
        shown: what to call the setting in messages; its flag if absent.

    Raises:
        ConfigurationError: wrong type, out of range, or not among the choices; the message says what is allowed.
    """
    shown = shown or info.flag
    if info.kind is bool:
        return _to_bool(value, shown)
    if info.kind is int:
        return _in_bounds(info, _to_int(value, shown), shown)
    if info.kind is float:
        return _in_bounds(info, _to_float(value, shown), shown)
    text = _to_str(value, shown)
    if info.choices and text not in info.choices:
        close = difflib.get_close_matches(text, info.choices, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigurationError(f"{shown} must be one of {', '.join(info.choices)}; got {text!r}{hint}")
    return text


def _to_bool(value: object, shown: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _TRUE | _FALSE:
        return value.strip().lower() in _TRUE
    raise ConfigurationError(f"{shown} must be true or false, got {value!r}")


def _to_int(value: object, shown: str) -> int:
    number = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str):
        with contextlib.suppress(ValueError):
            number = int(value)
    if number is None:
        raise ConfigurationError(f"{shown} must be a whole number, got {value!r}")
    if not _MIN_INT <= number <= _MAX_INT:
        raise ConfigurationError(f"{shown} must be in [{_MIN_INT}, {_MAX_INT}], got {number}")
    return number


def _to_float(value: object, shown: str) -> float:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
    raise ConfigurationError(f"{shown} must be a finite number, got {value!r}")


def _to_str(value: object, shown: str) -> str:
    if not isinstance(value, str | Path | int) or isinstance(value, bool):
        raise ConfigurationError(f"{shown} must be text, got {value!r}")
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError:  # what is not UTF-8 in the environment or on a command line is a lone surrogate here
        raise ConfigurationError(f"{shown} must be UTF-8, which these bytes are not") from None
    return text


def _in_bounds(info: SettingInfo, number: float, shown: str) -> float:
    low, high = info.bounds
    if low is not None and number < low:
        raise ConfigurationError(f"{shown} must be at least {low}, got {number}")
    if high is not None and number > high:
        raise ConfigurationError(f"{shown} must be at most {high}, got {number}")
    return number
