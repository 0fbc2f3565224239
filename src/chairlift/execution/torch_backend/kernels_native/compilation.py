"""Makes the library of compiled operations: run when the package is built, or by hand as a script.

Knows nothing of what is compiled. Imports nothing but the standard library and nothing of Chairlift, since it runs
before anything is installed.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = HERE / "csrc"
LIBRARY = HERE / "_operations.so"
"""Beside the sources, so that an editable installation finds it; not under version control."""
_COMPILERS = ("c++", "g++", "clang++")
# Without reassociation: it keeps products for later sums until there are no registers left.
_FLAGS = ("-std=c++17", "-O3", "-fno-tree-reassoc", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-psabi")
_WIDE = "-DCHAIRLIFT_WIDE"
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
# The last flag: headers of older compilers warn of themselves.
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni", "-Wno-maybe-uninitialized")
_AMX = (*_AVX512, "-mavx512dq", "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16")
_TILES = (_WIDE, "-DCHAIRLIFT_TILES")
_INSTRUCTION_SETS: dict[str, tuple[str, ...]] = {"generic": (), "wide": (_WIDE,), "tiles": _TILES}
if platform.machine().lower() in ("x86_64", "amd64"):
    _INSTRUCTION_SETS |= {"avx2": _AVX2, "avx512": (_WIDE, *_AVX512), "amx": (*_TILES, *_AMX)}
_NEWEST = "amx"
"""Left out where the compiler is too old for it (before GCC 11 or Clang 12); all others are older than C++ 17."""


class CompilationError(Exception):
    """No compiler, or one that fails; the message says which."""


def source_digest() -> str:
    """Return a digest of all sources, by which a library made from others is known."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def compile_library(
    target: Path = LIBRARY, compiler: str | None = None, say: Callable[[str], None] = lambda line: None
) -> None:
    """Compile and link, unless the library is there already; an old one stays until the new one is complete.

    Args:
        target: the library.
        compiler: instead of the first one that is found.
        say: given a line when compiling begins, and one for each part that is done.

    Raises:
        CompilationError: there is no C++ compiler, or it failed.
    """
    digest = source_digest()
    if target.exists() and digest.encode() in target.read_bytes():
        return
    path = _find_compiler([compiler] if compiler else _COMPILERS)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        sets = dict(_INSTRUCTION_SETS)
        if _NEWEST in sets and not _accepts(path, sets[_NEWEST]):
            say(f"  {path} is too old for {_NEWEST}, which is left out.")
            del sets[_NEWEST]
        objects = {name: Path(folder, f"{name}.o") for name in (*sets, "library")}
        commands = {
            name: [path, *_FLAGS, *flags, f"-DCHAIRLIFT_ISA={name}", "-c", "isa.cpp", "-o", str(objects[name])]
            for name, flags in sets.items()
        }
        defines = [f'-DCHAIRLIFT_SOURCE_DIGEST="{digest}"', *(f"-DCHAIRLIFT_HAS_{name}" for name in sets)]
        commands["library"] = [path, *_FLAGS, *defines, "-c", "library.cpp", "-o", str(objects["library"])]
        say(f"Compiling the C++ kernels with {path}: about half a minute on two cores.")
        pending = [pool.submit(_timed_run, command) for command in commands.values()]
        names = dict(zip(pending, commands, strict=True))
        for number, done in enumerate(as_completed(pending), 1):
            say(f"  {number} of {len(pending)}: {names[done]} ({done.result():.0f} s)")
        linked = Path(folder, "linked.so")
        _run([path, "-shared", *map(str, objects.values()), "-o", str(linked)])
        unfinished = target.with_suffix(".new")
        shutil.copyfile(linked, unfinished)
        unfinished.replace(target)


def _find_compiler(names: Sequence[str]) -> str:
    for name in names:
        if path := shutil.which(name):
            return path
    raise CompilationError(f"no C++ compiler found (looked for {', '.join(names)})")


def _accepts(compiler: str, flags: Sequence[str]) -> bool:
    """Whether the compiler and its assembler know an instruction set."""
    command = [compiler, *flags, "-x", "c++", "-c", "-", "-o", os.devnull]
    # What the kernels say to the assembler by themselves.
    source = 'void one() { asm volatile("tdpbf16ps %tmm2, %tmm1, %tmm0"); }\n'
    return subprocess.run(command, input=source, capture_output=True, text=True, check=False).returncode == 0


def _timed_run(command: list[str]) -> float:
    start_s = time.perf_counter()
    _run(command)
    return time.perf_counter() - start_s


def _run(command: list[str]) -> None:
    done = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompilationError(f"{command[0]} failed:\n{done.stderr[-4000:]}")


if __name__ == "__main__":
    try:
        compile_library(
            compiler=sys.argv[1] if len(sys.argv) > 1 else None,
            say=lambda line: print(line, file=sys.stderr, flush=True),  # noqa: T201 - a script prints
        )
    except CompilationError as error:
        sys.exit(str(error))
