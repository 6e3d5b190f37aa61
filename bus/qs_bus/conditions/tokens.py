"""Cuts the text of a condition into tokens, and defines the error that tells what is wrong where."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

LONGEST = 1024
"""Bytes of a condition in UTF-8."""
_SHOWN = 60
"""Characters of a token that an error shows."""


class BadCondition(ValueError):  # noqa: N818 (it names a text, not a failure)
    """Reports that a text is no condition. position: the column, from 1; text: what stands there, and what to write
    instead."""

    def __init__(self, position: int, text: str) -> None:
        super().__init__(f"column {position}: {text}")
        self.position = position
        self.text = text


class Kind(Enum):
    """The kinds of tokens."""

    LITERAL = 1
    NUMBER = 2
    HEADER = 3
    NAME = 4
    SIGN = 5
    END = 6


@dataclass(frozen=True, slots=True)
class Token:
    """A word or a sign. position: its column, from 1."""

    kind: Kind
    text: str
    position: int

    @property
    def is_end(self) -> bool:
        """True for what stands after the last token."""
        return self.kind is Kind.END

    def is_sign(self, *signs: str) -> bool:
        """Tells whether the token is one of some signs."""
        return self.kind is Kind.SIGN and self.text in signs

    def is_name(self, *names: str) -> bool:
        """Tells whether the token is a name, one of some if any are given."""
        return self.kind is Kind.NAME and (not names or self.text in names)

    def __str__(self) -> str:
        if self.is_end:
            return "the end"
        shown = self.text if len(self.text) <= _SHOWN else f"{self.text[:_SHOWN]}..."
        return shown if self.kind is Kind.LITERAL else f"'{shown}'"

    def refused(self, text: str) -> BadCondition:
        """Returns the error that refuses this token. text: why, and what to write instead."""
        return BadCondition(self.position, f"{self}: {text}")


# The letters of names in XML 1.0 since its fifth edition. libxml2 takes fewer in an expression: see `Condition`.
_LETTERS = (
    "A-Z_a-z\xc0-\xd6\xd8-\xf6\xf8-\u02ff\u0370-\u037d\u037f-\u1fff\u200c\u200d\u2070-\u218f\u2c00-\u2fef\u3001-\ud7ff"
    "\uf900-\ufdcf\ufdf0-\ufffd\U00010000-\U000effff"
)
_NAME = rf"[{_LETTERS}][{_LETTERS}0-9.\-\xb7\u0300-\u036f\u203f\u2040]*"
_TOKEN = re.compile(
    rf"""(?P<LITERAL>"[^"]*"|'[^']*')
    |(?P<NUMBER>[0-9]+(?:\.[0-9]+)?)
    |(?P<HEADER>\$header-[A-Za-z0-9._-]+)
    |(?P<NAME>\{{[^{{}}]*\}}(?:{_NAME}|\*)|{_NAME})
    |(?P<SIGN>//|::|\.\.|!=|<=|>=|&&|\|\||==|[-/@*\[\](),=<>|+.:$!])""",
    re.VERBOSE,
)
_SPACES = re.compile("[ \t\r\n]*")
_REST_OF_WORD = re.compile(rf"[{_LETTERS}0-9.\-\xb7]*")
_NOT_OF_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def tokens(text: str) -> list[Token]:
    """Returns the tokens of a condition, with one for its end. Raises BadCondition for what is no token, and for a text
    that is too long."""
    _check_text(text)
    found = []
    at = _after(_SPACES, text, 0)
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _unknown(text, at)
        token = Token(Kind[str(match.lastgroup)], match[0], at + 1)
        if token.kind in (Kind.NUMBER, Kind.HEADER):
            _check_word(token, text[at : _after(_REST_OF_WORD, text, match.end())])
        found.append(token)
        at = _after(_SPACES, text, match.end())
    found.append(Token(Kind.END, "", len(text) + 1))
    return found


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Returns where a pattern ends that begins at a place of a text."""
    match = pattern.match(text, at)
    return at if match is None else match.end()


def _check_text(text: str) -> None:
    bad = _NOT_OF_XML.search(text)
    if bad is not None:
        raise BadCondition(bad.start() + 1, f"the character U+{ord(bad[0]):04X} is not allowed in XML: leave it out")
    encoded = text.encode()
    if len(encoded) > LONGEST:
        fitting = encoded[:LONGEST].decode(errors="ignore")
        raise BadCondition(len(fitting) + 1, f"the condition is longer than {LONGEST} bytes: write a shorter one")


def _check_word(token: Token, word: str) -> None:
    """Checks that a number or the name of a header ends where its token does."""
    if word == token.text:
        return
    if token.kind is Kind.HEADER:
        end = len(token.text)
        text = f"'{word[end]}': a header's name has A-Z a-z 0-9 . _ - only, write another name"
        raise BadCondition(token.position + end, text)
    raise BadCondition(token.position, f"'{word}': no number, write digits as in 15, 0.5 or -2")


def _unknown(text: str, at: int) -> BadCondition:
    """Returns the error for a character that begins no token."""
    if text[at] in "\"'":
        return BadCondition(at + 1, f"{text[at]}: the string has no end, write a second quote")
    if text[at] in "{}":
        return BadCondition(at + 1, f"'{text[at]}': a name with a namespace is written {{uri}}name")
    return BadCondition(at + 1, f"'{text[at]}': no sign of conditions, write strings in quotes")
