"""The flags for numbers of the commands of the server and the bus."""

import argparse
from collections.abc import Callable

_LONGEST = 999_999_999
"""Seconds that a flag may ask for, some 30 years: the most that the protocol has for a time."""
_MOST = 10**15
"""The greatest whole number that a flag may ask for."""


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
        if not value >= self._least:  # False for NaN too
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
