"""Installs engines, each into a folder of its own below ``.peers/``; what is installed already is left as it is.

Knows nothing of what they are run with.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from benchmarks.machine import this_machine
from benchmarks.peers.catalogue import Peer

_STAMP = "installed.json"
_CMAKE_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)
"""Nothing that is fetched while building."""
_NATIVE = ("-DGGML_NATIVE=ON",)
_WITHOUT_TILES = (
    "-DGGML_NATIVE=OFF",
    "-DGGML_AVX512=ON",
    "-DGGML_AVX512_VBMI=ON",
    "-DGGML_AVX512_VNNI=ON",
    "-DGGML_AVX512_BF16=ON",
)
"""Where the processor has AMX: a native build of this version ends with an illegal instruction there."""


class CannotInstallError(Exception):
    """An engine cannot be installed here; the message says why."""


@dataclass(frozen=True)
class Installed:
    """An engine that can be run.

    Args:
        python: runs its runner.
        program: the engine, where it is no Python package.
    """

    python: Path
    program: Path | None = None


class Installer:
    """Puts engines below a folder.

    Args:
        root: the folder.
        index_urls: further package indexes.
    """

    def __init__(self, root: Path, index_urls: Sequence[str] = ()) -> None:
        self._root = root
        self._index = [part for url in index_urls for part in ("--extra-index-url", url)]

    def install(self, peer: Peer) -> Installed:
        """Install an engine if it is not there yet.

        Raises:
            CannotInstallError: it cannot be had.
        """
        folder = self._root / peer.name
        folder.mkdir(parents=True, exist_ok=True)
        stamp = folder / _STAMP
        wanted = {"requirement": peer.requirement, "also": list(peer.also)}
        if not stamp.exists() or json.loads(stamp.read_text(encoding="utf-8")) != wanted:
            print(f"installing {peer.title} ({peer.requirement}) into {folder}", flush=True)
            if peer.is_built:
                self._build(peer, folder)
            else:
                self._fill_venv(peer, folder)
            stamp.write_text(json.dumps(wanted), encoding="utf-8")
        if peer.is_built:
            return Installed(Path(sys.executable), folder / "build" / "bin" / "llama-server")
        return Installed(folder / "bin" / "python")

    def _fill_venv(self, peer: Peer, folder: Path) -> None:
        python = folder / "bin" / "python"
        if not python.exists():
            _run([sys.executable, "-m", "venv", str(folder)])
        if peer.also:
            self._pip(python, "install", *peer.also)
        if not peer.without:
            self._pip(python, "install", peer.requirement)
            return
        self._pip(python, "install", "--no-deps", peer.requirement)
        self._pip(python, "install", *_needed(python, peer))

    def _build(self, peer: Peer, folder: Path) -> None:
        """Build the server from the source that a package carries."""
        for tool in ("cmake", "c++"):
            if shutil.which(tool) is None:
                raise CannotInstallError(f"{peer.title} is built from source, and there is no {tool}")
        name = peer.requirement.replace("-", "_").replace("==", "-")
        source = folder / name / "vendor" / "llama.cpp"
        if not source.exists():
            archive = folder / f"{name}.tar.gz"
            if not archive.exists():
                options = ("--no-deps", "--no-binary", peer.requirement.partition("==")[0], "--dest", str(folder))
                self._pip(Path(sys.executable), "download", *options, peer.requirement)
            with tarfile.open(archive) as packed:
                packed.extractall(folder, filter="data")
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        # Its build notes the commit of the repository around it, which would be this one.
        _run(
            [
                "env",
                f"GIT_CEILING_DIRECTORIES={folder.resolve()}",
                "cmake",
                "-S",
                str(source),
                "-B",
                str(folder / "build"),
                *generator,
                *_CMAKE_OPTIONS,
                *(_WITHOUT_TILES if "amx_tile" in this_machine().flags else _NATIVE),
            ]
        )
        jobs = str(len(os.sched_getaffinity(0)))
        _run(["nice", "cmake", "--build", str(folder / "build"), "--target", "llama-server", "-j", jobs])

    def _pip(self, python: Path, command: str, *arguments: str) -> None:
        _run([str(python), "-m", "pip", "--disable-pip-version-check", command, "--quiet", *self._index, *arguments])


def _needed(python: Path, peer: Peer) -> list[str]:
    """Return what the package asks for, less what it can do without."""
    package = Requirement(peer.requirement).name
    script = f"import importlib.metadata as m, json; print(json.dumps(m.requires({package!r}) or []))"
    said = subprocess.run([str(python), "-c", script], check=True, stdout=subprocess.PIPE, text=True)
    found: list[str] = []
    for text in json.loads(said.stdout):
        needed = Requirement(text)
        if needed.name in peer.without or not (needed.marker is None or needed.marker.evaluate({"extra": ""})):
            continue
        needed.marker = None
        found.append(str(needed))
    return found


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True)
    except subprocess.CalledProcessError as error:
        raise CannotInstallError(f"{' '.join(command[:6])} ... failed with status {error.returncode}") from None
