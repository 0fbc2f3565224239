"""Flags made from the settings: one option per field, named, explained and defaulted by it.

Knows nothing of what settings do. A flag that is not given is not passed on, so that the environment and the defaults
can decide; values are checked where settings are loaded.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from chairlift.config.load import load_settings
from chairlift.config.settings import SettingInfo, Settings, describe_settings

HELP_NAMES = {"help_option_names": ["-h", "--help"]}
"""Context settings of every command, not only of the root: a command keeps the help option that it made first."""

Command = TypeVar("Command", bound=Callable[..., Any])

_MODEL_FLAG = "chairlift.model"
_METAVARS = {int: "N", float: "X", str: "TEXT"}


def setting_options(*sections: str, without: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """Add the flags of some sections to a command, which gets them as keyword arguments, ``None`` if not given."""

    def decorate(command: Command) -> Command:
        infos = [info for info in describe_settings() if info.section in sections and info.name not in without]
        for info in reversed(infos):
            command = click.option(
                *_names(info),
                info.name,
                default=None,
                type=click.Choice(info.choices) if info.choices else info.kind,
                metavar=None if info.choices or info.kind is bool else _METAVARS[info.kind],
                help=_help(info),
            )(command)
        return command

    return decorate


def model_argument(command: Command) -> Command:
    """Add MODEL, which may be written as ``--model``, too; the command gets it as ``model``, ``None`` if not given."""
    info = next(info for info in describe_settings() if info.name == "model")
    command = click.argument("model", required=False, callback=_either_model)(command)
    flag = click.option(
        info.flag,
        "model_flag",
        expose_value=False,
        is_eager=True,
        metavar="MODEL",
        help="The same as MODEL.",
        callback=_keep_model,
    )
    return flag(command)


def settings_from(values: Mapping[str, object]) -> Settings:
    """Settings from flags and the environment.

    Raises:
        ConfigurationError: a value is not possible.
    """
    return load_settings(values)


def _keep_model(context: click.Context, _option: click.Parameter, value: str | None) -> None:
    context.meta[_MODEL_FLAG] = value


def _either_model(context: click.Context, _argument: click.Parameter, value: str | None) -> str | None:
    flag: str | None = context.meta.get(_MODEL_FLAG)
    if value is not None and flag is not None and value != flag:
        raise click.UsageError(f"MODEL is {value}, but --model is {flag}: name one.")
    return flag if value is None else value


def _names(info: SettingInfo) -> list[str]:
    if info.kind is bool:
        return [f"{info.flag}/--no-{info.flag.removeprefix('--')}"]
    return [info.flag, *info.aliases]


def _help(info: SettingInfo) -> str:
    if info.default is None:
        return info.help
    shown = ("on" if info.default else "off") if info.kind is bool else info.default
    return f"{info.help}  [default: {shown}]"
