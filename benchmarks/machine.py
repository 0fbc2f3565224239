"""What a figure was measured on. Knows nothing of figures."""

import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

_INSTRUCTIONS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vnni": "AVX-512 VNNI",
    "avx512_bf16": "AVX-512 BF16",
    "avx_vnni": "AVX-VNNI",
    "amx_bf16": "AMX-BF16",
    "amx_int8": "AMX-INT8",
    "asimd": "NEON",
    "i8mm": "I8MM",
    "bf16": "BF16",
}
"""Flags of Linux that decide which kernels run, and their names in the field."""
NATIVE_BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Flags of which one makes bfloat16 a type of the processor."""


@dataclass(frozen=True)
class Machine:
    """A processor as Linux describes it.

    Args:
        cpu: its name.
        num_cores: cores that this process may use.
        memory_gib: memory of the machine.
        flags: what its instructions are called.
        system: kernel and Python.
    """

    cpu: str
    num_cores: int
    memory_gib: float
    flags: tuple[str, ...]
    system: str

    def __str__(self) -> str:
        instructions = ", ".join(name for flag, name in _INSTRUCTIONS.items() if flag in self.flags)
        return f"{self.cpu}, {self.num_cores} cores ({instructions or 'no vector instructions'})"

    @property
    def has_bf16(self) -> bool:
        """Whether the processor computes bfloat16."""
        return not NATIVE_BF16.isdisjoint(self.flags)

    def to_json(self) -> dict[str, object]:
        """Return the description by name."""
        return {**asdict(self), "flags": [flag for flag in _INSTRUCTIONS if flag in self.flags]}


def this_machine() -> Machine:
    """Describe the machine that this runs on."""
    facts: dict[str, str] = {}
    for line in _read("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    flags = (facts.get("flags") or facts.get("Features") or "").split()
    name = facts.get("model name") or platform.processor() or platform.machine()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cpu=f"{name} ({_generation(facts)})" if _generation(facts) else name,
        num_cores=len(os.sched_getaffinity(0)),
        memory_gib=round(pages / 2**30, 1),
        flags=tuple(flags),
        system=f"Linux {platform.release()}, Python {platform.python_version()}",
    )


def today() -> str:
    """Return the date."""
    return datetime.now(UTC).date().isoformat()


def _generation(facts: dict[str, str]) -> str:
    """Return what tells processors of one name apart."""
    parts = [f"{name} {facts[key]}" for key, name in (("cpu family", "family"), ("model", "model")) if key in facts]
    return " ".join(parts)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
