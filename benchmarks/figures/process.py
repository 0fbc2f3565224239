"""What a process and its children use, read from Linux.

Knows nothing of what they do.
"""

import os
from pathlib import Path

_KIB = 1024


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    return [pid] + [other for child in children for other in tree(int(child))]


def resident_bytes(pid: int) -> int:
    """Return the memory of a process and its descendants; what several of them share counts once."""
    total = 0
    for one in tree(pid):
        for line in Path(f"/proc/{one}/smaps_rollup").read_text(encoding="utf-8").splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * _KIB
    return total
