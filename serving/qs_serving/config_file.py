"""Reads settings of a command from a TOML file. Each long flag is a key, by its name without the dashes."""

import argparse
import os
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from qs_schemas.command_line import nearest

from .arguments import AtLeast

_COMMAND_LINE_ONLY = ("help", "version", "print-completion", "config", "check")
"""Flags that say what to do now, not how to run."""
_PATHS = ("FILE", "DIR")
"""The name that the help gives to the value of a flag that names a file."""
_KINDS = {
    bool: "true or false",
    str: "a text",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a table",
}


class ConfigError(Exception):
    """The file cannot be used. The text says in one line which file, which key, and what is allowed."""


def add_config(parser: argparse.ArgumentParser) -> None:
    """Adds the flag that names the file."""
    parser.add_argument(
        "--config", metavar="FILE", help="read flags from this file, in TOML; flags of the command line win"
    )


def parse_arguments(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line, and the file that its --config names. A flag of the command line replaces what the file
    says of it, a list too. Ends the process on --help, with exit code 2 on a wrong flag or file."""
    actions = _actions(parser)
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
    """Returns the keys that mean this flag. A flag that the help does not show has none."""
    if action.help is argparse.SUPPRESS:
        return []
    keys = [flag.removeprefix("--") for flag in action.option_strings if flag.startswith("--")]
    return [key for key in keys if key not in _COMMAND_LINE_ONLY]


def _read(path: str, known: Mapping[str, argparse.Action], program: str) -> dict[str, Any]:
    """Returns the values of a file by the names that the parser gives them. ConfigError."""
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
    """Returns what the flag would give for this value. folder: that relative paths start from. ArgumentTypeError or
    ValueError if it is not allowed; the text does not show the value, which may be a secret in the wrong place."""
    if action.nargs == 0 and isinstance(action.default, bool):
        return _of_kind(value, bool)
    if action.nargs == 0:
        count = _of_kind(value, int)
        AtLeast(0, int)(str(count))
        return count
    if isinstance(action.default, list):
        texts = value if isinstance(value, list) else [value]
        found = [_parsed(action, _text(text, "a text, or a list of texts")) for text in texts]
        return [each for part in found for each in (part if isinstance(part, list) else [part])]
    if isinstance(action.type, AtLeast) or isinstance(action.default, int):
        kind = action.type.kind if isinstance(action.type, AtLeast) else int
        return _parsed(action, repr(_of_kind(value, kind)))
    text = _text(value, _KINDS[str])
    if action.choices is not None and text not in action.choices:
        raise ValueError(f"has to be one of {', '.join(map(repr, action.choices))}{_nearest(text, action.choices)}")
    if action.metavar in _PATHS:
        if not text:
            raise ValueError("has to name a file or a directory")
        text = os.path.join(folder, text)
    return _parsed(action, text)


def _nearest(text: str, choices: Any) -> str:
    meant = nearest(text, choices)
    return f"; did you mean {meant!r}?" if meant else ""


def _of_kind(value: object, kind: Any) -> Any:
    """Returns a value that TOML has as this kind. A whole number counts as a number."""
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
    """Reads a text as the flag does."""
    return action.type(text) if callable(action.type) else text
