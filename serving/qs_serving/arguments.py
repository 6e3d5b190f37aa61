"""Reads arguments of the commands: flags for numbers with bounds, and the TOML file of --config, whose keys are flags.

A key of the file is a long flag without its dashes, and its value is checked like the flag's value. So there is one
table of settings for both, and a new flag is a new key.
"""

import argparse
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qs_schemas.command_line import nearest

_LONGEST = 999_999_999
"""Seconds that a flag may ask for, some 30 years: the most that the protocol has for a time."""
_MOST = 10**15
"""The greatest whole number that a flag may ask for."""
_COMMAND_LINE_ONLY = ("help", "version", "print-completion", "config", "check", "migrate")
"""Flags that say what to do now, not how to run."""
_PATHS = ("FILE", "DIR")
"""The names that the help gives to the value of a flag that names a file or directory."""
_KINDS = {
    bool: "true or false",
    str: "a text",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a table",
}


class AtLeast:
    """Parses numbers that have a least value and a sensible greatest one, as a type of argparse. A float is a time in
    seconds."""

    def __init__(self, least: float, kind: type[int] | type[float]) -> None:
        """least: the least number that is allowed; kind: int for whole numbers."""
        self.kind = kind
        self._least = least
        self._most = _MOST if kind is int else _LONGEST

    def __call__(self, text: str) -> float:
        """Parses a number. Raises ArgumentTypeError if the text is not a number, or the number is out of bounds."""
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
    """Returns a function that adds flags for numbers to a group. Its arguments: flag or flags, default (a float makes a
    flag for seconds), help text, least=1, and shown=None, the text for the default in the help."""

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


# -- the file ---------------------------------------------------------------------------------------------------------


class ConfigError(Exception):
    """Reports that the configuration file cannot be used. The text says in one line which file, which key, and what is
    allowed."""


def add_config(parser: argparse.ArgumentParser) -> None:
    """Adds --config, the flag that names the configuration file."""
    parser.add_argument(
        "--config", metavar="FILE", help="read flags from this file, in TOML; flags of the command line win"
    )


def parse_arguments(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line, and the file that its --config names. A flag of the command line replaces the value of
    the file, also if the value is a list. Ends the process on --help, and with exit code 2 on a wrong flag or file."""
    actions = _actions(parser)
    # argparse does not change an attribute that the namespace already has. So an attribute that is still None was not
    # given, and a flag that was given with the value of its default still wins over the file.
    unset = argparse.Namespace(**dict.fromkeys(action.dest for action in actions))
    given = {name: value for name, value in vars(parser.parse_args(arguments, unset)).items() if value is not None}
    from_file = {}
    if (path := given.get("config")) is not None:
        try:
            from_file = _read(path, {flag: action for action in actions for flag in _keys(action)}, parser.prog)
        except ConfigError as error:
            parser.exit(2, f"{parser.prog}: {error}\n")
    return argparse.Namespace(**{action.dest: action.default for action in actions} | from_file | given)


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.default is not argparse.SUPPRESS]


def _keys(action: argparse.Action) -> list[str]:
    """Returns the keys of the file that stand for this flag: none for a flag that the help does not show."""
    if action.help is argparse.SUPPRESS:
        return []
    keys = [flag.removeprefix("--") for flag in action.option_strings if flag.startswith("--")]
    return [key for key in keys if key not in _COMMAND_LINE_ONLY]


def _read(path: str, known: Mapping[str, argparse.Action], program: str) -> dict[str, Any]:
    """Returns the values of a file, by the attribute names of the parser. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise ConfigError(f"{path} is not TOML: {error}") from None
    found = {}
    for key, value in content.items():
        if key not in known:
            raise ConfigError(f"{path}: {_unknown(key, known, program)}")
        try:
            found[known[key].dest] = _value(known[key], value, os.path.dirname(os.path.abspath(path)))
        except (argparse.ArgumentTypeError, ValueError) as error:
            raise ConfigError(f"{path}: {key}: {error}") from None
    return found


def _unknown(key: str, known: Mapping[str, argparse.Action], program: str) -> str:
    if key in _COMMAND_LINE_ONLY:
        return f"{key}: only the command line has this flag"
    meant = nearest(key.replace("_", "-"), known)
    hint = f"did you mean {meant}? " if meant else ""
    return f"unknown key {key!r}: {hint}Keys are the long flags of {program}: {', '.join(sorted(known))}"


def _value(action: argparse.Action, value: object, folder: str) -> object:
    """Checks a value of the file and converts it to the type that the flag's value has. folder: the directory of the
    file, from which relative paths start. Raises ArgumentTypeError or ValueError if the value is not allowed. The text
    of the error does not show the value, which may be a secret in the wrong place."""
    if action.nargs == 0 and isinstance(action.default, bool):
        return _of_kind(value, bool)
    if action.nargs == 0:  # a flag that is counted: -vv is verbose = 2
        count = _of_kind(value, int)
        AtLeast(0, int)(str(count))
        return count
    if isinstance(action.default, list):  # a flag that may be repeated
        texts = value if isinstance(value, list) else [value]
        found = [_parsed(action, _text(text, "a text, or a list of texts")) for text in texts]
        return [each for part in found for each in (part if isinstance(part, list) else [part])]
    if isinstance(action.type, AtLeast) or isinstance(action.default, int):
        kind = action.type.kind if isinstance(action.type, AtLeast) else int
        return _parsed(action, repr(_of_kind(value, kind)))
    text = _text(value, _KINDS[str])
    if action.choices is not None and text not in action.choices:
        raise ValueError(f"has to be one of {', '.join(map(repr, action.choices))}{_nearest(text, action.choices)}")
    if action.metavar in _PATHS:  # a service starts in any directory: paths go from that of the file
        if not text:
            raise ValueError("has to name a file or a directory")
        text = os.path.join(folder, text)
    return _parsed(action, text)


def _nearest(text: str, choices: Any) -> str:
    meant = nearest(text, choices)
    return f"; did you mean {meant!r}?" if meant else ""


def _of_kind(value: object, kind: Any) -> Any:
    """Returns a TOML value if it is of this kind. A whole number counts as a number. Raises ValueError."""
    if type(value) is kind or (kind is float and type(value) is int):
        return value
    raise ValueError(_wrong_kind(value, _KINDS[kind]))


def _text(value: object, wanted: str) -> str:
    if not isinstance(value, str):
        raise ValueError(_wrong_kind(value, wanted))
    if any(character < " " or character == "\x7f" for character in value):
        raise ValueError("has control characters")
    return value


def _wrong_kind(value: object, wanted: str) -> str:
    return f"has to be {wanted}, and is {_KINDS.get(type(value), 'a date or time')}"


def _parsed(action: argparse.Action, text: str) -> Any:
    """Parses a text as argparse would for this flag."""
    return action.type(text) if callable(action.type) else text
