import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from chairlift.cli import main as main_module
from chairlift.cli.main import main
from chairlift.cli.options import model_argument
from chairlift.cli.serve import serve
from chairlift.config.settings import describe_settings
from chairlift.errors import ConfigurationError, ModelLoadError


def test_help_imports_no_command_and_no_library_that_is_slow() -> None:
    script = (
        "import sys; sys.argv = ['chairlift', '--help']\n"
        "from chairlift.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        "slow = {'torch', 'fastapi', 'uvicorn', 'pydantic', 'zmq', 'httpx', 'rich', 'tokenizers', 'numpy'}\n"
        "sys.exit(' '.join(slow & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in ("serve", "chat", "generate", "bench"))


def test_every_setting_is_a_flag_of_serve_with_its_help() -> None:
    text = " ".join(CliRunner().invoke(serve, ["--help"]).output.split())
    for info in describe_settings():
        assert info.flag in text
        if info.name == "model":
            continue
        assert " ".join(info.help.split()).split(",")[0] in text.replace("- ", "-")
        assert all(alias in text for alias in info.aliases)


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["chairlift", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code if isinstance(end.value.code, int) else 0


@pytest.mark.parametrize(
    ("words", "status", "hint"),
    [
        (["serv"], 2, "'serve'"),
        (["serve", "--max-num-seq", "x"], 2, "--max-num-seqs"),
        (["serve", "--max-num-seqs", "x"], 2, "not a valid integer"),
        (["serve", "--max-num-seqs", "0"], 2, "at least 1"),
        (["serve", "--executor", "cuda"], 2, "'torch', 'fake'"),
        (["serve", "--max-num-seqs", "3", "--no-enable-prefix-cachin"], 2, "--no-enable-prefix-caching"),
        (["--version"], 0, ""),
    ],
)
def test_wrong_usage_names_what_was_meant(
    words: list[str], status: int, hint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *words) == status
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"), [(ConfigurationError("no"), 2), (ModelLoadError("no"), 1), (KeyboardInterrupt(), 130)]
)
def test_errors_become_one_line_and_a_status(
    error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(main_module.cli, "main", fail)
    assert run(monkeypatch) == status
    assert "Traceback" not in capsys.readouterr().err


def test_an_error_reaches_the_terminal_without_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise ConfigurationError("no file \x1b[2Jx\nor folder")

    monkeypatch.setattr(main_module.cli, "main", fail)
    assert run(monkeypatch) == 2
    assert capsys.readouterr().err == "Error: no file \\x1b[2Jx\nor folder\n"


def test_flags_that_are_not_given_leave_the_choice_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from chairlift.cli import options

    monkeypatch.setenv("CHAIRLIFT_MAX_NUM_SEQS", "5")
    monkeypatch.setenv("CHAIRLIFT_ENABLE_PREFIX_CACHING", "false")
    settings = options.settings_from({"max_num_seqs": None, "enable_prefix_caching": None, "page_size": 8})
    assert (settings.scheduler.max_num_seqs, settings.cache.page_size) == (5, 8)
    assert not settings.cache.enable_prefix_caching


@pytest.mark.parametrize("words", [["m"], ["--model", "m"], ["m", "--model", "m"], ["--model=m", "m"]])
def test_the_model_is_an_argument_or_a_flag(words: list[str]) -> None:
    seen: list[object] = []

    @click.command()
    @model_argument
    def command(model: str | None) -> None:
        seen.append(model)

    assert CliRunner().invoke(command, words).exit_code == 0
    assert CliRunner().invoke(command, []).exit_code == 0
    assert seen == ["m", None]
    refused = CliRunner().invoke(command, ["m", "--model", "other"])
    assert refused.exit_code == 2
    assert "MODEL is m, but --model is other" in refused.output
