"""Patterns over the names of queues: `*` stands for any characters, `?` for one, every other character for itself."""

import re
from collections.abc import Iterable

_SPECIAL = re.compile(r"\*+|\?")


def compile_patterns(patterns: Iterable[str]) -> re.Pattern[str] | None:
    """Returns an expression whose `fullmatch` accepts the names that one of the patterns accepts; None if there are no
    patterns.

    The time of a match grows with the length of the name times the length of the patterns, however many `*` they have:
    clients choose the names.
    """
    written = "|".join(f"(?:{_translated(pattern)})" for pattern in patterns)
    return re.compile(written, re.DOTALL) if written else None


def _translated(pattern: str) -> str:
    """Returns the regular expression of one pattern. A name that a pattern accepts is also accepted with each part
    between two `*` at the first place where it fits; the atomic groups keep the matcher from trying others."""
    first, *rest = _SPECIAL.sub(lambda found: "*" if found[0][0] == "*" else "?", pattern).split("*")
    if not rest:
        return _literal(first)
    *middle, last = rest
    return _literal(first) + "".join(f"(?>.*?{_literal(part)})" for part in middle) + ".*" + _literal(last)


def _literal(part: str) -> str:
    """Returns the expression of a part without `*`."""
    return ".".join(map(re.escape, part.split("?")))
