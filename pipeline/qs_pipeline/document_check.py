"""Checks payloads against a schema, in tasks, a column of payloads at a time.

A document is compared with the columns that it fills: which elements and attributes have a column, may be repeated, or
are required. Spark silently keeps the last of several elements for one column, so documents are checked before Spark
reads them. Names match as in Spark: without prefix, and in any case. Each process compiles the XSD only once.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from math import isfinite
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from .xml_parsing import MisfitError, PayloadParser, Xsd

_WILDCARD = "xs_any"
"""The column that Spark fills with elements without a column of their own."""

_TEXT = "_value"
"""The column for the text of an element that has attributes. Names are compared in lower case."""

_TAGS = 1000  # element names that a shape caches
_QUOTED = 80  # characters of a quoted value

VERDICT = "struct<misfit: string, doubt: string>"
"""The result for a payload. misfit: why it does not fit, null when it does; doubt: a value that Spark may be unable to
read."""

_LONGEST = 500  # characters of a reason
_KEPT = 8  # checkers: one for each queue


@dataclass(frozen=True, slots=True)
class Column:
    """A column for an element or an attribute.

    key: its name in lower case, empty when each element name has a place of its own; many: it is an array; required: it
    is NOT NULL; kind: the type of one value, as DDL writes it; test: tells whether a text can be one, as far as known
    here; inside: the shape of a structure or a map.
    """

    key: str
    many: bool
    required: bool
    kind: str
    test: Callable[[str], bool] | None
    inside: "Shape | None"


class Shape:
    """The columns for the content of an element, and the check of an element against them.

    Ensures that Spark keeps every value of a document that passes: an element that would be dropped, or replaced by a
    later one of the same name, does not fit. Values are not judged here, as Spark's own rules decide: those that look
    wrong are only named, to explain it if Spark cannot read them.
    """

    def __init__(self, columns: dict[str, Column], rest: Column | None = None) -> None:
        """columns: by their keys; rest: for all other elements."""
        self._columns = columns
        self._rest = rest
        self._columns_by_tag: dict[str, Column | None] = {}
        self._required = [each for each in columns.values() if each.required and each.key != _TEXT]
        self._attributes = [each for each in columns.values() if each.key.startswith("_")]

    def check(self, element: Any, doubts: list[str]) -> None:
        """Compares an lxml element with the columns. Raises MisfitError if an element or attribute has no column, or a
        required one is missing.

        doubts: gets the values that Spark may be unable to read, to explain it if Spark indeed cannot.
        """
        seen = set()
        for child in element:
            tag = child.tag
            column = self._columns_by_tag[tag] if tag in self._columns_by_tag else self._find(tag)
            if column is None:
                continue
            key = column.key or tag
            # Spark would keep the last one, silently.
            if key in seen and not column.many:
                raise MisfitError(f"{_place(child)} is repeated, and its column holds one")
            seen.add(key)
            if column.inside is not None:
                column.inside.check(child, doubts)
            elif column.test is not None:
                _check_value(child, column, doubts)
        if self._attributes or self._required:
            self._check_attributes(element, seen, doubts)

    def _find(self, tag: str) -> Column | None:
        if len(self._columns_by_tag) >= _TAGS:  # payloads of strangers may have any number of names
            self._columns_by_tag.clear()
        found = self._columns_by_tag[tag] = self._columns.get(_name(tag).lower(), self._rest)
        return found

    def _check_attributes(self, element: Any, seen: set[str], doubts: list[str]) -> None:
        # Columns have the names without a prefix, in any case, after an underscore.
        attributes = {f"_{_name(name)}".lower(): value for name, value in element.attrib.items()}
        for column in self._attributes:
            value = attributes.get(column.key)
            if value is not None and column.test is not None and not column.test(value.strip()):
                doubts.append(_cannot_hold(f"{_place(element)}, attribute {column.key[1:]}", value, column))
        for column in self._required:
            if column.key not in seen and column.key not in attributes:
                what = f"the attribute {column.key[1:]}" if column in self._attributes else f"the element {column.key}"
                raise MisfitError(f"{_place(element)} lacks {what}, whose column is NOT NULL")


def shape_of(kind: StructType) -> Shape:
    """Returns the shape of documents that fill a structure."""
    columns = {each.name.lower(): _column(each.name.lower(), each.dataType, not each.nullable) for each in kind.fields}
    return Shape(columns, columns.get(_WILDCARD))


def _column(key: str, kind: DataType, required: bool = False) -> Column:
    many = isinstance(kind, ArrayType)
    single = kind.elementType if isinstance(kind, ArrayType) else kind
    inside = None
    if isinstance(single, StructType):
        inside = shape_of(single)
    elif isinstance(single, MapType):
        inside = Shape({}, _column("", single.valueType))
    name = single.simpleString()
    return Column(key, many, required, name, _TESTS.get(name.partition("(")[0]), inside)


def _check_value(element: Any, column: Column, doubts: list[str]) -> None:
    text = (element.text or "").strip()
    if len(element):
        doubts.append(f"{_place(element)} has elements, and its column is of the type {column.kind}")
    elif text:
        if column.test is not None and not column.test(text):
            doubts.append(_cannot_hold(_place(element), text, column))
    elif column.required:
        raise MisfitError(f"{_place(element)} is empty, and its column is NOT NULL")


def _name(tag: str) -> str:
    return tag.rpartition("}")[2]


def _place(element: Any) -> str:
    """Returns the names from the root to the element."""
    names = [_name(each.tag) for each in element.iterancestors()]
    return "/".join([*reversed(names), _name(element.tag)])


def _cannot_hold(place: str, text: str, column: Column) -> str:
    value = repr(text) if len(text) <= _QUOTED else f"{text[:_QUOTED]!r}…"
    return f"{place} is {value}, which its column of the type {column.kind} cannot hold"


# -- which texts can be a value ---------------------------------------------------------------------------------------


def _whole(bits: int) -> Callable[[str], bool]:
    lowest, highest = -(1 << bits - 1), (1 << bits - 1) - 1
    return _without_errors(lambda text: lowest <= int(text) <= highest)


def _without_errors(test: Callable[[str], object]) -> Callable[[str], bool]:
    """Returns the test, with False for an exception."""

    def passes(text: str) -> bool:
        try:
            return bool(test(text))
        except (ValueError, ArithmeticError):
            return False

    return passes


_NUMBER = _without_errors(lambda text: text == "NaN" or isfinite(float(text)))
_TESTS = {
    "tinyint": _whole(8),
    "smallint": _whole(16),
    "int": _whole(32),
    "bigint": _whole(64),
    "float": _NUMBER,
    "double": _NUMBER,
    "decimal": _without_errors(lambda text: Decimal(text).is_finite()),
    "boolean": lambda text: text.lower() in ("true", "false", "1", "0"),
    "date": _without_errors(date.fromisoformat),
    "timestamp": _without_errors(datetime.fromisoformat),
}


@dataclass(frozen=True, slots=True)
class Requirements:
    """The requirements for payloads. columns: for documents, as JSON of Spark; root: the required name of the root
    element, None for any; xsd: the schema that validates documents, None for no validation."""

    columns: str
    root: str | None = None
    xsd: Xsd | None = None


class Checker:
    """Checks payloads against requirements. Made once in a process: it compiles the XSD."""

    def __init__(self, requirements: Requirements) -> None:
        self._parser = PayloadParser(requirements.xsd, requirements.root)
        self._shape = shape_of(StructType.fromJson(json.loads(requirements.columns)))

    def check(self, body: bytes | None) -> tuple[str | None, str | None]:
        """Returns the reason why the payload does not fit, or None, and a value that Spark may be unable to read, if
        any."""
        doubts: list[str] = []
        try:
            self._shape.check(self._parser.parse(body or b""), doubts)
        except MisfitError as misfit:
            return _bounded(str(misfit)), None
        return None, _bounded(doubts[0]) if doubts else None


@lru_cache(_KEPT)
def checker(requirements: Requirements) -> Checker:
    """Returns this process's checker for the requirements."""
    return Checker(requirements)


def check_payloads(bodies: pa.Array, requirements: Requirements) -> pa.Array:
    """Returns the verdict on each payload, in order."""
    # Spark may run many small batches in a process, and an XSD takes long to compile.
    check = checker(requirements).check
    verdicts = [check(body) for body in bodies.to_pylist()]
    columns = [pa.array([verdict[number] for verdict in verdicts], pa.string()) for number in (0, 1)]
    return pa.StructArray.from_arrays(columns, names=["misfit", "doubt"])


def _bounded(reason: str) -> str:
    return reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}…"
