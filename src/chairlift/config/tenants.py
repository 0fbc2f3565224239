"""The tenants file: API keys, whose they are, and what each tenant may have.

Knows nothing of requests or of how keys are compared. No message and no representation here ever holds a key.

::

    [default]                    # everybody whom no table below names, each for itself
    max_num_queued_reqs = 100

    [tenants.search]
    keys = ["sk-search-1", { env = "SEARCH_KEY" }, { file = "search.key" }]
    weight = 2.0
    max_num_queued_reqs = 500
    max_num_queued_tokens = 1_000_000
    max_kv_pages = 2_000
    most_urgent_tier = -1
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from chairlift.config.quoting import quoted, toml_fault
from chairlift.config.resolved import DEFAULT_TENANT, TenantConfig, TenantTable
from chairlift.errors import ConfigurationError

MAX_TENANTS = 10_000
"""Configured tenants at most, so that a script that goes wrong cannot fill the memory."""

RESERVED_NAMES = frozenset({"default", "other"})
"""Labels of metrics for the nameless and for those beyond the cap, so no tenant may have them."""

_MAX_NAME_CHARS = 64
_WEIGHTS = (1e-6, 1e6)
_MAX_TIER = 2**31
_MAX_COUNT = 2**53
_KEY_SOURCES = ("value", "env", "file")

_Table = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class TenantKey:
    """An API key and the tenant it stands for."""

    tenant: str
    value: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenants:
    """A tenants file that was read: what everybody may have, and the keys."""

    table: TenantTable = field(default_factory=TenantTable)
    keys: tuple[TenantKey, ...] = field(default=(), repr=False)

    @property
    def names_with_keys(self) -> frozenset[str]:
        """Tenants that have a key of their own."""
        return frozenset(key.tenant for key in self.keys)


def read_tenants(path: Path, env: Mapping[str, str]) -> Tenants:
    """Read a tenants file. Files that hold keys are found from its folder; surrounding white space is not the key's.

    Raises:
        ConfigurationError: the file cannot be read, or something in it cannot work; the message names file, table and
            field, and never quotes a key.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"--tenants {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"--tenants {path} cannot be read: it is not UTF-8 text") from None
    except (ValueError, RecursionError) as error:  # ValueError: also a number of too many digits
        raise ConfigurationError(f"--tenants {path} is not TOML: {toml_fault(error)}") from None
    _check_names(content, ("default", "tenants"), f"{path}")
    default = change_tenant(
        DEFAULT_TENANT, _table(content.get("default", {}), f"{path}: [default]"), f"{path}: [default]"
    )
    reader = _KeyReader(path.parent, env)
    by_name: dict[str, TenantConfig] = {}
    keys: list[TenantKey] = []
    tables = _table(content.get("tenants", {}), f"{path}: [tenants]")
    if len(tables) > MAX_TENANTS:
        raise ConfigurationError(f"{path}: {len(tables)} tenants are configured, and {MAX_TENANTS} is the limit")
    for name, entry in tables.items():
        shown = f"{path}: [tenants.{name}]"
        check_tenant_name(name, shown)
        given = dict(_table(entry, shown))
        listed = given.pop("keys", [])
        by_name[name] = change_tenant(default, given, shown, more=("keys",))
        keys.extend(TenantKey(name, value) for value in reader.read_all(listed, f"{shown} keys"))
    _check_unique(keys, path)
    return Tenants(table=TenantTable(by_name=by_name, default=default), keys=tuple(keys))


def change_tenant(base: TenantConfig, given: _Table, shown: str, *, more: Iterable[str] = ()) -> TenantConfig:
    """Return ``base`` with the fields that are given; fields are those of :class:`TenantConfig`.

    Args:
        base: what holds where nothing is given.
        given: values by field; ``None`` takes a cap away.
        shown: what to call the table in messages.
        more: further names to suggest where one is misspelt.

    Raises:
        ConfigurationError: a field is unknown, or its value is of the wrong type or out of range.
    """
    _check_names(given, (*_READERS, *more), shown)
    return replace(base, **{name: _READERS[name](value, f"{shown} {name}") for name, value in given.items()})


