"""The option --version of the server's commands and the bus's."""

import argparse
from collections.abc import Sequence
from typing import Any


class ShowVersion(argparse.Action):
    """Looks up what is installed only when it is asked for: that takes a tenth of what a command takes to start."""

    def __init__(self, option_strings: Sequence[str], dest: str, **named: Any) -> None:
        """const: the program's name, which stands before the version."""
        text = "show program's version number and exit"
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=text, **named)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Prints it and ends the program."""
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

        try:
            found = version("qsbus")
        except PackageNotFoundError:  # run from a checkout that is not installed
            found = "unknown"
        print(self.const, found)  # noqa: T201
        parser.exit()
