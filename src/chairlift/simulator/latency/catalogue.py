"""Finds a latency model by what the command line calls it.

Knows nothing of steps. It may be spelt like this::

    llama-3.1-8b@h100          a model and a device sheet that come with Chairlift; @h100x2 splits it over two
    llama-3.1-8b@h100+tables   the same with measured operators in it, if the package with the tables is installed
    my-model.toml@h100.toml    sheets of one's own
    cpu.json                   what chairlift calibrate measured
"""

import re
import tomllib
from dataclasses import MISSING, fields
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, cast

from chairlift.config.quoting import quoted
from chairlift.errors import ConfigurationError
from chairlift.simulator.latency.measured import read_measured
from chairlift.simulator.latency.model import LatencyModel, StepShape
from chairlift.simulator.latency.operator_tables import load_operator_tables
from chairlift.simulator.latency.roofline import DeviceSheet, ModelSheet, RooflineLatency
from chairlift.workload.faults import in_words

DEFAULT = "llama-3.1-8b@h100"
_MAX_DEVICES = 64
_LEAST, _MOST = 1e-6, 1e18
"""What a number of a sheet can be."""
_PARTS = tuple(
    f"{name} of"
    for name in (
        "flop_efficiency", "memory_efficiency", "link_efficiency", "host_link_efficiency", "usable_memory",
        "copy_overlap",
    )
)  # fmt: skip
"""What cannot be more than all."""
_MOST_STEP_NS = 1e12
_ONE_TOKEN = StepShape(num_chunks=1, num_chunk_rows=1, num_chunk_pairs=1, num_chunk_context_tokens=1, num_sampled=1)

Sheet = TypeVar("Sheet", DeviceSheet, ModelSheet)


def find_latency_model(name: str) -> LatencyModel:
    """Load a latency model.

    Raises:
        ConfigurationError: there is none of that name, or it cannot be read, or the model does not fit.
    """
    model_name, at, device_name = name.partition("@")
    if not at:
        return read_measured(Path(name))
    device_name, plus, suffix = device_name.partition("+")
    if plus and suffix != "tables":
        raise ConfigurationError(f"latency model {name}: +{suffix} is unknown; there is +tables")
    found = re.fullmatch(r"(.+?)(?:x(\d{1,9}))?", device_name)
    device_name, num_devices = (found[1], int(found[2] or 1)) if found else (device_name, 1)
    if not 1 <= num_devices <= _MAX_DEVICES:
        raise ConfigurationError(f"latency model {name}: {num_devices} devices, but 1 to {_MAX_DEVICES} are possible")
    device, model = _read_sheet(DeviceSheet, "devices", device_name), _read_sheet(ModelSheet, "models", model_name)
    latency = _roofline(name, device, model, num_devices)
    if not latency.facts.num_kv_tokens:
        raise ConfigurationError(
            f"latency model {name}: the weights leave no memory for KV on {num_devices} devices; "
            f"take more of them, as in {model_name}@{device_name}x{2 * num_devices}"
        )
    return load_operator_tables(latency, latency.device.operator_tables) if plus else latency


def _roofline(name: str, device: DeviceSheet, model: ModelSheet, num_devices: int) -> RooflineLatency:
    try:
        latency = RooflineLatency(device, model, num_devices)
        token_ns = latency.time(_ONE_TOKEN, 1).duration_ns
    except ArithmeticError as error:
        raise ConfigurationError(f"latency model {name}: no machine has these numbers: {in_words(error)}") from None
    if token_ns > _MOST_STEP_NS:
        raise ConfigurationError(
            f"latency model {name}: a step of one token would take {token_ns / 1e9:g} s, and {_MOST_STEP_NS / 1e9:g} "
            "are possible; the sheets' units are bytes, bytes per second and operations per second"
        )
    return latency


def sheet_names(kind: str) -> list[str]:
    """Names of the sheets that come with Chairlift; ``kind`` is ``devices`` or ``models``."""
    folder = resources.files("chairlift.simulator").joinpath("data", kind)
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def _read_sheet(kind: type[Sheet], folder: str, name: str) -> Sheet:
    known = sheet_names(folder)
    try:
        if name in known:
            text = resources.files("chairlift.simulator").joinpath("data", folder, f"{name}.toml").read_text("utf-8")
        elif name.endswith(".toml"):
            text = Path(name).read_text(encoding="utf-8")
        else:
            raise ConfigurationError(
                f"there is no sheet {name!r} of {folder}; there are {', '.join(known)}, and files that end in .toml"
            )
        table: dict[str, Any] = tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:  # ValueError: also a number of too many digits
        raise ConfigurationError(f"sheet {name} cannot be read: {in_words(error)}") from None
    unknown = table.keys() - {field.name for field in fields(kind)}
    if unknown:
        raise ConfigurationError(f"sheet {name} of {folder} has unknown keys: {', '.join(sorted(unknown))}")
    missing = [field.name for field in fields(kind) if field.default is MISSING and field.name not in table]
    if missing:
        raise ConfigurationError(f"sheet {name} of {folder} needs {', '.join(missing)}")
    sheet = kind(**table)
    for field in fields(sheet):
        _check_entry(f"{field.name} of sheet {name}", getattr(sheet, field.name), field.type)
    return sheet


def _check_entry(shown: str, value: object, kind: object) -> None:
    """Refuse what no machine has. Overheads and overlaps may be 0, nothing else."""
    if kind is not int and kind is not float:
        if not isinstance(value, str | None):
            raise ConfigurationError(f"{shown} must be text, got {quoted(value)}")
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and (kind is float or type(value) is int)
    least = 0 if "_us of" in shown or "overlap of" in shown else _LEAST
    most = 1 if shown.startswith(_PARTS) else _MOST
    if not (is_number and least <= cast("float", value) <= most):
        kind_name = "whole number" if kind is int else "number"
        raise ConfigurationError(f"{shown} must be a {kind_name} in [{least:g}, {most:g}], got {quoted(value)}")