def check_tenant_name(name: str, shown: str) -> None:
    """Refuse a name that could not be shown, or that stands for something else.

    Raises:
        ConfigurationError: it is empty, too long, not printable or reserved.
    """
    if not name or len(name) > _MAX_NAME_CHARS or not name.isprintable():
        raise ConfigurationError(f"{shown}: a tenant's name has 1 to {_MAX_NAME_CHARS} printable characters")
    if name in RESERVED_NAMES:
        raise ConfigurationError(f"{shown}: {name!r} is no tenant's name; what all others may have stands in [default]")


class _KeyReader:
    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder = folder
        self._env = env

    def read_all(self, listed: object, shown: str) -> list[str]:
        if not isinstance(listed, list):
            raise ConfigurationError(f"{shown} must be a list")
        entries = cast("list[object]", listed)
        return [self._read(entry, f"{shown}[{index}]") for index, entry in enumerate(entries)]

    def _read(self, entry: object, shown: str) -> str:
        if isinstance(entry, str):
            return _checked_key(entry, shown)
        source = _table(entry, shown, or_what="a key or a table")
        if len(source) != 1 or not set(source) <= set(_KEY_SOURCES):
            # Names are not repeated here: one of them may be a key in the wrong place.
            sources = ", ".join(_KEY_SOURCES)
            raise ConfigurationError(f"{shown} must have exactly one of {sources} and nothing else, has {len(source)}")
        (kind, where), *_ = source.items()
        if not isinstance(where, str):
            raise ConfigurationError(f"{shown} {kind} must be text")
        if kind == "value":
            return _checked_key(where, shown)
        return self._from_env(where, shown) if kind == "env" else self._from_file(where, shown)

    def _from_env(self, variable: str, shown: str) -> str:
        value = self._env.get(variable, "")
        if not value.strip():
            raise ConfigurationError(f"{shown}: the environment variable {variable} is not set or empty")
        return _checked_key(value.strip(), f"{shown}: the environment variable {variable}")

    def _from_file(self, name: str, shown: str) -> str:
        try:
            path = self._folder / Path(name).expanduser()
        except RuntimeError:
            raise ConfigurationError(f"{shown}: there is no home folder for {name!r}") from None
        if "\0" in name:
            raise ConfigurationError(f"{shown}: {name!r} is no name of a file")
        try:
            value = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"{shown}: {path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigurationError(f"{shown}: {path} is not UTF-8 text") from None
        return _checked_key(value.strip(), f"{shown}: {path}")


def _checked_key(value: str, shown: str) -> str:
    if not value or any(char.isspace() or not char.isprintable() for char in value):
        raise ConfigurationError(f"{shown}: a key must have characters, and no white space or control characters")
    return value


def _check_unique(keys: Iterable[TenantKey], path: Path) -> None:
    owners: dict[str, str] = {}
    for key in keys:
        if key.value in owners:
            raise ConfigurationError(
                f"{path}: [tenants.{owners[key.value]}] and [tenants.{key.tenant}] list the same key; a key names one"
            )
        owners[key.value] = key.tenant


def _table(value: object, shown: str, *, or_what: str = "a table") -> _Table:
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{shown} must be {or_what}")
    return cast("_Table", value)


def _check_names(given: Iterable[str], known: Iterable[str], shown: str) -> None:
    names = tuple(known)
    for name in given:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {close[0]}?" if close else f"; there are: {', '.join(names)}"
            raise ConfigurationError(f"{shown} has no {name!r}{hint}")


def _read_weight(value: object, shown: str) -> float:
    least, greatest = _WEIGHTS  # far beyond these, sums of weights lose the small ones to rounding
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= greatest:
        raise ConfigurationError(
            f"{shown} must be a positive number, got {quoted(value)}; possible are {least:g} to {greatest:g}"
        )
    return float(value)


def _read_count(value: object, shown: str) -> int | None:
    return None if value is None else _whole(value, shown, 0, _MAX_COUNT)


def _read_pages(value: object, shown: str) -> int | None:
    return None if value is None else _whole(value, shown, 1, _MAX_COUNT)


def _read_tier(value: object, shown: str) -> int:
    return _whole(value, shown, -_MAX_TIER, _MAX_TIER - 1)


def _whole(value: object, shown: str, least: int, greatest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= greatest:
        raise ConfigurationError(f"{shown} must be a whole number in [{least}, {greatest}], got {quoted(value)}")
    return value


_READERS = {
    "weight": _read_weight,
    "max_num_queued_reqs": _read_count,
    "max_num_queued_tokens": _read_count,
    "max_kv_pages": _read_pages,
    "most_urgent_tier": _read_tier,
}
