"""Tells which XSDs check any short payload quickly.

libxml2 tries one way after the other where the characters of a value, or the children of an element, fit a pattern or a
content model in several ways. So `(a|a)*b` takes twice as long for each further character. A schema is plain if there
is one way only, or so few that a payload of 16 KiB takes a millisecond or two. What is not recognized is not plain: a
check by a process of its own takes some 0.1 ms more.
"""

import re
from collections.abc import Sequence
from typing import Any

from .sources import XSD_NAMESPACE as _XS

_NEVER = frozenset(
    f"{_XS}{name}" for name in ("key", "keyref", "unique", "redefine", "override", "assert", "alternative")
)
"""Elements that make libxml2 compare tables, or whose effect is not followed here."""


def is_plain(roots: Sequence[Any]) -> bool:
    """Tells whether an XSD checks any payload of 16 KiB in a millisecond or two. roots: those of all its files."""
    return not any(
        element.tag in _NEVER or element.get("substitutionGroup") is not None
        for root in roots
        for element in root.iter()
    ) and all(_is_plain_pattern(pattern.get("value", "")) for root in roots for pattern in root.iter(f"{_XS}pattern"))


def _is_plain_pattern(pattern: str) -> bool:
    return re.search(r"[*+?{]", pattern) is None
