"""Parses the values of arguments: durations and counts. Raises argparse.ArgumentTypeError for any other text."""

import argparse
import math
from collections.abc import Callable
from typing import Any

from . import bounds

CHANGEABLE = (
    "visibility", "capacity", "retention", "dead_letter", "max_receives", "backoff", "backoff_max", "group_in_flight",
    "fair", "max_in_flight", "rate", "schema", "where",
)  # fmt: skip
"""The options that `qs new` and `qs set` take, under the names of their arguments."""


def seconds(text: str) -> float:
    """Parses a duration: seconds, 0 or more, with an optional fraction."""
    return _duration(text, more_than_none=False)


def positive_seconds(text: str) -> float:
    """Parses a duration of more than 0 seconds."""
    return _duration(text, more_than_none=True)


def _duration(text: str, *, more_than_none: bool) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan  # which `bounds` refuses, so that both mistakes have one text
    try:
        bounds.seconds(value, "it", more_than_none=more_than_none)
    except ValueError:
        least = "more than 0" if more_than_none else "0 or more"
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds, {least}, at most {bounds.MOST_SECONDS}"
        ) from None
    return value


def rate(text: str) -> float:
    """Parses a number of messages a second, more than 0."""
    try:
        value = float(text)
        bounds.rate(value, "it")
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of messages a second, more than 0, at most {bounds.MOST_RATE}"
        ) from None
    return value


def condition(text: str) -> str:
    """Parses a condition, of which only the bus knows what it means."""
    return _checked(bounds.condition, text)


def schema(text: str) -> str:
    """Parses the name of a schema."""
    return _checked(bounds.schema, text)


def _checked(check: Callable[[str, str], str | None], text: str) -> str:
    try:
        check(text, "it")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def priority(text: str) -> int:
    """Parses a priority."""
    if not (text.isascii() and text.isdigit() and len(text) == 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {bounds.MOST_PRIORITY}")
    return int(text)


def header(text: str) -> tuple[str, str]:
    """Parses a header, NAME=TEXT. The client checks name and text."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=TEXT, as in content-type=text/xml")
    return name, value


def group(text: str) -> str:
    """Parses the name of a group."""
    if not text:  # as of an unset variable
        raise argparse.ArgumentTypeError("the name of the group is empty: give one, or leave the flag out")
    return text


def key(text: str) -> str:
    """Parses the key of a message."""
    if not text:  # as of an unset variable: the push would have no key without a word
        raise argparse.ArgumentTypeError("the key is empty: give one, or leave the flag out")
    return text


def receives(text: str) -> int:
    """Parses a count of receives."""
    value = positive(text)
    if value > bounds.MOST_RECEIVES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {bounds.MOST_RECEIVES}")
    return value


def positive(text: str) -> int:
    """Parses a whole number, 1 or more."""
    # Not by int() alone: it takes "1_000", " 7" and digits of other scripts, and is slow for very long texts.
    if not text.isascii() or not text.isdigit() or len(text) > len(str(bounds.MOST)) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on with at most 18 digits")
    return int(text)


def given_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the options that the arguments name."""
    return {name: value for name in CHANGEABLE if (value := getattr(arguments, name)) is not None}
