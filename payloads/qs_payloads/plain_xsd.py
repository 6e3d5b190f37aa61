"""Tells which XSDs check any short payload quickly.

libxml2 tries one way after the other where the characters of a value fit a pattern in several ways, or the children of
an element a content model: `(a|a)*b` takes twice as long for each further character. (XSD forbids such content models;
libxml2 takes some of them.) A schema is plain if there is one way only, see `unambiguous`. What is not recognized here
is not plain, which costs some 0.1 ms for each check: it is made in another process.

Names are compared without their namespaces, so more seems to be ambiguous than is.
"""

from collections.abc import Sequence
from typing import Any

from .plain_patterns import is_plain_pattern
from .sources import XSD_NAMESPACE as _XS
from .unambiguous import ANYTHING, EMPTY, Expression, Part, TooLargeError

_NEVER = frozenset(f"{_XS}{name}" for name in ("key", "keyref", "unique", "redefine", "override"))
"""Elements that make libxml2 compare tables, or whose effect is not followed here."""
_SEQUENCE, _CHOICE, _ALL, _GROUP, _ELEMENT, _ANY = (
    f"{_XS}{name}" for name in ("sequence", "choice", "all", "group", "element", "any")
)
_PARTICLES = (_SEQUENCE, _CHOICE, _ALL, _GROUP, _ELEMENT, _ANY)
_TYPE, _EXTENSION, _PATTERN = f"{_XS}complexType", f"{_XS}extension", f"{_XS}pattern"
_OTHER = "\0other"
"""The symbol of all elements of other namespaces than the schema's own."""
_DEEPEST = 30


def is_plain(roots: Sequence[Any]) -> bool:
    """Tells whether an XSD has one way to check any payload, and compares no tables. roots: those of all its files."""
    elements = [element for root in roots for element in root.iter(f"{_XS}*")]
    if any(element.tag in _NEVER or element.get("substitutionGroup") is not None for element in elements):
        return False
    if not all(is_plain_pattern(element.get("value", "")) for element in elements if element.tag == _PATTERN):
        return False
    models = _Models(roots)
    try:
        return all(models.is_plain(element) for element in elements if element.tag == _TYPE)
    except (TooLargeError, _UnknownError):
        return False


class _UnknownError(Exception):
    """Reports that a schema has something that is not followed here."""


class _Models:
    """The content models of a schema."""

    def __init__(self, roots: Sequence[Any]) -> None:
        self._named: dict[tuple[str, str], list[Any]] = {}
        for root in roots:
            for child in root.iterchildren(_TYPE, _GROUP):
                self._named.setdefault((child.tag, child.get("name", "")), []).append(child)

    def is_plain(self, complex_type: Any) -> bool:
        """Tells whether the content model of a type is unambiguous. Raises _UnknownError, TooLargeError."""
        expression = Expression()
        return expression.is_unambiguous(self._of_type(complex_type, expression, 0))

    def _find(self, tag: str, name: str) -> Any:
        """Returns what has a name, whatever its namespace."""
        found = self._named.get((tag, name.rpartition(":")[2]), [])
        if len(found) != 1:
            raise _UnknownError
        return found[0]

    def _of_type(self, complex_type: Any, expression: Expression, depth: int) -> Part:
        if depth > _DEEPEST:
            raise _UnknownError
        if complex_type.find(f"{_XS}simpleContent") is not None:
            return EMPTY
        content = complex_type.find(f"{_XS}complexContent/*")
        if content is None:
            return expression.sequence(self._of_children(complex_type, expression, depth))
        own = self._of_children(content, expression, depth)
        if content.tag != _EXTENSION:
            return expression.sequence(own)
        base = self._of_type(self._find(_TYPE, content.get("base", "")), expression, depth + 1)
        return expression.sequence([base, *own])

    def _of_children(
        self, element: Any, expression: Expression, depth: int, *, is_repeated: bool = False
    ) -> list[Part]:
        if depth > _DEEPEST:
            raise _UnknownError
        return [
            self._of_particle(child, expression, depth + 1, is_repeated) for child in element.iterchildren(*_PARTICLES)
        ]

    def _of_particle(self, particle: Any, expression: Expression, depth: int, is_repeated: bool) -> Part:
        least, most = _occurrences(particle)
        is_loop = most is None or most > 1
        if is_repeated and (least > 1 or (is_loop and most is not None)):
            # libxml2 tries again from each of the numbers that it has counted, also where that is in vain.
            raise _UnknownError
        tag = particle.tag
        if tag == _ELEMENT:
            part = expression.symbol(_symbols(particle))
        elif tag == _ANY:
            part = expression.symbol([_OTHER if particle.get("namespace") == "##other" else ANYTHING])
        else:
            holder = self._find(_GROUP, particle.get("ref", "")) if tag == _GROUP else particle
            parts = self._of_children(holder, expression, depth, is_repeated=is_repeated or is_loop)
            part = expression.choice(parts) if tag in (_CHOICE, _ALL) else expression.sequence(parts)
            if tag == _ALL:  # in any order: as if each could come again
                part = expression.repeated(part, 0, None)
        return expression.repeated(part, least, most)


def _symbols(element: Any) -> list[str]:
    if (name := element.get("name")) is not None:
        return [name]
    prefix, _, name = element.get("ref", "").rpartition(":")
    target = element.getroottree().getroot().get("targetNamespace")
    return [name] if element.nsmap.get(prefix or None) == target else [name, _OTHER]


def _occurrences(particle: Any) -> tuple[int, int | None]:
    least, most = particle.get("minOccurs", "1").strip(), particle.get("maxOccurs", "1").strip()
    try:
        return int(least), None if most == "unbounded" else int(most)
    except ValueError:
        raise _UnknownError from None
