"""How the commands of the server and the bus read their arguments: help, --version, numbers, and flags with a typo."""

import argparse
import textwrap
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

_LONGEST = 999_999_999
"""Seconds that a flag may ask for, some 30 years: the most that the protocol has for a time."""
_MOST = 10**15
"""The greatest whole number that a flag may ask for."""


class _Paragraphs(argparse.HelpFormatter):
    """Wraps each paragraph of a description to the terminal. Lines of one that has indented lines stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for paragraph in text.strip("\n").split("\n\n"):
            written = paragraph.split("\n")
            if not any(line.startswith(" ") for line in written):
                written = textwrap.wrap(paragraph, width, break_on_hyphens=False)
            lines += [*written, ""]
        return "\n".join(lines[:-1])


class CommandParser(argparse.ArgumentParser):
    """Parses the arguments of a command, or of a subcommand. Takes no abbreviations: one in a script would break with
    the next flag."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Paragraphs, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuses what it does not know. By itself argparse has the main command do that, with another usage."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self._refuse(unknown)
        return parsed, unknown

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        flag = unknown[0].partition("=")[0]
        meant = get_close_matches(flag, self._option_string_actions, 1) if flag.startswith("--") else []
        hint = f"; did you mean {meant[0]}?" if meant else ""
        self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


class ShowVersion(argparse.Action):
    """Looks up what is installed only when it is asked for: that takes a tenth of what a command takes to start."""

    def __init__(self, option_strings: Sequence[str], dest: str, **named: Any) -> None:
        """const: the program's name, which stands before the version."""
        text = "show program's version number and exit"
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=text, **named)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Prints it and ends the program."""
        from .version import installed_version  # noqa: PLC0415

        print(self.const, installed_version())  # noqa: T201
        parser.exit()


class AtLeast:
    """A type of arguments: numbers that are not less. A float is a time in seconds, with a bound of its own."""

    def __init__(self, least: float, kind: type[int] | type[float]) -> None:
        """kind: int for whole numbers."""
        self.kind = kind
        self._least = least
        self._most = _MOST if kind is int else _LONGEST

    def __call__(self, text: str) -> float:
        """Reads a number. ArgumentTypeError."""
        try:
            value = self.kind(text)
        except ValueError:
            number = "a whole number" if self.kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {number}") from None
        if not value >= self._least:  # NaN is not either
            raise argparse.ArgumentTypeError(f"{text} is not {self._least:g} or more")
        if value > self._most:
            raise argparse.ArgumentTypeError(f"{text} is more than {self._most}")
        return value


AddNumber = Callable[..., None]


def number_group(group: argparse._ActionsContainer, metavar: str) -> AddNumber:
    """Returns what adds flags for numbers to a group: (flag or flags, default, help text, least=1). A default that is a
    float makes it a flag for seconds. shown: what the help says of a default that is None."""

    def add(
        flag: str | tuple[str, ...], default: float | None, text: str, least: float = 1, shown: str | None = None
    ) -> None:
        flags = (flag,) if isinstance(flag, str) else flag
        if shown is None:
            shown = f"{default:g}" if isinstance(default, float) else str(default)
        group.add_argument(
            *flags,
            dest=flags[-1].strip("-").replace("-", "_"),
            type=AtLeast(least, float if isinstance(default, float) else int),
            default=default,
            metavar=metavar,
            help=f"{text} (default: {shown})",
        )

    return add
