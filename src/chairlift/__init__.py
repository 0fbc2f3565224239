"""Chairlift serves open-weight language models by scheduling forward passes, not request groups.

Knows nothing of its parts until a name is asked for: ``import chairlift`` loads no model library.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chairlift.core.sampling_params import SamplingParams
    from chairlift.engine.llm import LLM
    from chairlift.engine.outputs import CompletionOutput, RequestOutput

__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams"]

_HOME = {
    "LLM": "chairlift.engine.llm",
    "CompletionOutput": "chairlift.engine.outputs",
    "RequestOutput": "chairlift.engine.outputs",
    "SamplingParams": "chairlift.core.sampling_params",
}


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
