"""Payloads and JSON Schemas: what is told of a payload that is not valid, or is no JSON that everybody reads alike."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qs_payloads import PayloadSchema, SchemaError, Schemas, find_schema

MakeSchema = Callable[..., PayloadSchema]
ORDER = """{"type": "object", "required": ["items"], "properties": {"items": {"type": "array", "items":
{"properties": {"price": {"type": "number"}, "name": {"pattern": "^(a+)+$"}}}}}}"""


@pytest.fixture(scope="module")
def order(tmp_path_factory: pytest.TempPathFactory) -> PayloadSchema:
    file = tmp_path_factory.mktemp("schemas") / "order.json"
    file.write_text(ORDER)
    return find_schema(file.parent, "order")


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        (
            '{"a": [1, {"b": 2}],\n "items": [\n{"price": 1},\n{"price": 2, "x": []}, {},\n{"price": "x"}]}',
            "line 5, element '/items/3/price': \"x\" is not of type \"number\"",
        ),
        ("\n{}", 'line 2: "items" is a required property'),
        ('{"items": [{"name": "b"}]}', "line 1, element '/items/0/name': \"b\" does not match \"^(a+)+$\""),
        ("", "is empty: a JSON document is wanted"),
        ("{", "line 1: is no JSON, column 2: Expecting property name enclosed in double quotes"),
        ('{"a":\n1,}', "line 2: is no JSON, column 3: Expecting property name enclosed in double quotes"),
        ('{"a": 1, "a": 2}', 'has the name "a" twice in one object'),
        ('{"items": [NaN]}', "is no JSON: NaN is no number of JSON"),
        ('{"items": [-Infinity]}', "is no JSON: -Infinity is no number of JSON"),
        ('{"items": [1e999]}', "has a number that is too large"),
        (f'{{"items": [{"9" * 5000}]}}', "has a number that is too large"),
        (f'{{"items": {"[" * 100_000}', "is nested too deeply"),
        ('{"items": ["\\ud800"]}', "has half of a surrogate pair, which is no character"),
        ('\ufeff{"items": []}', "line 1: begins with a byte order mark, which JSON has not"),
    ],
)  # fmt: skip
def test_what_is_told_of_json(order: PayloadSchema, payload: str, told: str) -> None:
    """The text has the line, the path and the reason."""
    assert str(order.fault(payload.encode())) == told


def test_valid(order: PayloadSchema) -> None:
    """Valid documents have no fault, however large their whole numbers are and however deep they are."""
    deep = "[" * 300 + "]" * 300
    large = f'{{"items": [{{"price": {"9" * 400}}}], "x": {deep}}}'
    for payload in ('{"items": []}', large, '{"items": [{"name": "aa"}], "x": "\\ud83d\\ude00"}'):
        assert order.fault(payload.encode()) is None


def test_too_deep_for_the_library(make_schema: MakeSchema) -> None:
    """The library reads some 250 levels of what the schema looks at; more is a fault of the payload."""
    schema = make_schema('{"additionalProperties": {"type": "string"}}')
    for levels, told in ((100, "is not of type"), (300, "is nested too deeply")):
        assert told in str(schema.fault(f'{{"x": {"[" * levels}{"]" * levels}}}'.encode()))


def test_not_utf_8(order: PayloadSchema) -> None:
    """JSON is UTF-8."""
    assert str(order.fault(b'\n{"items": "\xff"}')) == "line 2: is not UTF-8 at byte 12"


def test_expressions_take_time_in_proportion(order: PayloadSchema) -> None:
    """A value that would take for ever with an engine that tries again is told at once, with a short reason."""
    fault = order.fault(b'{"items": [{"name": "' + b"a" * 1_000_000 + b'b"}]}')
    assert fault is not None
    assert len(fault.reason) < 600


@pytest.mark.parametrize(
    ("draft", "fault"),
    [
        ("https://json-schema.org/draft/2020-12/schema", True),
        ("https://json-schema.org/draft/2019-09/schema", True),
        ("http://json-schema.org/draft-07/schema#", True),
        ("http://json-schema.org/draft-06/schema#", True),
        ("http://json-schema.org/draft-04/schema#", False),
    ],
)
def test_drafts(draft: str, fault: bool, make_schema: MakeSchema) -> None:
    """The draft that a schema names is the one that it is read by: draft 4 does not know `const`."""
    schema = make_schema(f'{{"$schema": "{draft}", "properties": {{"a": {{"const": 1}}}}}}')
    assert (schema.fault(b'{"a": 2}') is not None) is fault


@pytest.mark.parametrize(
    "body",
    [
        '{"type": 3}',
        '{"pattern": "("}',
        '{"pattern": "(?=a)b"}',
        '{"$ref": "#/nowhere"}',
        '{"$schema": "urn:nothing"}',
        "{",
    ],
)
def test_schemas_that_are_none(body: str, tmp_path: Path) -> None:
    """The fault of a schema is told, with the file's name."""
    (tmp_path / "order.json").write_text(body)
    [text] = Schemas(tmp_path).reload()
    assert text.startswith(("order.json: ", "order.json:1: "))
    with pytest.raises(SchemaError):
        find_schema(tmp_path, "order").compile()


def test_without_the_library(tmp_path: Path) -> None:
    """Where jsonschema-rs is not installed, the text says what to type, and XSDs work."""
    (tmp_path / "order.json").write_text("{}")
    (tmp_path / "bill.xsd").write_text(
        '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="a" type="xs:int"/></xs:schema>'
    )
    code = """
import sys
from qs_payloads import SchemaError, find_schema
sys.modules["jsonschema_rs"] = None
try:
    find_schema(sys.argv[1], "order").compile()
except SchemaError as error:
    print(error)
print(find_schema(sys.argv[1], "bill").fault(b"<a>1</a>"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""
    text, fault = done.stdout.splitlines()
    assert text == "order.json: jsonschema_rs is not installed: pip install 'qsbus[json-schema]'"
    assert fault == "None"
