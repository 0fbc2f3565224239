"""Tokenizers from Hugging Face folders."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from chairlift.config.model_source import ModelSource
from chairlift.errors import InvalidRequestError, ModelLoadError
from chairlift.tokenization import Tokenizer, load_tokenizer
from tests.unit.tokenization.vocabularies import END, START, byte_level_backend, id_of

END_ID = id_of(byte_level_backend(), END)
START_ID = id_of(byte_level_backend(), START)


class Folder:
    """A model folder that holds a byte-level tokenizer and whatever a test adds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        byte_level_backend().save(str(path / "tokenizer.json"))

    def write(self, name: str, **content: Any) -> None:
        (self.path / name).write_text(json.dumps(content), encoding="utf-8")

    def load(self, chat_template: str | None = None) -> Tokenizer:
        return load_tokenizer(ModelSource("folder", self.path, "test"), chat_template)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_a_folder_needs_only_tokenizer_json(folder: Folder) -> None:
    tokenizer = folder.load()
    assert tokenizer.decode(tokenizer.encode("hé 🙂")) == "hé 🙂"
    assert tokenizer.bos_token_id is None
    assert tokenizer.eos_token_ids == frozenset()
    assert not tokenizer.has_chat_template
    assert tokenizer.special_ids == {START_ID, END_ID}
    with pytest.raises(InvalidRequestError, match="--chat-template"):
        tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])


def test_special_tokens_in_a_text_are_one_id_each(folder: Folder) -> None:
    assert folder.load().encode(f"{START}a{END}") == [START_ID, ord("a"), END_ID]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config.json": {"eos_token": END}}, {END_ID}),
        ({"tokenizer_config.json": {"eos_token": {"content": END}}, "config.json": {"eos_token_id": 7}}, {7, END_ID}),
        ({"generation_config.json": {"eos_token_id": [3, 4]}, "config.json": {"eos_token_id": 7}}, {3, 4}),
        ({"config.json": {"eos_token_id": [7, 8]}}, {7, 8}),
        ({"special_tokens_map.json": {"eos_token": END}}, {END_ID}),
    ],
)
def test_end_tokens_come_from_all_files_that_may_name_them(
    folder: Folder, files: dict[str, dict[str, Any]], expected: set[int]
) -> None:
    for name, content in files.items():
        folder.write(name, **content)
    assert folder.load().eos_token_ids == expected


def test_begin_and_end_tokens_are_added_as_configured(folder: Folder) -> None:
    folder.write("tokenizer_config.json", bos_token=START, eos_token=END, add_bos_token=True, add_eos_token=True)
    tokenizer = folder.load()
    assert tokenizer.bos_token_id == START_ID
    assert tokenizer.encode("a") == [START_ID, ord("a"), END_ID]
    assert tokenizer.encode("a", add_special_tokens=False) == [ord("a")]


def test_a_begin_token_that_is_switched_off_is_not_added(folder: Folder) -> None:
    backend = byte_level_backend()
    backend.post_processor = TemplateProcessing(single=f"{START} $A", special_tokens=[(START, START_ID)])
    backend.save(str(folder.path / "tokenizer.json"))
    assert folder.load().encode("a") == [START_ID, ord("a")]
    folder.write("tokenizer_config.json", bos_token=START, add_bos_token=False)
    assert folder.load().encode("a") == [ord("a")]


def test_tokens_that_only_the_configuration_knows_are_added(folder: Folder) -> None:
    size = folder.load().vocab_size
    folder.write(
        "tokenizer_config.json",
        added_tokens_decoder={
            str(size + 1): {"content": "<tool>", "special": False},
            str(size): {"content": "<|pad|>", "special": True},
        },
        pad_token="<|pad|>",
        additional_special_tokens=["<|extra|>", {"content": "<|more|>"}],
    )
    tokenizer = folder.load()
    assert tokenizer.encode("<|pad|><tool><|extra|><|more|>") == [size, size + 1, size + 2, size + 3]
    assert tokenizer.special_ids == {START_ID, END_ID, size, size + 2, size + 3}


def test_the_models_own_vocabulary_size_counts(folder: Folder) -> None:
    size = folder.load().vocab_size
    folder.write("config.json", vocab_size=size + 10)
    folder.load().check_token_ids([0, size + 9])
    folder.write("config.json", text_config={"vocab_size": size - 1})
    # The tokenizer's last token has no embedding, as in fine-tunes that added a token and not its row.
    with pytest.raises(InvalidRequestError, match=rf"token id {size - 1} at position 0 .*\[0, {size - 1}\)"):
        folder.load().encode("<think>")


def test_truncation_and_padding_of_the_training_run_are_ignored(folder: Folder) -> None:
    backend = byte_level_backend()
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    backend.save(str(folder.path / "tokenizer.json"))
    assert folder.load().encode("abcd") == list(b"abcd")


def render(tokenizer: Tokenizer, **variables: Any) -> str:
    return tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], **variables)


def test_the_chat_template_may_be_in_three_places(folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder.write("tokenizer_config.json", chat_template="{{ bos_token }}one", bos_token=START)
    assert render(folder.load()) == f"{START}one"
    (folder.path / "chat_template.jinja").write_text("two")
    assert render(folder.load()) == "two"
    override = tmp_path_factory.mktemp("override") / "mine.jinja"
    override.write_text("three")
    assert render(folder.load(str(override))) == "three"


def test_named_templates_are_chosen_by_use(folder: Folder) -> None:
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools | length }}"}]
    folder.write("tokenizer_config.json", chat_template=templates)
    assert render(folder.load()) == "plain"
    assert render(folder.load(), tools=[]) == "plain"
    assert render(folder.load(), tools=[{"name": "f"}]) == "1"


def test_the_generation_prompt_is_there_unless_the_last_message_goes_on(folder: Folder) -> None:
    folder.write(
        "tokenizer_config.json", chat_template="{{ messages[0].content }}{{ '!' if add_generation_prompt else '.' }}"
    )
    tokenizer = folder.load()
    assert render(tokenizer) == "Hi!"
    assert render(tokenizer, add_generation_prompt=False) == "Hi."
    assert render(tokenizer, continue_final_message=True) == "Hi"
    with pytest.raises(InvalidRequestError, match="exclude each other"):
        render(tokenizer, add_generation_prompt=True, continue_final_message=True)
    with pytest.raises(InvalidRequestError, match="must not be named messages"):
        render(tokenizer, messages=[])


def test_missing_and_broken_files_are_named(folder: Folder) -> None:
    folder.write("generation_config.json")
    (folder.path / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"config\.json cannot be read"):
        folder.load()
    (folder.path / "config.json").write_text("[]")
    with pytest.raises(ModelLoadError, match=r"config\.json must hold a JSON object"):
        folder.load()
    (folder.path / "config.json").unlink()
    with pytest.raises(ModelLoadError, match=r"--chat-template .*nowhere\.jinja"):
        folder.load(str(folder.path / "nowhere.jinja"))
    (folder.path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json cannot be read"):
        folder.load()
    (folder.path / "tokenizer.json").unlink()
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json is missing"):
        folder.load()
