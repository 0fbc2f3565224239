"""The file that ``chairlift bench serve`` writes and ``chairlift bench compare`` reads.

Knows nothing of how a run comes about. A reader refuses files of a newer version; within one, fields are only added.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from chairlift.benchmark.summary import BenchRun
from chairlift.errors import ConfigurationError

SCHEMA = "chairlift.bench.serve"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """Runs of one load against one server.

    Args:
        label: what it is called where it is compared.
        started_at: when, in ISO 8601.
        version: of this tool.
        target: what was measured: address, model, dialect.
        settings: how: the flags that were given.
        runs: what came out.
    """

    label: str
    started_at: str
    version: str
    target: Mapping[str, object]
    settings: Mapping[str, object]
    runs: Sequence[BenchRun]

    def to_json(self, *, detailed: bool = False) -> dict[str, object]:
        """Return what the file holds."""
        return {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "label": self.label,
            "started_at": self.started_at,
            "version": self.version,
            "target": dict(self.target),
            "settings": dict(self.settings),
            "runs": [run.to_json(detailed=detailed) for run in self.runs],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadResult:
    """A file as it was read."""

    label: str
    target: Mapping[str, Any]
    settings: Mapping[str, Any]
    runs: Sequence[Mapping[str, Any]]


def read_result(path: Path) -> ReadResult:
    """Read a file.

    Raises:
        ConfigurationError: it cannot be read, or is no result that this version knows.
    """
    try:
        content: object = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path} is no result of chairlift bench serve")
    fields = cast("dict[str, Any]", content)
    version: object = fields.get("schema_version")
    if fields.get("schema") != SCHEMA or not isinstance(version, int):
        raise ConfigurationError(f"{path} is no result of chairlift bench serve")
    if version > SCHEMA_VERSION:
        raise ConfigurationError(f"{path} has version {version}, and this tool reads up to version {SCHEMA_VERSION}")
    runs: object = fields.get("runs")
    if not isinstance(runs, list) or not runs or not all(isinstance(run, dict) for run in cast("list[object]", runs)):
        raise ConfigurationError(f"{path} has no runs")
    return ReadResult(
        label=str(fields.get("label") or path.stem),
        target=fields.get("target") or {},
        settings=fields.get("settings") or {},
        runs=cast("list[Mapping[str, Any]]", runs),
    )
