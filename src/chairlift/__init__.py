"""Chairlift serves open-weight language models by scheduling forward passes, not request groups.

Knows nothing of its parts until a name is asked for: ``import chairlift`` loads no model library.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chairlift.core.sampling_params import SamplingParams
    from chairlift.engine.llm import LLM
    from chairlift.engine.outputs import CompletionOutput, RequestOutput

    __version__: str

__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams", "__version__"]

_HOME = {
    "LLM": "chairlift.engine.llm",
    "CompletionOutput": "chairlift.engine.outputs",
    "RequestOutput": "chairlift.engine.outputs",
    "SamplingParams": "chairlift.core.sampling_params",
}


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name == "__version__":
        return _installed_version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _installed_version() -> str:
    from importlib import metadata  # costs more than all of the core

    try:
        return metadata.version("chairlift")
    except metadata.PackageNotFoundError:  # run from a source tree that is on the path but not installed
        return "0+uninstalled"
