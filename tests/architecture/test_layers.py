import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.architecture import source_tree

PYPROJECT: dict[str, Any] = tomllib.loads((source_tree.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONTRACTS = [contract["name"] for contract in PYPROJECT["tool"]["importlinter"]["contracts"]]

# One file per contract that breaks it, and if possible no other one.
VIOLATIONS: dict[str, dict[str, str]] = {
    "layers": {"config/planted.py": "import chairlift.core.scheduler\n"},
    "pure domain": {"core/planted.py": "import asyncio\n"},
    "workloads and metrics need no model and no server": {"observability/planted.py": "import socket\n"},
    "only the torch backend speaks torch": {"engine/planted.py": "import torch\n"},
    "one package speaks to the grammar library": {"engine/planted_grammar.py": "import llguidance\n"},
    "only the server speaks HTTP frameworks": {"engine/planted_http.py": "import fastapi\n"},
    "nothing is unpickled": {"engine/planted_pickle.py": "import pickle\n"},
    "policies do not know each other": {
        "core/policies/planted.py": "import chairlift.core.policies.ordering\n",
    },
    "no cycles inside the core": {
        "core/planted_a.py": "import chairlift.core.planted_b\n",
        "core/planted_b.py": "import chairlift.core.planted_a\n",
    },
    "the simulator drives the core alone": {"simulator/planted.py": "import chairlift.execution\n"},
    "only reports plot": {"simulator/planted_plot.py": "import matplotlib\n"},
    "benchmark is a black-box client": {"benchmark/planted.py": "import chairlift.core\n"},
}


def lint_imports(root: Path) -> str:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    done = subprocess.run(
        command,
        cwd=root,
        env={"PYTHONPATH": str(root / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


def test_every_contract_catches_a_planted_violation(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(source_tree.PACKAGE, tmp_path / "src" / "chairlift", ignore=ignored)
    shutil.copy(source_tree.ROOT / "pyproject.toml", tmp_path)
    assert f"Contracts: {len(CONTRACTS)} kept, 0 broken" in lint_imports(tmp_path)
    for name in CONTRACTS:
        for file, code in VIOLATIONS[name].items():
            (tmp_path / "src" / "chairlift" / file).write_text(f'"""Planted."""\n{code}', encoding="utf-8")
    report = lint_imports(tmp_path)
    details = report.partition("Broken contracts")[2]
    sections = dict(re.findall(r"^([^\n]+)\n-+\n(.*?)(?=^[^\n]+\n-+\n|\Z)", details, re.MULTILINE | re.DOTALL))
    for name in CONTRACTS:
        assert f"{name} BROKEN" in report
        assert "planted" in sections[name], f"{name} is broken, but not by what was planted"


def test_every_layer_of_the_package_is_named_in_the_contract() -> None:
    layers = next(c for c in PYPROJECT["tool"]["importlinter"]["contracts"] if c["name"] == "layers")["layers"]
    named = {name.strip(" ()") for layer in layers for name in layer.split("|")}
    present = {source_tree.module_name(path).split(".")[1] for path in source_tree.modules()[1:]}
    assert present - {"__main__"} <= named
    design = "cli server benchmark simulator cluster engine execution tokenization lora routing workload report"
    assert named == {*design.split(), "structured", "observability", "core", "config", "errors"}


def test_types_are_checked_strictly_everywhere_but_in_the_torch_backend() -> None:
    strict = [source_tree.ROOT / name for name in PYPROJECT["tool"]["pyright"]["strict"]]
    backend = source_tree.PACKAGE / "execution" / "torch_backend"
    lenient = [
        source_tree.name_of(path)
        for path in source_tree.modules()
        if not path.is_relative_to(backend) and not any(path.is_relative_to(entry) for entry in strict)
    ]
    assert lenient == []


@pytest.mark.parametrize("comment", ["# pyright: basic", "# pyright: ignore\n", "# noqa\n", "# type: ignore\n"])
def test_no_check_is_switched_off_without_saying_which(comment: str) -> None:
    found = [source_tree.name_of(path) for path in source_tree.modules() if comment in path.read_text(encoding="utf-8")]
    assert found == []
