"""Tells whether an expression can be matched without trying: whether each symbol that comes allows one way to go on.

An expression is of characters (a pattern), or of names of elements (a content model). Each place in it at which a
symbol is taken is a position with the set of symbols that it takes; `Expression` collects which positions may come
after which (Glushkov's construction). If no symbol is in the sets of two positions that may come next, a match takes
time in proportion to the symbols.
"""

from collections.abc import Collection, Hashable, Iterable
from typing import NamedTuple

ANYTHING = "\0anything"
"""The symbol of a set that may overlap any other."""
_MOST = 500
"""The most positions of an expression: for more, the pairs of those that follow each other would be too many."""


class Part(NamedTuple):
    """A part of an expression. may_be_empty: True if it matches without any symbol; first, last: the positions that
    take the first and the last symbol."""

    may_be_empty: bool
    first: tuple[int, ...]
    last: tuple[int, ...]


EMPTY = Part(True, (), ())


class TooLargeError(ValueError):
    """Reports that an expression has too many positions."""


class Expression:
    """An expression that is put together from parts."""

    def __init__(self) -> None:
        self._symbols: list[Collection[Hashable]] = []
        self._next: list[set[int]] = []
        self._is_double = False

    def symbol(self, symbols: Collection[Hashable]) -> Part:
        """Returns a part that takes one of these symbols. Raises TooLargeError."""
        if len(self._symbols) >= _MOST:
            raise TooLargeError
        position = (len(self._symbols),)
        self._symbols.append(symbols)
        self._next.append(set())
        return Part(False, position, position)

    def sequence(self, parts: Iterable[Part]) -> Part:
        """Returns a part in which these come one after the other."""
        whole = EMPTY
        for part in parts:
            self._follow(whole, part)
            whole = Part(
                whole.may_be_empty and part.may_be_empty,
                whole.first + part.first if whole.may_be_empty else whole.first,
                whole.last + part.last if part.may_be_empty else part.last,
            )
        return whole

    def choice(self, parts: Iterable[Part]) -> Part:
        """Returns a part that is one of these."""
        each = list(parts)
        return Part(
            any(part.may_be_empty for part in each),
            tuple(position for part in each for position in part.first),
            tuple(position for part in each for position in part.last),
        )

    def repeated(self, part: Part, least: int, most: int | None) -> Part:
        """Returns a part that is another one, repeated. most: None for any number."""
        # A fixed number of one symbol is counted: it is no loop that the next symbol could go on with, or leave.
        is_counted = least == most and self._is_symbol(part)
        if most != 1 and not is_counted:
            self._follow(part, part)
        return Part(part.may_be_empty or least == 0, part.first, part.last)

    def _is_symbol(self, part: Part) -> bool:
        return (
            not part.may_be_empty and part.first == part.last and len(part.first) == 1 and not self._next[part.first[0]]
        )

    def _follow(self, one: Part, other: Part) -> None:
        for position in one.last:
            # Two loops around the same symbols, as in (a{2}){3}: the symbol does not say which of them goes on.
            self._is_double = self._is_double or not self._next[position].isdisjoint(other.first)
            self._next[position].update(other.first)

    def is_unambiguous(self, whole: Part) -> bool:
        """Tells whether each symbol that comes is taken by one position at most, and in one way."""
        return not self._is_double and self._are_apart(whole.first) and all(map(self._are_apart, self._next))

    def _are_apart(self, positions: Collection[int]) -> bool:
        seen: set[Hashable] = set()
        for position in positions:
            symbols = self._symbols[position]
            if not seen.isdisjoint(symbols) or (seen and ANYTHING in symbols) or ANYTHING in seen:
                return False
            seen.update(symbols)
        return True
