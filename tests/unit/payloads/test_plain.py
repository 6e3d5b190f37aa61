"""Which schemas are quick: those with one way to match any payload, for which 16 KiB take a millisecond or two."""

import time
from collections.abc import Callable

import pytest
from lxml import etree

from qs_payloads import PayloadSchema
from qs_payloads.plain_patterns import is_plain_pattern
from qs_payloads.plain_xsd import is_plain

MakeSchema = Callable[..., PayloadSchema]
LENGTH = 16_000
BOUND = 0.02
"""Seconds of processor time: the worst one was 1 ms. Others may have the caches of the processor at the same time."""
PLAIN = {
    "a*b": "a", "[a-z]+[0-9]": "a", "[A-Z]{3}-[0-9]{4}": "A", "a+@b+": "a", r"[^@]+@[^.]+\..+": "a@", "(a|b)*c": "ab",
    r"[0-9]+(\.[0-9]{1,2})?": "1", r"[0-9]{1,3}(\.[0-9]{1,3}){3}": "1.", r"\d{4}-\d{2}-\d{2}T.*": "1",
    r"\p{Lu}{2}\d*": "A", r"\i\c*": "a", "red|green|blue": "red", "[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}": "A",
    "[a-zA-Z]{1,8}(-[a-zA-Z0-9]{1,8})*": "a-", "([!-~]|[ ][!-~])*": "a ", "a{2,}(b[bc]{20}){0,50}": "ab",
    "a{16000}": "a", "": "a", r"[\-+.]*é": "-", "x{2,}y": "x",
}  # fmt: skip
NOT_PLAIN = [
    ".*x", ".*@.*", "a*a*b", "(a|a)*", "(x+x+)+y", "(red|rot)", r"[\w]+x", "(a{2,}){3}", "(a*)*", "(a+){2,}b",
    "[^é]*é", "(a", "a)", "a**", "[a", "[z-a]x*[^", "{", "a{x}", "(" * 30 + "a" + ")" * 30, "a" * 1001,
    "[a-z-[aeiou]]*a", r"\y", "a" * 501,
]  # fmt: skip


@pytest.mark.parametrize("pattern", PLAIN)
def test_plain_patterns(pattern: str, make_schema: MakeSchema) -> None:
    """A pattern that is plain takes no time, whatever the value: what repeats it, whole and with a last character that
    fits nothing."""
    assert is_plain_pattern(pattern)
    schema = make_schema(of_pattern(pattern))
    assert schema.is_quick(LENGTH)
    schema.fault(b"<a/>")
    unit = PLAIN[pattern]
    for end in ("", "!", "b", "é"):
        payload = f"<a>{unit * (LENGTH // len(unit))}{end}</a>".encode()
        start = time.thread_time()
        schema.fault(payload)
        assert time.thread_time() - start < BOUND
    assert schema.is_quick(LENGTH)


@pytest.mark.parametrize("pattern", NOT_PLAIN)
def test_patterns_that_are_not_plain(pattern: str) -> None:
    """Where a character allows two ways to go on, or the pattern cannot be read, it is not plain."""
    assert not is_plain_pattern(pattern)


def of_pattern(pattern: str) -> str:
    escaped = pattern.replace("&", "&amp;").replace("<", "&lt;")
    return (
        '<xs:element name="a"><xs:simpleType><xs:restriction base="xs:string">'
        f'<xs:pattern value="{escaped}"/></xs:restriction></xs:simpleType></xs:element>'
    )


def of_model(model: str, more: str = "") -> str:
    return f'<xs:element name="r"><xs:complexType>{model}</xs:complexType></xs:element>{more}'


def child(name: str, least: int = 1, most: int | str = 1) -> str:
    return f'<xs:element name="{name}" minOccurs="{least}" maxOccurs="{most}"/>'


def many(kind: str, parts: str, least: int = 1, most: int | str = 1) -> str:
    return f'<xs:{kind} minOccurs="{least}" maxOccurs="{most}">{parts}</xs:{kind}>'


