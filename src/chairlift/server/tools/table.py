"""The formats by name, and which one a model's chat template speaks of. Knows nothing of requests."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.server.tools.formats import (
    HERMES_START,
    LLAMA_TAG,
    MISTRAL_START,
    HermesScanner,
    ListScanner,
    LlamaScanner,
    MistralScanner,
)
from chairlift.server.tools.free_grammars import hermes_free, llama_free, mistral_free, qwen3_coder_free
from chairlift.server.tools.grammars import (
    CallGrammar,
    FreeGrammar,
    hermes_grammar,
    list_grammar,
    llama_grammar,
    mistral_grammar,
    qwen3_coder_grammar,
)
from chairlift.server.tools.qwen3_coder import FUNCTION_START, PARAMETER_START, Qwen3CoderScanner
from chairlift.server.tools.reasoning import THINK_END
from chairlift.server.tools.scanning import Scanner

MakeScanner = Callable[[Sequence[str], Mapping[str, Any]], Scanner]
"""(names of the tools, schema of each one's parameters or what is known of them) -> a reader of one answer."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One way to write calls: how it is read, how a grammar forces it, and what marks it.

    ``free`` is the grammar of an answer that may call; ``None`` where only a grammar makes a model call.
    ``markers`` may be special tokens, which the text must then show.
    """

    name: str
    scanner: MakeScanner
    grammar: CallGrammar
    markers: tuple[str, ...] = ()
    free: FreeGrammar | None = None


_HERMES = ToolFormat("hermes", lambda names, _: HermesScanner(names), hermes_grammar, (HERMES_START,), hermes_free)

TOOL_FORMATS: Mapping[str, ToolFormat] = {
    "hermes": _HERMES,
    "qwen3": _HERMES,
    "qwen3_coder": ToolFormat(
        "qwen3_coder", Qwen3CoderScanner, qwen3_coder_grammar, (FUNCTION_START,), qwen3_coder_free
    ),
    "llama3_json": ToolFormat(
        "llama3_json", lambda names, _: LlamaScanner(names), llama_grammar, (LLAMA_TAG,), llama_free
    ),
    "mistral": ToolFormat(
        "mistral", lambda names, _: MistralScanner(names), mistral_grammar, (MISTRAL_START,), mistral_free
    ),
}
"""By the names that ``--tool-call-parser`` takes, which are vLLM's."""

PLAIN_LIST = ToolFormat("list", lambda names, _: ListScanner(names), list_grammar)
"""For models that know no form: only a grammar makes them write calls."""


def detect_tool_format(template: str) -> ToolFormat | None:
    """The format that a chat template teaches; ``None`` where it teaches none, or none of these."""
    if FUNCTION_START in template and PARAMETER_START in template:
        return TOOL_FORMATS["qwen3_coder"]
    if HERMES_START in template:
        return TOOL_FORMATS["hermes"]
    if MISTRAL_START in template:
        return TOOL_FORMATS["mistral"]
    if '"parameters"' in template and ("ipython" in template or LLAMA_TAG in template):
        return TOOL_FORMATS["llama3_json"]
    return None


def find_tool_format(parser: str, template: str) -> ToolFormat | None:
    """The format that ``--tool-call-parser`` names, or the template's if that is ``auto``."""
    return detect_tool_format(template) if parser == "auto" else TOOL_FORMATS.get(parser)


def find_parser_problem(parser: str, template: str) -> str | None:
    """What whoever set ``--tool-call-parser`` should know of the model's chat template; ``None`` if all is well."""
    if parser not in TOOL_FORMATS or "tools" in template:
        return None
    return (
        f"--tool-call-parser {parser}: the model's chat template never mentions tools, so the model is not told of "
        "them and calls one only where tool_choice forces it; --chat-template names another template"
    )


def find_reasoning_parser(parser: str, template: str) -> str | None:
    """The parser that ``--reasoning-parser`` names, or that the template calls for if that is ``auto``."""
    if parser == "auto":
        return "qwen3" if THINK_END in template else None
    return None if parser == "none" else parser
