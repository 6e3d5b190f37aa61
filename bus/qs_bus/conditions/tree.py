"""Defines the tree of a condition, which `grammar` reads and `condition` renders."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Literal:
    """A string, kept with its quotes."""

    quoted: str


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it is written. In a predicate it stands for a position."""

    digits: str
    is_negative: bool = False


@dataclass(frozen=True, slots=True)
class Header:
    """The text of a header of the message. name: in lower case."""

    name: str


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a path. name: the name of elements or attributes, `*` for any, empty for text(); uri: its namespace,
    if any."""

    name: str
    uri: str | None
    is_attribute: bool
    predicates: tuple[Expression, ...]

    @property
    def has_position(self) -> bool:
        """True if one of the predicates is a position."""
        return any(isinstance(predicate, Number) for predicate in self.predicates)


@dataclass(frozen=True, slots=True)
class Path:
    """A path. is_inner: it is in a predicate, and begins at the node that the predicate is about; any other begins at
    the document. is_deep: it begins with `//`."""

    steps: tuple[Step, ...]
    is_inner: bool
    is_deep: bool

    @property
    def is_ordered(self) -> bool:
        """True if libxml2 finds the nodes in the order of the document without sorting them. It does not after `//`:
        the children of an outer element come before those of an inner one."""
        if not self.is_deep:
            return True
        children = [step for step in self.steps if not step.is_attribute]
        return len(children) <= 1 and not any(step.has_position for step in children)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function other than not()."""

    function: str
    arguments: tuple[Value, ...]

    @property
    def is_condition(self) -> bool:
        """True if the function tells true from false, rather than returning a number."""
        return self.function in ("contains", "starts-with")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two values with a sign between them."""

    sign: str
    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class Not:
    """A condition that must not hold."""

    operand: Expression


@dataclass(frozen=True, slots=True)
class Junction:
    """Conditions with `and` or `or` between them; a single one stands in parentheses."""

    word: str
    operands: tuple[Expression, ...]


Value = Literal | Number | Header | Path | Call
Expression = Value | Comparison | Not | Junction
