"""Runs to compare: which settings differ from one to the next.

Knows nothing of what settings do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.config.settings import SettingInfo, canonical_name, describe_settings, settings_by_name
from chairlift.errors import ConfigurationError

NO_TIERS = "no-tiers"
_SECTIONS = ("policy", "scheduler", "cache")
_CHOICE_SECTIONS = ("policy", "scheduler")


@dataclass(frozen=True, slots=True)
class Variant:
    """Settings by name that one run has of its own; ``has_tiers``: whether it keeps the tiers of the workload."""

    label: str
    values: tuple[tuple[str, str], ...] = ()
    has_tiers: bool = True


def parse_compare(text: str) -> list[Variant]:
    """Read ``fcfs,fair,deadline+fair,preemption-mode=swap``: commas between runs, ``+`` between settings of one.

    A word alone is a choice of whatever setting has it; ``no-tiers`` puts all requests into one tier.

    Raises:
        ConfigurationError: no setting has that choice, or more than one has.
    """
    if not all(part.strip() for part in text.split(",")):
        raise ConfigurationError(
            f"--compare {text!r} has a run without a setting; it is of the form fcfs,deadline+fair"
        )
    variants: list[Variant] = []
    for part in text.split(","):
        words = [word.strip() for word in part.split("+")]
        values = tuple(_parse_setting(word) for word in words if word != NO_TIERS)
        names = [name for name, _ in values]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigurationError(f"--compare {part.strip()!r} says {twice} twice; commas stand between runs")
        variants.append(Variant(part.strip(), values, has_tiers=NO_TIERS not in words))
    _require_own_labels("--compare", variants)
    return variants


def parse_sweep(text: str) -> tuple[str, list[Variant]]:
    """Read ``max_num_seqs=8,16,32`` and return the setting's name, and one run for each value.

    Raises:
        ConfigurationError: it is not of this form, or there is no such setting.
    """
    name, equals, values = text.partition("=")
    if not equals or not values:
        raise ConfigurationError(f"--sweep {text!r} is not of the form setting=value,value,...")
    info = _find(name)
    variants = [Variant(value.strip(), ((info.name, value.strip()),)) for value in values.split(",")]
    _require_own_labels("--sweep", variants)
    return info.name, variants


def combine(compared: Sequence[Variant], swept: Sequence[Variant]) -> list[Variant]:
    """Return every pair of both; all of one if the other is empty; one run without differences if both are.

    Raises:
        ConfigurationError: both vary the same setting.
    """
    both = {name for one in compared for name, _ in one.values} & {name for one in swept for name, _ in one.values}
    if both:
        raise ConfigurationError(f"--compare and --sweep both say {', '.join(sorted(both))}; one of them is enough")
    if not compared or not swept:
        return [*compared, *swept] or [Variant("run")]
    return [
        Variant(f"{a.label} {b.label}", (*a.values, *b.values), has_tiers=a.has_tiers) for a in compared for b in swept
    ]


def _require_own_labels(flag: str, variants: Sequence[Variant]) -> None:
    labels = [variant.label for variant in variants]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigurationError(f"{flag} has {label!r} twice; each run needs a label of its own")


def _parse_setting(word: str) -> tuple[str, str]:
    name, equals, value = word.strip().partition("=")
    if equals:
        return _find(name).name, value
    choices = [info for info in describe_settings() if info.section in _CHOICE_SECTIONS and name in info.choices]
    if len(choices) != 1:
        known = sorted(
            {choice for info in describe_settings() if info.section in _CHOICE_SECTIONS for choice in info.choices}
        )
        problem = (
            "is a choice of " + " and ".join(info.flag for info in choices) if choices else "is no setting's choice"
        )
        raise ConfigurationError(f"{word!r} {problem}; write setting=value, or one of: {', '.join(known)}")
    return choices[0].name, name


def _find(name: str) -> SettingInfo:
    info = settings_by_name().get(canonical_name(name))
    if info is None or info.section not in _SECTIONS:
        raise ConfigurationError(f"there is no setting {name!r} that a simulation could vary")
    return info
