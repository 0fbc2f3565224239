"""Whoever waits for a compiler is told so: at the first start for Numba's kernels, at the installation for C++."""

import logging
import shutil
import threading
from pathlib import Path

import pytest

from chairlift.execution.torch_backend.kernels_cpu.compilation import CompilationNotice
from chairlift.execution.torch_backend.kernels_native import compilation


class Told(logging.Handler):
    """Keeps what is logged, and says when something was."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[tuple[str, str]] = []
        self.has_name = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelname, record.getMessage()))
        if record.levelno == logging.INFO:
            self.has_name.set()


@pytest.fixture
def told():
    handler = Told()
    logger = logging.getLogger("chairlift.execution.torch_backend.kernels_cpu.compilation")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


def test_a_kernel_that_takes_long_is_told_of_and_the_first_one_to_everybody(told: Told) -> None:
    notice = CompilationNotice(after_s=0.0)
    for name in ("linear", "attention"):
        told.has_name.clear()
        with notice.of(name):
            assert told.has_name.wait(30)
    levels = [level for level, _ in told.lines]
    assert levels == ["WARNING", "INFO", "INFO"]
    assert "half a minute" in told.lines[0][1]
    assert [line for _, line in told.lines[1:]] == ["compiling the kernel linear", "compiling the kernel attention"]


def test_what_comes_from_the_disk_is_not_told_of(told: Told) -> None:
    with CompilationNotice(after_s=3600).of("linear"):
        pass
    assert told.lines == []


@pytest.fixture
def small_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources that are compiled at once."""
    folder = tmp_path / "csrc"
    folder.mkdir()
    (folder / "isa.cpp").write_text("int CHAIRLIFT_ISA() { return 1; }\n", encoding="utf-8")
    (folder / "library.cpp").write_text(
        'extern "C" const char* digest() { return CHAIRLIFT_SOURCE_DIGEST; }\n', encoding="utf-8"
    )
    monkeypatch.setattr(compilation, "SOURCES", folder)
    return tmp_path / "library.so"


@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler")
def test_compiling_says_what_is_done_and_nothing_where_nothing_is(small_sources: Path) -> None:
    lines: list[str] = []
    compilation.compile_library(small_sources, say=lines.append)
    assert "half a minute" in lines[0]
    names = {line.split(":")[1].split()[0] for line in lines[1:]}
    assert {"generic", "wide", "library"} <= names
    assert [line.split()[0] for line in lines[1:]] == [str(number) for number in range(1, len(names) + 1)]
    lines.clear()
    compilation.compile_library(small_sources, say=lines.append)
    assert lines == []


@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler")
def test_a_compiler_that_is_too_old_for_the_newest_instructions_leaves_them_out(
    small_sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("-mno-such-instructions",)
    monkeypatch.setattr(compilation, "_INSTRUCTION_SETS", {"generic": (), compilation._NEWEST: flags})
    lines: list[str] = []
    compilation.compile_library(small_sources, say=lines.append)
    assert "too old for amx" in lines[0]
    assert {line.split(":")[1].split()[0] for line in lines[2:]} == {"generic", "library"}
