"""Puts the man pages into the wheel, where an installation has them beside its commands: share/man/man1."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManPages(BuildHookInterface):
    """Makes the pages before each build of a wheel, also of that of an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Writes the pages with a Python of its own, which imports this source and nothing that is installed."""
        self._pages = TemporaryDirectory(prefix="qs-man-")
        writer = Path(self.root, "packaging", "man_pages.py")
        # Without site-packages: a qs that is installed there would have other flags. Without byte code: a build leaves
        # nothing in the sources.
        subprocess.run(
            [sys.executable, "-I", "-S", "-B", writer, self._pages.name], check=True, stdout=subprocess.DEVNULL
        )
        build_data["shared_data"][self._pages.name] = "share/man/man1"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes the pages, which are in the wheel now."""
        self._pages.cleanup()
