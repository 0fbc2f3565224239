"""What this machine can do: cores, free memory, and the numbers its CPU computes natively.

Knows nothing of models.
"""

import os
from pathlib import Path

import torch

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def computes_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 natively; elsewhere float32 is faster."""
    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


def num_usable_cores() -> int:
    """Return the cores this process may use: affinity and the container's quota counted in."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _read_words(_CGROUP / "cpu.max")
    if len(quota) == 2 and quota[0] != "max":
        cores = min(cores, max(1, int(quota[0]) // int(quota[1])))
    return cores


def available_memory_bytes() -> int:
    """Return the memory that could be taken without swapping: the system's or the container's, whichever is less."""
    available = _system_available_bytes()
    limit = _read_words(_CGROUP / "memory.max")
    current = _read_words(_CGROUP / "memory.current")
    if limit and current and limit[0] != "max":
        # The page cache counts as used there, but is given up on demand.
        reclaimable = dict(zip(*[iter(_read_words(_CGROUP / "memory.stat"))] * 2, strict=False)).get(
            "inactive_file", "0"
        )
        available = min(available, int(limit[0]) - int(current[0]) + int(reclaimable))
    return max(available, 0)


def _system_available_bytes() -> int:
    if _MEMINFO.exists():
        for line in _MEMINFO.read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == "MemAvailable":
                return int(rest.split()[0]) * 1024
    # Systems without /proc/meminfo do not say what is available; half of all memory is a safe guess.
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
