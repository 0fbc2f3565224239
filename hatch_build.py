"""Compiles the C++ kernels when the package is built or installed for development.

Where there is no compiler the package is built all the same, and runs on Numba's kernels.
"""

import os
import runpy
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_COMPILATION = Path("src/chairlift/execution/torch_backend/kernels_native/compilation.py")


class NativeKernelsHook(BuildHookInterface[Any]):
    """Adds the compiled library to wheels; an editable installation finds it beside the sources."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; a wheel with a library in it is for this platform only, but for any Python 3."""
        if self.target_name != "wheel":
            return
        compilation = runpy.run_path(str(Path(self.root, _COMPILATION)))
        try:
            # pip shows this with --verbose only.
            compilation["compile_library"](compiler=os.environ.get("CXX"), say=self.app.display_info)
        except compilation["CompilationError"] as error:
            sys.stderr.write(
                f"chairlift: installed without C++ kernels, which makes it several times slower: {error}\n"
            )
            return
        library = compilation["LIBRARY"].relative_to(self.root)
        build_data["artifacts"].append(str(library))
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
