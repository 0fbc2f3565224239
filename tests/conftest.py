"""What every test run shares: Hypothesis profiles, and a way to prove that tests need no torch.

Knows nothing of what is tested.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

# Shared machines are slow at times, so no example has a deadline; a hung test has pytest's timeout.
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("dev"), derandomize=True, print_blob=True)
settings.register_profile("nightly", parent=settings.get_profile("dev"), max_examples=2000, print_blob=True)
settings.load_profile("dev")

BLOCKED = frozenset({"torch", "numba", "llvmlite", "transformers", "triton"})


class _Blocker:
    """Import finder that refuses the blocked packages, as if they were not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {fullname!r} (blocked by --without-torch)", name=fullname)
        return None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without-torch", action="store_true", help=f"make {', '.join(sorted(BLOCKED))} impossible to import"
    )
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--without-torch"):
        loaded = sorted(BLOCKED & set(sys.modules))
        if loaded:
            raise pytest.UsageError(f"--without-torch came too late: {', '.join(loaded)} already imported")
        sys.meta_path.insert(0, _Blocker())
