"""Reads the text of a condition into a tree, and tells by position what is wrong with it.

The language is a subset of XPath 1.0. What is read means what XPath says it means, and takes time in proportion to the
payload: `Condition` says why. Must never accept a part of a text unread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .tokens import BadCondition, Kind, Token, tokens
from .tree import Call, Comparison, Expression, Header, Junction, Literal, Not, Number, Path, Step, Value

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_STEPS = 32
"""Steps of all paths of a condition together. Each step may look at each node of the payload once."""
DEEPEST = 32
"""Parentheses, brackets and calls inside one another. This module and libxml2 recurse for each."""
SOUGHT_BYTES = 64
"""Bytes that all contains() in brackets after `//` look for together. At each character of a text libxml2 may compare
all of them, and after `//` a text may be read again for each element around it."""
MOST_HEADERS = 4
"""Comparisons with a header in brackets. Each copies the header for each node that the brackets are about, 8 KiB at
most: some do not cost more than the steps may, thirty would."""

_COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")
_FUNCTIONS = {"not": 1, "contains": 2, "starts-with": 2, "number": 1, "string-length": 1}
_ARGUMENTS = "a path, a string or a header"
_KNOWN_FUNCTIONS = "the functions are not(), contains(), starts-with(), number() and string-length()"
_NO_ARITHMETIC = "no arithmetic, write the result of it"
_INSTEAD = {
    "|": "no union of paths, write 'or' between two conditions",
    "||": "write 'or'",
    "&&": "write 'and'",
    "==": "write =",
    "!": "write != or not(...)",
    "+": _NO_ARITHMETIC,
    "-": _NO_ARITHMETIC,
    "*": _NO_ARITHMETIC,
    "div": _NO_ARITHMETIC,
    "mod": _NO_ARITHMETIC,
    "..": "a path only goes down, write brackets at the outer element, as in order[customer]/item",
    ".": "no sign for the node itself, write its name before the brackets as in order[item = 'x'], or text()",
    "::": "no axes, write name, @name, or //name at the front",
    ":": "no prefixes, write {uri}name",
    "$": "the only variables are headers, write $header-NAME",
    "[": "brackets follow a step of a path only, write them there",
    ")": "no parenthesis is open here, leave it out",
    "]": "no bracket is open here, leave it out",
    ",": "commas stand between the arguments of a function only, write 'and' or 'or'",
    "/": "a path begins once, write 'and' or 'or' between two paths",
    "//": "it stands at the front of a path only, write //name, or all steps in between",
}
_INSTEAD_OF_FUNCTION = {
    "position": "write a number in brackets, as in item[2]",
    "last": "a position counts from the front, as in item[2]",
    "count": "write a path that finds the last that has to be there, as in order/item[3]",
    "true": "leave it out",
    "false": "leave it out",
    "boolean": "leave it out, a path alone is true if it finds anything",
    "string": "leave it out, a path is compared with a string as it is",
    "text": "text() has nothing between its parentheses, and no @",
    "node": "write * for any element, or text()",
    "comment": "conditions do not see comments",
    "processing-instruction": "conditions do not see processing instructions",
}


def parse(text: str) -> Expression:
    """Returns the tree of a condition. Raises BadCondition."""
    return _Parser(text).parse()


class _Parser:
    """Reads a condition from left to right, with a method for each rule of the grammar.

    Refuses, so that what is left takes time in proportion to the payload:
    1. comparisons of two paths: each node of one is compared with each of the other;
    2. `//` but at the front of a path, and paths from the document in brackets: they are followed for each node anew;
    3. functions of a path whose nodes would have to be sorted to know the first;
    4. strings for contains() that are not in the condition, or long where texts are read for each level;
    5. headers in brackets but in a few comparisons with paths: their text is copied for each node anew.
    """

    def __init__(self, text: str) -> None:
        self._tokens = tokens(text)
        self._at = 0
        self._depth = 0
        self._steps = 0
        self._brackets = 0
        """The number of predicates around the next token."""
        self._is_deep = False
        """True while the path that is read, or one around it, begins with `//`."""
        self._headers = 0
        """Headers that count for `MOST_HEADERS`."""
        self._sought = 0
        """Bytes that count for `SOUGHT_BYTES`."""

    def parse(self) -> Expression:
        """Reads the whole condition."""
        if self._next.is_end:
            raise BadCondition(1, "the condition is empty, write one as in /order/total > 100")
        tree = self._any_of()
        if not self._next.is_end:
            raise self._unexpected()
        return tree

    # Tokens

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    @property
    def _after_next(self) -> Token:
        return self._tokens[min(self._at + 1, len(self._tokens) - 1)]

    def _take(self) -> Token:
        token = self._next
        self._at += 1
        return token

    def _takes(self, *signs: str) -> bool:
        """Takes the next token if it is one of some signs, and tells whether it was."""
        if not self._next.is_sign(*signs):
            return False
        self._at += 1
        return True

    def _open(self) -> Token:
        """Takes a token that opens a part of the condition, which `_close` ends."""
        token = self._take()
        self._depth += 1
        if self._depth > DEEPEST:
            raise token.refused(f"more than {DEEPEST} parentheses and brackets inside one another, write fewer")
        return token

    def _close(self, sign: str, opened: Token) -> None:
        """Takes the sign that ends what a token opened."""
        if self._next.is_end:
            raise self._next.refused(f"'{opened.text}' of column {opened.position} is not closed, write a '{sign}'")
        if not self._takes(sign):
            raise self._unexpected()
        self._depth -= 1

    def _unexpected(self) -> BadCondition:
        """Returns the error for a token that may not follow what has been read."""
        before = self._tokens[self._at - 1]
        if self._next.is_sign("(") and before.is_name():
            return _unknown_function(before)
        return self._next.refused(_INSTEAD.get(self._next.text, "write 'and', 'or' or a comparison before it"))

    def _missing(self, what: str) -> BadCondition:
        """Returns the error for a token in whose place something else has to stand."""
        token, hint = self._next, f"{what} is missing here, write one"
        if token.is_sign(".") and self._after_next.kind is Kind.NUMBER:
            hint = f"no number, write 0.{self._after_next.text}"
        elif token.is_sign("..", ".", ":", "::", "$", "!", "==", "&&", "||", "//", "["):
            hint = _INSTEAD[token.text]
        return token.refused(hint)

    # Conditions

    def _any_of(self) -> Expression:
        return self._junction("or", self._all_of)

    def _all_of(self) -> Expression:
        return self._junction("and", self._comparison)

    def _junction(self, word: str, operand: Callable[[], Expression]) -> Expression:
        operands = [operand()]
        while self._next.is_name(word):
            self._take()
            operands.append(operand())
        return operands[0] if len(operands) == 1 else Junction(word, tuple(operands))

    def _comparison(self) -> Expression:
        """Reads a condition without `and` and `or`: a comparison, or something that is true or false alone."""
        first = self._next
        left = self._operand()
        if not self._next.is_sign(*_COMPARISONS):
            return self._condition(left, first)
        left = self._value(left, first)
        sign = self._take()
        second = self._next
        right = self._value(self._operand(), second)
        if isinstance(left, Path) and isinstance(right, Path):
            raise second.refused("two paths are not compared with each other, write number(...) around one")
        if self._brackets:
            is_cheap = sign.text in ("=", "!=") and isinstance(left, Path) | isinstance(right, Path)
            for token, side in ((first, left), (second, right)):
                if isinstance(side, Header):
                    self._count_header(token, is_cheap)
        if self._next.is_sign(*_COMPARISONS):
            raise self._next.refused("a comparison has two sides, write 'and' between two comparisons")
        return Comparison(sign.text, left, right)

    def _count_header(self, header: Token, is_cheap: bool) -> None:
        if not is_cheap:
            raise _header_in_brackets(header)
        self._headers += 1
        if self._headers > MOST_HEADERS:
            raise header.refused(f"more than {MOST_HEADERS} headers in brackets, write fewer or compare them outside")

    def _condition(self, expression: Expression, token: Token) -> Expression:
        """Checks that what stands alone is true or false. token: its first one."""
        is_number = isinstance(expression, Call) and not expression.is_condition
        if isinstance(expression, Literal | Number) or is_number:
            raise token.refused("no condition by itself, write a comparison with it")
        if isinstance(expression, Header) and self._brackets:
            raise _header_in_brackets(token)
        return expression

    @staticmethod
    def _value(expression: Expression, token: Token) -> Value:
        """Checks that a side of a comparison is a path, a string or a number. token: its first one."""
        is_condition = isinstance(expression, Call) and expression.is_condition
        if isinstance(expression, Comparison | Not | Junction) or is_condition:
            raise token.refused("a condition has no value to compare, write it with 'and', 'or' or not()")
        return expression

    def _operand(self) -> Expression:
        """Reads what may be a side of a comparison, or stand alone."""
        token = self._next
        if token.is_name() and token.text != "text" and self._after_next.is_sign("("):
            return self._call()
        if token.is_name() or token.is_sign("/", "//", "*", "@"):
            return self._path()
        if token.is_sign("("):
            return self._parentheses()
        return self._constant()

    def _parentheses(self) -> Expression:
        opened = self._open()
        inner = self._any_of()
        self._close(")", opened)
        return Junction("and", (inner,))

    def _constant(self) -> Literal | Number | Header:
        is_negative = self._after_next.kind is Kind.NUMBER and self._takes("-")
        match self._next.kind:
            case Kind.NUMBER:
                return Number(self._take().text, is_negative)
            case Kind.LITERAL:
                return Literal(self._take().text)
            case Kind.HEADER:
                return Header(self._take().text.removeprefix("$header-").lower())
        raise self._missing("a path, a string, a number, a header or a function")

    # Functions

    def _call(self) -> Not | Call:
        name = self._take()
        if name.text not in _FUNCTIONS:
            raise _unknown_function(name)
        opened = self._open()
        call = Not(self._any_of()) if name.text == "not" else Call(name.text, self._arguments(name))
        if self._next.is_sign(","):
            raise self._next.refused(f"{name.text}() has no more arguments, leave it out")
        if isinstance(call, Call) and (self._next.is_name("and", "or") or self._next.is_sign(*_COMPARISONS)):
            raise self._next.refused(f"{name.text}() takes {_ARGUMENTS}, and no more, leave it out")
        self._close(")", opened)
        return call

    def _arguments(self, name: Token) -> tuple[Value, ...]:
        first = self._argument(name)
        if _FUNCTIONS[name.text] == 1:
            return (first,)
        if not self._takes(","):
            raise self._next.refused(f"{name.text}() has two arguments, write a ',' between them")
        token = self._next
        second = self._argument(name)
        if name.text == "contains":
            if not isinstance(second, Literal):
                raise token.refused("contains() looks for a string, write one in quotes")
            if self._brackets and self._is_deep:
                self._count_sought(token)
        return first, second

    def _argument(self, name: Token) -> Value:
        token = self._next
        argument = self._operand()
        if isinstance(argument, Header) and self._brackets:
            raise _header_in_brackets(token)
        if not isinstance(argument, Path | Literal | Header):
            raise token.refused(f"{name.text}() takes {_ARGUMENTS}, write one of these")
        if isinstance(argument, Path) and not argument.is_ordered:
            raise token.refused(
                f"{name.text}() takes the first that a path finds, which is only known of //name, //@name and "
                f"//name/@name, write it in brackets as in //order[{name.text}(...)]"
            )
        return argument

    def _count_sought(self, literal: Token) -> None:
        self._sought += len(literal.text.encode()) - 2
        if self._sought > SOUGHT_BYTES:
            raise literal.refused(
                f"all strings of contains() in brackets after // have at most {SOUGHT_BYTES} bytes, write shorter "
                "ones, or a path without //"
            )

    # Paths

    def _path(self) -> Path:
        first = self._next
        is_deep = first.is_sign("//")
        if self._takes("/", "//") and self._brackets:
            raise first.refused("a path in brackets begins at what stands before them, write it without, or outside")
        outer, self._is_deep = self._is_deep, self._is_deep or is_deep
        steps = [self._step()]
        while self._next.is_sign("/"):
            if steps[-1].is_attribute or not steps[-1].name:
                raise self._next.refused("nothing is inside of an attribute or a text, end the path here")
            self._take()
            steps.append(self._step())
        self._is_deep = outer
        if self._next.is_sign("//"):
            raise self._next.refused(_INSTEAD["//"])
        return Path(tuple(steps), is_inner=self._brackets > 0, is_deep=is_deep)

    def _step(self) -> Step:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise self._next.refused(f"the paths have more than {MOST_STEPS} steps together, write fewer")
        is_attribute = self._takes("@")
        if not (self._next.is_name() or self._next.is_sign("*")):
            raise self._missing("a name")
        token = self._take()
        if self._next.is_sign(":", "::"):
            raise token.refused(_INSTEAD[self._next.text])
        uri, name = None, token.text
        if name.startswith("{"):
            uri, name = name[1:].split("}")
            if not uri:
                raise token.refused(f"the namespace is empty, write {name}")
        if self._next.is_sign("("):
            if token.text != "text" or is_attribute or not self._after_next.is_sign(")"):
                raise _unknown_function(token)
            self._take(), self._take()
            name = ""
        return Step(name, uri, is_attribute, self._predicates())

    def _predicates(self) -> tuple[Expression, ...]:
        predicates = []
        while self._next.is_sign("["):
            opened = self._open()
            self._brackets += 1
            is_position = self._next.kind is Kind.NUMBER and self._after_next.is_sign("]")
            predicates.append(self._position() if is_position else self._any_of())
            self._brackets -= 1
            self._close("]", opened)
        return tuple(predicates)

    def _position(self) -> Number:
        token = self._take()
        if not token.text.isdigit() or not int(token.text):
            raise token.refused("no position, write 1, 2, 3 ...")
        return Number(token.text)


def _unknown_function(name: Token) -> BadCondition:
    return name.refused(f"no function of conditions, {_INSTEAD_OF_FUNCTION.get(name.text, _KNOWN_FUNCTIONS)}")


def _header_in_brackets(header: Token) -> BadCondition:
    return header.refused(
        "in brackets a header is only compared with a path by = or !=, write the rest outside with 'and'"
    )
