"""The option --version of the commands of client and pipeline."""

import argparse
from collections.abc import Sequence
from typing import Any


class ShowVersion(argparse.Action):
    """Looks up the installed version only when asked, as that takes a tenth of a command's start."""

    def __init__(self, option_strings: Sequence[str], dest: str, **named: Any) -> None:
        """const: the program's name, printed before the version."""
        text = "show program's version number and exit"
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=text, **named)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Prints the version and exits."""
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

        try:
            found = version("qsbus")
        except PackageNotFoundError:  # run from a checkout without installation
            found = "unknown"
        print(self.const, found)  # noqa: T201
        parser.exit()