MODELS = {
    "sequence": (of_model(many("sequence", child("a") + child("b", 0) + child("c", 0, "unbounded"))), True),
    "choice": (of_model(many("choice", child("a") + child("b"), 0, "unbounded")), True),
    "counted": (of_model(many("sequence", child("a", 2, 500) + child("b", 0, 50))), True),
    "all": (of_model(many("all", child("a", 0) + child("b", 0))), True),
    "other": (of_model(many("sequence", child("a", 0) + '<xs:any namespace="##other" minOccurs="0"/>')), True),
    "group": (
        of_model('<xs:group ref="g"/>', '<xs:group name="g"><xs:sequence>' + child("a") + "</xs:sequence></xs:group>"),
        True,
    ),
    "many of one name": (of_model(many("sequence", child("a", 0) * 25 + child("b"))), False),
    "two loops": (of_model(many("sequence", many("sequence", child("a", 0, "unbounded"), 0, "unbounded"))), False),
    "counted in a loop": (of_model(many("sequence", child("a") + child("b", 0, 5), 0, "unbounded")), False),
    "anything": (of_model(many("sequence", child("a", 0) + '<xs:any minOccurs="0"/>')), False),
    "base": (
        of_model(
            '<xs:complexContent><xs:extension base="t">' + many("sequence", child("a", 0)) + "</xs:extension>"
            "</xs:complexContent>",
            '<xs:complexType name="t">' + many("sequence", child("a", 0)) + "</xs:complexType>",
        ),
        False,
    ),
    "unique": (
        '<xs:element name="r"><xs:complexType>' + many("sequence", child("a", 0, "unbounded")) + "</xs:complexType>"
        '<xs:unique name="u"><xs:selector xpath="a"/><xs:field xpath="."/></xs:unique></xs:element>',
        False,
    ),
    "substitution": (
        of_model(many("sequence", child("a", 0)), '<xs:element name="h"/><xs:element name="s" substitutionGroup="h"/>'),
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_content_models(name: str, make_schema: MakeSchema) -> None:
    """A content model is plain if the next child allows one way to go on. Then no children take long. (Some of the
    others are refused by libxml2 too, and not all.)"""
    body, plain = MODELS[name]
    assert (
        is_plain([etree.fromstring(f'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">{body}</xs:schema>')])
        is plain
    )
    if plain:
        schema = make_schema(body)
        assert schema.is_quick(100)
        schema.fault(b"<r/>")
        for unit in ("<a/>", "<a/><b/>", "<b/><a/>", "<b/>", "<c/>"):
            payload = f"<r>{unit * (LENGTH // len(unit))}</r>".encode()
            start = time.thread_time()
            schema.fault(payload)
            assert time.thread_time() - start < BOUND


def test_long_payloads_are_not_quick(make_schema: MakeSchema) -> None:
    """16 KiB are the most that is quick."""
    schema = make_schema(MODELS["sequence"][0])
    assert (schema.is_quick(16 * 1024), schema.is_quick(16 * 1024 + 1)) == (True, False)


def test_a_slow_check_is_the_last_one(make_schema: MakeSchema, caplog: pytest.LogCaptureFixture) -> None:
    """After a check that took long the schema is not quick any more, and the log says so once."""
    values = "".join(f'<xs:enumeration value="v{number}"/>' for number in range(20_000))
    body = (
        f'<xs:simpleType name="v"><xs:restriction base="xs:string">{values}</xs:restriction></xs:simpleType>'
        + of_model(many("sequence", '<xs:element name="a" type="v" maxOccurs="unbounded"/>'))
    )
    schema = make_schema(body)
    assert schema.is_quick(LENGTH)
    payload = b"<r>" + b"<a>v19999</a>" * 1200 + b"</r>"
    assert schema.fault(payload) is None
    assert not schema.is_quick(1)
    assert schema.fault(payload) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize(
    ("body", "plain"),
    [
        ('{"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "string", "pattern": "^a+$"}}}', True),
        ('{"items": {"$ref": "#"}}', False),
        ('{"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}', False),
        ('{"items": {"uniqueItems": true}}', False),
        ('{"pattern": "((a{1,10}){1,10}){1,100}"}', False),
        ('{"format": "regex"}', False),
    ],
)
def test_json_schemas(body: str, plain: bool, make_schema: MakeSchema) -> None:
    """A JSON Schema is plain if it refers to itself in no circle, and compares no values."""
    assert make_schema(body).is_quick(100) is plain
