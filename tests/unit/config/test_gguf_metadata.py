"""The key-value header of GGUF files."""

from pathlib import Path

import pytest
from gguf import GGUFWriter

from chairlift.config.gguf_metadata import read_gguf_metadata
from chairlift.errors import ModelLoadError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "header.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_uint32("count", 7)
    writer.add_int64("far", -(2**40))
    writer.add_float32("share", 0.5)
    writer.add_bool("yes", True)
    writer.add_string("text", "grüße 🙂")
    writer.add_array("words", ["a", "", "ü"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("scores", [0.0, -1.5])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_reads_what_the_gguf_package_writes(file: Path) -> None:
    metadata = read_gguf_metadata(file)
    assert metadata.string("general.architecture") == "llama"
    assert (metadata.integer("count"), metadata.integer("far"), metadata.flag("yes")) == (7, -(2**40), True)
    assert (metadata["share"], metadata.string("text")) == (0.5, "grüße 🙂")
    assert metadata.strings("words") == ["a", "", "ü"]
    assert metadata.integers("numbers") == [1, -2, 3]
    assert metadata.floats("scores") == [0.0, -1.5]
    assert metadata.string("absent") is metadata.strings("absent") is None


def test_a_value_of_another_type_is_named(file: Path) -> None:
    metadata = read_gguf_metadata(file)
    with pytest.raises(ModelLoadError, match=r"header\.gguf: count is a int, but must be a str"):
        metadata.string("count")
    with pytest.raises(ModelLoadError, match="words is a list of str, but must be a list of int"):
        metadata.integers("words")
    with pytest.raises(ModelLoadError, match="count is a int, but must be a list of str"):
        metadata.strings("count")


def test_every_file_that_ends_early_is_refused(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelLoadError, match=r"cut\.gguf is not a readable GGUF file"):
            read_gguf_metadata(cut)


@pytest.mark.parametrize(
    "content",
    [
        b"PK\x03\x04" + bytes(40),
        b"GGUF" + b"\x01\0\0\0" + bytes(16),
        b"GGUF" + b"\0\0\0\x03" + bytes(16),
        # One pair with an empty key and value type 99; then an array of arrays.
        b"GGUF\x03\0\0\0" + bytes(8) + b"\x01" + bytes(7) + bytes(8) + b"\x63\0\0\0" + bytes(8),
        b"GGUF\x03\0\0\0" + bytes(8) + b"\x01" + bytes(7) + bytes(8) + b"\x09\0\0\0\x09\0\0\0\x01" + bytes(40),
        # A string that claims to be longer than the file.
        b"GGUF\x03\0\0\0" + bytes(8) + b"\x01" + bytes(7) + b"\xff" * 8 + bytes(40),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match="not a readable GGUF file"):
        read_gguf_metadata(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"gone\.gguf"):
        read_gguf_metadata(tmp_path / "gone.gguf")
