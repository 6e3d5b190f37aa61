"""Tells which patterns of an XSD can be matched without trying: see `unambiguous`.

Symbols are the characters of ASCII, and one for all others together. Where a class of characters is not known exactly,
more are taken than it has.
"""

import re
import string

from .unambiguous import Expression, Part, TooLargeError

_OTHERS = "others"
_ALL = frozenset([*map(chr, range(128)), _OTHERS])
_DIGITS = frozenset([*string.digits, _OTHERS])
_SPACE = frozenset(" \t\n\r")
_INITIAL = frozenset([*string.ascii_letters, "_", ":", _OTHERS])
_NAME = _INITIAL | frozenset([*string.digits, ".", "-"])
_CLASSES = {
    "d": _DIGITS, "D": _ALL - frozenset(string.digits), "s": _SPACE, "S": _ALL - _SPACE, "i": _INITIAL,
    "I": _ALL - _INITIAL | {_OTHERS}, "c": _NAME, "C": _ALL - _NAME | {_OTHERS}, "w": _ALL, "W": _ALL, "p": _ALL,
    "P": _ALL, "n": frozenset("\n"), "r": frozenset("\r"), "t": frozenset("\t"),
}  # fmt: skip
_INEXACT = frozenset("wWpP")
_QUANTIFIER = re.compile(r"\{([0-9]{1,6})(?:(,)([0-9]{1,6})?)?\}")
_PROPERTY = re.compile(r"\{[A-Za-z0-9-]{1,50}\}")
_LONGEST = 1000
_DEEPEST = 20


def is_plain_pattern(pattern: str) -> bool:
    """Tells whether each character of a value allows one way at most to go on in the pattern. What cannot be read here
    is not plain."""
    if len(pattern) > _LONGEST:
        return False
    reader = _Reader(pattern)
    try:
        whole = reader.choice(0)
        return reader.at == len(pattern) and reader.expression.is_unambiguous(whole)
    except (TooLargeError, _UnknownError):
        return False


class _UnknownError(Exception):
    """Reports that a pattern has something that is not known here."""


class _Reader:
    """Reads a pattern into an expression, from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self.at = 0
        self.expression = Expression()

    def _peek(self) -> str:
        return self._pattern[self.at : self.at + 1]

    def _take(self) -> str:
        if self.at >= len(self._pattern):
            raise _UnknownError
        self.at += 1
        return self._pattern[self.at - 1]

    def choice(self, depth: int) -> Part:
        """Reads up to the end, or up to a closing parenthesis."""
        if depth > _DEEPEST:
            raise _UnknownError
        branches = [self._sequence(depth)]
        while self._peek() == "|":
            self.at += 1
            branches.append(self._sequence(depth))
        return self.expression.choice(branches)

    def _sequence(self, depth: int) -> Part:
        parts = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._quantified(self._atom(depth)))
        return self.expression.sequence(parts)

    def _atom(self, depth: int) -> Part:
        first = self._take()
        if first == "(":
            part = self.choice(depth + 1)
            if self._take() != ")":
                raise _UnknownError
            return part
        if first in "*+?{}]":
            raise _UnknownError
        if first == "[":
            return self.expression.symbol(self._class())
        if first == ".":
            return self.expression.symbol(_ALL - {"\n", "\r"})
        return self.expression.symbol(self._escape()[0] if first == "\\" else _of(first))

    def _quantified(self, part: Part) -> Part:
        bounds = {"?": (0, 1), "*": (0, None), "+": (1, None)}.get(self._peek())
        if bounds is not None:
            self.at += 1
        elif self._peek() == "{":
            found = _QUANTIFIER.match(self._pattern, self.at)
            if found is None:
                raise _UnknownError
            self.at = found.end()
            least = int(found[1])
            bounds = (least, least if found[2] is None else None if found[3] is None else int(found[3]))
        else:
            return part
        return self.expression.repeated(part, *bounds)

    def _escape(self) -> tuple[frozenset[str], bool]:
        """Reads what follows a backslash. Returns the characters, and whether these are exactly those of ASCII."""
        name = self._take()
        if name in "pP":
            found = _PROPERTY.match(self._pattern, self.at)
            if found is None:
                raise _UnknownError
            self.at = found.end()
        elif name.isalnum() and name not in _CLASSES:
            raise _UnknownError
        return _CLASSES.get(name) or _of(name), name not in _INEXACT

    def _class(self) -> frozenset[str]:
        """Reads what follows an opening bracket, up to the closing one."""
        is_negated = self._peek() == "^"
        self.at += is_negated
        found: set[str] = set()
        is_exact = True
        while (one := self._take()) != "]":
            if one == "[":
                raise _UnknownError
            if one == "-" and self._peek() == "[":  # takes some away again: not followed
                self.at += 1
                self._class()
                is_exact = False
            elif one == "\\":
                symbols, exact = self._escape()
                is_exact = is_exact and exact
                found |= self._range(symbols)
            else:
                found |= self._range(_of(one))
        if not is_negated:
            return frozenset(found)
        return _ALL - found | {_OTHERS} if is_exact else _ALL

    def _range(self, first: frozenset[str]) -> frozenset[str]:
        """Reads the rest of a range such as `a-z`, if it is one."""
        if self._peek() != "-" or self._pattern[self.at + 1 : self.at + 2] in ("]", "["):
            return first
        self.at += 1
        last = self._take()
        end = self._escape()[0] if last == "\\" else _of(last)
        if len(first) != 1 or len(end) != 1:
            raise _UnknownError
        [low], [high] = first, end
        if _OTHERS in (low, high):
            return frozenset([*(map(chr, range(ord(low), 128)) if low != _OTHERS else ()), _OTHERS])
        return frozenset(map(chr, range(ord(low), ord(high) + 1)))


def _of(character: str) -> frozenset[str]:
    return frozenset([character if character.isascii() else _OTHERS])
