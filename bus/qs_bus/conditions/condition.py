"""Evaluates a condition over the payload and the headers of one message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from threading import local

from lxml import etree

from . import grammar
from .document import Document
from .tokens import BadCondition
from .tree import Call, Comparison, Expression, Header, Junction, Literal, Not, Number, Path, Step, Value


class Condition:
    """A condition of a subscription. Two conditions are equal if their texts are.

    Ensures that an evaluation takes time in proportion to the payload. The bound is `grammar.MOST_STEPS` times the time
    to look at all nodes of the payload and to read its text once for each level, of which there are `document.LEVELS`
    at most:
    1. Each step, in a predicate or not, looks at each node at most once. It starts once from each node that the step
       before has found. These nodes differ, since each child and each attribute has one parent; only the first step of
       a path goes through all descendants, and does so once, from the document.
    2. Each comparison and each function reads the texts of the nodes that its path finds once. They overlap only after
       `//`: there the text of a payload is read again for each element around it.
    3. No set of nodes is compared with another, merged or sorted. libxml2 would sort what `boolean()`, not() and the
       other functions get, in quadratic time for some sets: such a set is hidden behind `and true()`, or has one
       node of each parent, in the order of the document, where libxml2 looks at each pair of neighbours once.
    4. contains() may compare all of its string at each character: all strings together have 1 KiB at most, and
       `grammar.SOUGHT_BYTES` where texts are read for each level.
    5. A header of at most 8 KiB is copied for each node at most `grammar.MOST_HEADERS` times.

    lxml runs text of ours only, made from the tree of the condition. Any thread may use a condition.
    """

    __slots__ = ("_compiled", "_headers", "needs_document", "text")

    def __init__(self, text: str) -> None:
        """text: the condition. Raises BadCondition, whose text tells what is wrong with it where."""
        tree = grammar.parse(text)
        self.text = text
        parts = list(_parts(tree))
        self.needs_document = any(isinstance(part, Path) for part in parts)
        """False for a condition over headers alone."""
        self._headers = {_variable(part.name): "" for part in parts if isinstance(part, Header)}
        for name in (step.name for part in parts if isinstance(part, Path) for step in part.steps):
            if not _is_known(name):
                position = text.index(name) + 1
                raise BadCondition(position, f"'{name}': libxml2 knows no such letter in a name, write * for any name")
        self._compiled = _Compiled(tree)

    def matches(self, document: Document, headers: Mapping[str, str]) -> bool:
        """Tells whether a message matches. document: its payload, parsed only if the condition asks for it; headers:
        its headers, whose names are compared without regard to case."""
        tree = document.tree if self.needs_document else None
        xpath, context = (self._compiled.empty, _NO_ELEMENTS) if tree is None else (self._compiled.full, tree)
        if not self._headers:
            return bool(xpath(context))
        values = self._headers.copy()
        for name, value in headers.items():
            variable = _variable(name.lower())
            if variable in values:
                values[variable] = value
        return bool(xpath(context, **values))

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Condition) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Condition({self.text!r})"


_NO_ELEMENTS = etree.Element("none").getroottree()
"""Stands for a payload without elements: lxml has no document without any. No rendered path finds its element."""


class _Compiled(local):
    """Holds what lxml made of a condition, for each thread its own: lxml locks an expression while it runs, and the
    event loop must not wait for a thread that runs it over a large payload.

    full: for documents; empty: for a payload that has no elements.
    """

    def __init__(self, tree: Expression) -> None:
        self.full = _Rendering().compile(tree)
        self.empty = _WithoutElements().compile(tree)


class _Rendering:
    """Renders the tree of a condition as XPath."""

    def __init__(self) -> None:
        self._prefixes: dict[str, str] = {}

    def compile(self, tree: Expression) -> etree.XPath:
        text = f"boolean({self._alone(tree)})"
        namespaces = {prefix: uri for uri, prefix in self._prefixes.items()}
        return etree.XPath(text, namespaces=namespaces, regexp=False, smart_strings=False)

    def _alone(self, expression: Expression) -> str:
        """Renders a condition that is all that a function gets. `and` keeps libxml2 from sorting what a path finds."""
        text = self._truth(expression)
        return f"{text} and true()" if isinstance(expression, Path) else text

    def _truth(self, expression: Expression) -> str:
        if isinstance(expression, Junction):
            operands = (self._truth(operand) for operand in expression.operands)
            return f"({f' {expression.word} '.join(operands)})"
        if isinstance(expression, Not):
            return f"not({self._alone(expression.operand)})"
        if isinstance(expression, Comparison):
            return f"{self._value(expression.left)} {expression.sign} {self._value(expression.right)}"
        return self._value(expression)

    def _value(self, value: Value) -> str:
        match value:
            case Literal():
                return value.quoted
            case Number():
                return f"-{value.digits}" if value.is_negative else value.digits
            case Header():
                return f"${_variable(value.name)}"
            case Path():
                return self._path(value)
            case Call():
                arguments = (
                    self._first(argument) if isinstance(argument, Path) else self._value(argument)
                    for argument in value.arguments
                )
                return f"{value.function}({','.join(arguments)})"

    def _first(self, path: Path) -> str:
        """Renders a path of which only the first node counts. One for each parent is enough, and keeps libxml2 from
        sorting texts: it goes back from each to the element before."""
        return f"{self._path(path)}[1]"

    def _path(self, path: Path) -> str:
        steps = "/".join(self._step(step) for step in path.steps)
        if path.is_inner:
            return steps
        if path.steps[0].is_attribute:
            return f"/descendant::*/{steps}" if path.is_deep else f"/{steps}"
        if not path.is_deep:
            # Some versions of libxml2 take no name right behind the first slash that begins with a letter beyond ASCII.
            return f"/child::{steps}"
        if path.steps[0].has_position:
            # A position counts among the children of one parent.
            return f"/descendant-or-self::node()/{steps}"
        return f"/descendant::{steps}"

    def _step(self, step: Step) -> str:
        name = step.name or "text()"
        if step.uri is not None:
            prefix = self._prefixes.setdefault(step.uri, f"n{len(self._prefixes)}")
            name = f"{prefix}:{name}"
        predicates = "".join(f"[{self._truth(predicate)}]" for predicate in step.predicates)
        return f"{'@' if step.is_attribute else ''}{name}{predicates}"


class _WithoutElements(_Rendering):
    """Renders the tree of a condition for a payload without elements: no path finds anything."""

    def _path(self, path: Path) -> str:
        return "/@*"  # A document has no attributes.


def _is_known(name: str) -> bool:
    """Tells whether libxml2 takes a name in an expression. It knows the letters of the fourth edition of XML 1.0, which
    has fewer than the fifth."""
    if name.isascii():
        return True
    try:
        etree.XPath(name)
    except etree.XPathSyntaxError:
        return False
    return True


def _variable(header: str) -> str:
    """Returns the name of the variable for a header, whose name is in lower case."""
    return f"header-{header}"


def _parts(expression: Expression) -> Iterator[Expression]:
    """Yields an expression and all within it."""
    yield expression
    match expression:
        case Junction():
            inner: tuple[Expression, ...] = expression.operands
        case Not():
            inner = (expression.operand,)
        case Comparison():
            inner = (expression.left, expression.right)
        case Call():
            inner = expression.arguments
        case Path():
            inner = tuple(predicate for step in expression.steps for predicate in step.predicates)
        case _:
            inner = ()
    for part in inner:
        yield from _parts(part)
