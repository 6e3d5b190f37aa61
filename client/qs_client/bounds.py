"""Checks of times, counts and addresses, for every client and command line. They raise ValueError for a wrong value and
TypeError for a wrong type; the text names the argument and says what is allowed."""

import re
from numbers import Integral, Real
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qs_schemas import Draft, PushMessage, QueueOptions

MOST_SECONDS = 999_999_999
"""Some 31 years: the protocol's bound of times. A larger one would be refused by the server, after a round trip."""

MOST = 10**18 - 1
"""The protocol's bound of ids and counts."""


MOST_RECEIVES = 1000
"""The protocol's bound of max_receives."""

MOST_PRIORITY = 9
"""The greatest priority. Messages of a greater one are handed out first."""

MOST_RATE = 999_999_999
"""The protocol's bound of messages a second."""

MOST_CONDITION = 1024
"""The protocol's bound of the characters of a condition."""

MOST_SCHEMA = 100
"""The protocol's bound of the characters of a schema's name."""

_USUAL = (int, float)


def seconds(value: float | None, name: str, *, more_than_none: bool = False) -> float | None:
    """Checks a time and returns it; None stays None. more_than_none: 0 is not allowed."""
    if value is None:
        return None
    # bool is a number to Python, and True as a time is a slip. Real takes the numbers of numpy and Fraction, too; it is
    # asked about rare types alone, as it takes long.
    if type(value) not in _USUAL and (isinstance(value, bool) or not isinstance(value, Real)):
        raise TypeError(f"{name} is a number of seconds, not {value!r}")
    if not 0 <= value <= MOST_SECONDS:  # False for NaN too
        raise ValueError(f"{name} is a number of seconds from 0 to {MOST_SECONDS}, not {value!r}")
    if more_than_none and not value:
        raise ValueError(f"{name} is a number of seconds greater than 0, not {value!r}")
    return value


def whole(value: int | None, name: str, least: int = 0, most: int = MOST) -> int | None:
    """Checks a count or an id and returns it; None stays None."""
    if value is None:
        return None
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, Integral)):
        raise TypeError(f"{name} is a whole number, not {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{name} is a whole number from {least} to {most}, not {_shown(value)}")
    return value


def rate(value: float | None, name: str) -> float | None:
    """Checks a number of messages a second, more than 0, and returns it; None stays None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} is a number of messages a second, not {value!r}")
    if not 0 < value <= MOST_RATE:  # False for NaN too
        raise ValueError(f"{name} is a number of messages a second, more than 0 and at most {MOST_RATE}, not {value!r}")
    return value


def yes_or_no(value: bool | None, name: str) -> bool | None:
    """Checks a truth value and returns it; None stays None."""
    if value is not None and not isinstance(value, bool):
        raise TypeError(f"{name} is True or False, not {value!r}")
    return value


def condition(value: str | None, name: str) -> str | None:
    """Checks the length of a condition and returns it; None stays None. Only the bus knows what it means."""
    if value is not None and not 0 < len(value) <= MOST_CONDITION:
        raise ValueError(f"{name} is a condition of 1 to {MOST_CONDITION} characters, not of {len(value)}")
    return value


_SCHEMA = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._-]{{0,{MOST_SCHEMA - 1}}}")


def schema(value: str | None, name: str) -> str | None:
    """Checks the name of a schema and returns it; None stays None. Only the server knows which schemas there are."""
    if value is not None and _SCHEMA.fullmatch(value) is None:
        raise ValueError(
            f"{name} names a file of the server's schemas, by 1 to {MOST_SCHEMA} letters, digits, '.', '_' and '-', "
            f"not {value[: MOST_SCHEMA + 1]!r}"
        )
    return value


def check_attributes(message: "PushMessage | Draft") -> None:
    """Checks what a message to push says beside its payload and its delay. Its texts are checked when it is written."""
    whole(message.priority, "priority", 0, MOST_PRIORITY)
    seconds(message.expires, "expires", more_than_none=True)
    if message.unique and message.key is None:
        raise ValueError("unique says how long a key counts, and the key is missing: give key too")


def checked_options(options: "QueueOptions") -> "QueueOptions":
    """Checks the options of a queue and returns them."""
    seconds(options.visibility, "visibility")
    whole(options.capacity, "capacity", 1)
    seconds(options.retention, "retention", more_than_none=True)
    whole(options.max_receives, "max_receives", 1, MOST_RECEIVES)
    seconds(options.backoff, "backoff", more_than_none=True)
    seconds(options.backoff_max, "backoff_max", more_than_none=True)
    whole(options.group_in_flight, "group_in_flight", 1)
    yes_or_no(options.fair, "fair")
    whole(options.max_in_flight, "max_in_flight", 1)
    rate(options.rate, "rate")
    schema(options.schema, "schema")
    condition(options.where, "where")
    return options


def _shown(value: int) -> str:
    """Returns a number for an error text. A very long number would not help, and Python refuses to print some."""
    text = "a larger one" if value > MOST else repr(value)
    return "a smaller one" if value < -MOST else text
