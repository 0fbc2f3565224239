"""Opens the library of compiled operations and chooses the instruction set.

Knows nothing of what operations compute.
"""

import ctypes
from dataclasses import dataclass
from pathlib import Path

from chairlift.execution.torch_backend.kernels_native.compilation import LIBRARY, source_digest

OPERATIONS = (
    "linear_float",
    "linear_half",
    "linear_nibble",
    "linear_byte",
    "gated_half",
    "gated_nibble",
    "gated_byte",
    "argmax_half",
    "argmax_nibble",
    "argmax_byte",
    "round",
    "embed",
    "take",
    "norm",
    "silu_mul",
    "rotate",
    "attention",
    "merge",
)
"""In the order of ``csrc/table.h``."""
INSTRUCTION_SETS = ("amx", "avx512", "avx2", "generic")
"""Fastest first."""


class LibraryError(Exception):
    """The library cannot be used; the message says why and what helps."""


class _Table(ctypes.Structure):
    _fields_ = (
        ("num_lanes", ctypes.c_int64),
        ("has_tiles", ctypes.c_int64),
        ("bodies", ctypes.c_int64 * len(OPERATIONS)),
    )


@dataclass(frozen=True, slots=True)
class Library:
    """One instruction set's operations, as addresses of machine code that stays loaded."""

    instruction_set: str
    num_lanes: int
    """float32 numbers of a vector; weights are packed for it."""
    has_tiles: bool
    """Whether products are those of ``csrc/linear_tiles.h``, of rows in bfloat16."""
    bodies: dict[str, int]
    run_sequence: int
    """Address of the body that runs a list of operations."""


def open_library(instruction_set: str | None = None, path: Path = LIBRARY) -> Library:
    """Open the library with an instruction set, or the fastest that this processor has.

    Raises:
        LibraryError: there is no library, it was made from other sources, or the processor lacks the instruction set.
    """
    if not path.exists():
        raise LibraryError("the compiled operations are missing (no C++ compiler when Chairlift was installed)")
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryError(f"the compiled operations cannot be loaded: {error}") from error
    handle.chairlift_source_digest.restype = ctypes.c_char_p
    if handle.chairlift_source_digest().decode() != source_digest():
        raise LibraryError("the compiled operations were made from other sources: run `make native`")
    handle.chairlift_table.restype = ctypes.POINTER(_Table)
    for name in [instruction_set] if instruction_set else INSTRUCTION_SETS:
        table = handle.chairlift_table(name.encode())
        if table:
            bodies: dict[str, int] = dict(zip(OPERATIONS, table.contents.bodies, strict=True))
            address = ctypes.cast(handle.chairlift_run_sequence, ctypes.c_void_p).value
            assert address is not None  # noqa: S101 - a symbol that is there has an address
            return Library(name, table.contents.num_lanes, bool(table.contents.has_tiles), bodies, address)
    raise LibraryError(f"this processor or this build has no instruction set {instruction_set!r}")
