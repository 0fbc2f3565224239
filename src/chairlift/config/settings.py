"""All sections together, and a description of each setting for whoever parses, prints or documents them.

Knows nothing of where values come from.
"""

import types
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from chairlift.config.sections import (
    SECTIONS,
    AnswerSettings,
    BatchSettings,
    CacheSettings,
    ConnectionSettings,
    EmbeddingSettings,
    LimitSettings,
    ModelSettings,
    ObservabilitySettings,
    PolicySettings,
    QueueSettings,
    SchedulerSettings,
    ServerSettings,
    TenancySettings,
)

ENVIRONMENT_PREFIX = "CHAIRLIFT_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user chose. A component is given its own section, never all of this."""

    model: ModelSettings = field(default_factory=ModelSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    tenancy: TenancySettings = field(default_factory=TenancySettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    connections: ConnectionSettings = field(default_factory=ConnectionSettings)
    observability: ObservabilitySettings = field(default_factory=ObservabilitySettings)
    answers: AnswerSettings = field(default_factory=AnswerSettings)
    embeddings: EmbeddingSettings = field(default_factory=EmbeddingSettings)
    batches: BatchSettings = field(default_factory=BatchSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingInfo:
    """One setting: where it lives, its type without ``None``, and what :func:`~chairlift.config.setting.setting` says.

    ``bounds`` are the least and greatest allowed number, ``None`` where there is no bound.
    """

    section: str
    name: str
    kind: type[bool] | type[int] | type[float] | type[str]
    is_optional: bool
    default: object
    help: str
    choices: tuple[str, ...]
    bounds: tuple[float | None, float | None]
    aliases: tuple[str, ...]
    is_secret: bool

    @property
    def flag(self) -> str:
        """The flag on the command line, such as ``--max-num-seqs``."""
        return "--" + self.name.replace("_", "-")

    @property
    def environment_variable(self) -> str:
        """The variable that sets it, such as ``CHAIRLIFT_MAX_NUM_SEQS``."""
        return ENVIRONMENT_PREFIX + self.name.upper()


@cache
def describe_settings() -> tuple[SettingInfo, ...]:
    """Describe every setting, in the order of the sections."""
    section_names = {get_type_hints(Settings)[f.name]: f.name for f in fields(Settings)}
    infos: list[SettingInfo] = []
    for section in SECTIONS:
        hints = get_type_hints(section)
        for declared in fields(section):
            kind, is_optional = _split_optional(hints[declared.name])
            infos.append(
                SettingInfo(
                    section=section_names[section],
                    name=declared.name,
                    kind=kind,
                    is_optional=is_optional,
                    default=declared.default,
                    help=declared.metadata["help"],
                    choices=declared.metadata["choices"],
                    bounds=declared.metadata["bounds"],
                    aliases=declared.metadata["flags"],
                    is_secret=declared.metadata["is_secret"],
                )
            )
    return tuple(infos)


def canonical_name(key: str) -> str:
    """Turn any spelling of a key (``--Max-Num-Seqs``, ``max_num_seqs``) into that of a field."""
    return key.strip().lstrip("-").replace("-", "_").lower()


@cache
def settings_by_name() -> dict[str, SettingInfo]:
    """Map every name and alias, spelt as a field, to its setting."""
    table: dict[str, SettingInfo] = {}
    for info in describe_settings():
        for key in (info.name, *info.aliases):
            name = canonical_name(key)
            if name in table:
                raise ValueError(f"two settings are called {name}: {table[name].section} and {info.section}")
            table[name] = info
    return table


def _split_optional(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        return kinds[0], True
    return hint, False
