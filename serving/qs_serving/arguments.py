"""The flags for numbers of the commands of the server and the bus."""

import argparse
from collections.abc import Callable

_LONGEST = 999_999_999
"""Seconds that a flag may ask for, some 30 years: the most that the protocol has for a time."""
_MOST = 10**15
"""The greatest whole number that a flag may ask for."""


def at_least(least: float, kind: Callable[[str], float]) -> Callable[[str], float]:
    """Returns a type of arguments: numbers that are not less. A float is a time in seconds, with a bound of its own."""
    most = _MOST if kind is int else _LONGEST

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            number = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {number}") from None
        if not value >= least:  # NaN is not either
            raise argparse.ArgumentTypeError(f"{text} is not {least:g} or more")
        if value > most:
            raise argparse.ArgumentTypeError(f"{text} is more than {most}")
        return value

    return read


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
            type=at_least(least, float if isinstance(default, float) else int),
            default=default,
            metavar=metavar,
            help=f"{text} (default: {shown})",
        )

    return add
