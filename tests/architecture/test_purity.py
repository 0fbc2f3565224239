import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture import source_tree

PROBE = """
import json, sys, time
before = set(sys.modules)
start_s = time.perf_counter()
for name in sys.argv[1:]:
    __import__(name)
import_s = time.perf_counter() - start_s
foreign = {name.partition(".")[0] for name in set(sys.modules) - before}
foreign -= sys.stdlib_module_names | {"chairlift"}
print(json.dumps({"foreign": sorted(foreign), "import_s": import_s, "modules": sorted(sys.modules)}))
"""


def probe(*names: str) -> dict[str, object]:
    command = [sys.executable, "-c", PROBE, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def modules_of(*packages: str) -> list[str]:
    return [source_tree.module_name(p) for p in source_tree.modules() if _top(p) in packages]


def _top(path: Path) -> str:
    return path.relative_to(source_tree.PACKAGE).parts[0].removesuffix(".py")


def test_the_core_needs_nothing_but_the_standard_library_and_loads_at_once() -> None:
    found = probe(*modules_of("core", "errors"))
    assert found["foreign"] == []
    # 0.1 s is the aim; a loaded machine may need more, a heavy import always does.
    assert isinstance(found["import_s"], float)
    assert found["import_s"] < 1.0
    for costly in ("asyncio", "multiprocessing", "http.client", "sqlite3"):
        assert costly not in found["modules"]  # type: ignore[operator]


def test_the_settings_load_without_third_party_packages() -> None:
    assert probe(*modules_of("config"), "chairlift")["foreign"] == []


def test_the_simulator_needs_nothing_but_the_standard_library_until_it_draws() -> None:
    names = [name for name in modules_of("simulator", "workload") if ".report." not in name]
    assert probe(*names)["foreign"] == []


@pytest.mark.parametrize(
    "package", ["config", "observability", "tokenization", "workload", "simulator", "engine", "server", "cli"]
)
def test_no_package_above_the_torch_backend_loads_torch_when_imported(package: str) -> None:
    names = modules_of(package)
    if not names:
        pytest.skip(f"there is no chairlift.{package} yet")
    heavy = {"torch", "numba", "transformers", "triton"}
    assert heavy & set(probe(*names)["foreign"]) == set()  # type: ignore[call-overload]
