"""Tells which JSON Schemas check any short payload quickly.

A value is checked with each schema that applies to it. Where schemas refer to themselves, through several branches of
an `anyOf`, the number doubles with each level of a document. A schema is plain if it refers to nothing but its own
parts, in no circle, and is small with everything put in place of its references. What is not recognized here is not
plain.
"""

import math
import re
from typing import Any

_REFERENCES = ("$dynamicRef", "$recursiveRef", "$anchor", "$dynamicAnchor")
_NEVER = frozenset([*_REFERENCES, "uniqueItems", "unevaluatedItems", "unevaluatedProperties"])
"""Keywords that compare all values with each other, check them several times, or whose effect is not followed here."""
_MOST = 2000
"""The most values of a schema, with what it refers to."""
_STATES = 1000
"""The most repetitions of a regular expression: its time is that of the value's length times its own."""
_LONGEST = 200
_NUMBERS = re.compile(r"\{([0-9]+)(?:,([0-9]*))?\}")


def is_plain(schema: Any) -> bool:
    """Tells whether a JSON Schema checks any payload of 16 KiB in a millisecond or two."""
    try:
        _count(schema, schema, ("",), 0)
    except _NotPlainError:
        return False
    return True


class _NotPlainError(Exception):
    """Reports that a schema is not plain."""


def _count(part: Any, whole: Any, open_references: tuple[str, ...], found: int) -> int:
    """Returns the number of values found so far and in this part. open_references: those in which the part stands."""
    waiting = [part]
    while waiting:
        found += 1
        if found > _MOST:
            raise _NotPlainError
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            _check(part)
            waiting += part.values()
            if isinstance(reference := part.get("$ref"), str):
                if reference in open_references or reference == "#":
                    raise _NotPlainError
                found = _count(_target(reference, whole), whole, (*open_references, reference), found)
    return found


def _check(part: dict[str, Any]) -> None:
    if not _NEVER.isdisjoint(part) or part.get("format") == "regex":
        raise _NotPlainError
    patterns = [part.get("pattern")]
    if isinstance(named := part.get("patternProperties"), dict):
        patterns += named
    for pattern in patterns:
        if isinstance(pattern, str):
            numbers = [int(number or 1) for pair in _NUMBERS.findall(pattern) for number in pair]
            if len(pattern) > _LONGEST or math.prod(max(number, 1) for number in numbers) > _STATES:
                raise _NotPlainError


def _target(reference: str, whole: Any) -> Any:
    """Returns the part that a reference of the form `#/$defs/name` means."""
    start, *steps = reference.split("/")
    if start != "#" or "%" in reference or "~" in reference:
        raise _NotPlainError
    part = whole
    for step in steps:
        if not isinstance(part, dict) or step not in part:
            raise _NotPlainError
        part = part[step]
    return part
