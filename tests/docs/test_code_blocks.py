import re
import shlex
import subprocess
import sys

import click
import pytest

from chairlift.cli.main import cli
from tests.docs.pages import Block, blocks

BLOCKS = list(blocks())
TO_RUN = [block for block in BLOCKS if block.language == "python" and block.reason_not_to_run is None]
SHELL = [block for block in BLOCKS if block.language in {"bash", "sh", "console"}]
_OUTPUT = re.compile(r"\A\s*```text\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", TO_RUN, ids=str)
def test_python_runs_and_prints_what_the_page_says(block: Block) -> None:
    # Without torch: pages are about the scheduler, and say so where they need a model.
    guard = "import sys\nsys.modules['torch'] = None\n"
    command = [sys.executable, "-W", "error", "-c", guard + block.body]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    expected = _OUTPUT.match(block.text_after)
    assert done.stdout == (expected["text"] if expected else "")


def test_some_python_is_run() -> None:
    assert len(TO_RUN) >= 2


def test_every_block_names_a_known_language() -> None:
    known = {"python", "bash", "text", "json", "toml", "yaml"}
    assert [str(block) for block in BLOCKS if block.language not in known] == []


def test_python_that_is_not_run_is_valid_and_imports_what_exists() -> None:
    for block in BLOCKS:
        if block.language == "python" and block.reason_not_to_run is not None:
            compile(block.body, str(block), "exec")
            for module, names in re.findall(r"^from (chairlift[\w.]*) import ([\w, ]+)$", block.body, re.MULTILINE):
                exported = __import__(module, fromlist=["_"]).__dir__()
                assert {name.strip() for name in names.split(",")} <= set(exported), str(block)


def _commands() -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for block in SHELL:
        for line in block.body.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0].rpartition("/")[2] == "chairlift":
                found.append((str(block), words[1:]))
    return found


def test_commands_in_shell_blocks_have_the_flags_that_are_used() -> None:
    commands = _commands()
    assert commands
    for place, words in commands:
        command: click.Command = cli
        context = click.Context(cli)
        for word in words:
            if isinstance(command, click.Group) and not word.startswith("-"):
                found = command.get_command(context, word)
                assert found is not None, f"{place}: there is no command {word}"
                command = found
        known = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)} | {"--help"}
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used <= known, place
