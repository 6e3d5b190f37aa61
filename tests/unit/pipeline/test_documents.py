"""Payloads and XSD files as tasks and the driver see them, without a Spark."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from qs_pipeline.document_check import Requirements, check_payloads, checker
from qs_pipeline.errors import PipelineError, SchemaMismatchError, UsageError
from qs_pipeline.xml_parsing import Xsd, read_xsd

XSD = '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" %s>\n%s</xs:schema>'
ORDER = """<xs:element name="order"><xs:complexType><xs:sequence>
  <xs:element name="id" type="xs:int"/>
  <xs:element name="item" type="xs:int" minOccurs="0" maxOccurs="unbounded"/>
</xs:sequence></xs:complexType></xs:element>
<xs:element name="other" type="xs:int"/>"""


def columns(required: str = "", **kinds: DataType) -> str:
    """Returns what documents fill, as JSON; one column may be NOT NULL."""
    return StructType([StructField(name, kind, name != required) for name, kind in kinds.items()]).json()


NUMBERS = columns(id=IntegerType(), item=ArrayType(IntegerType()))


def xsd(tmp_path: Path, text: str = ORDER, attributes: str = "") -> Xsd:
    """An XSD in a file, read."""
    (tmp_path / "a b.xsd").write_text(XSD % (attributes, text))
    return read_xsd(str(tmp_path / "a b.xsd"))


def misfit(rules: Requirements, body: str | bytes) -> str | None:
    return checker(rules).check(body.encode() if isinstance(body, str) else body)[0]


SYNTAX: list[tuple[str | bytes, str]] = [
    ("<order><id>1</id></order><order/>", "not well-formed: Extra content at the end of the document, line 1"),
    ("<order><id>1</id></order>\n and more", "not well-formed: Extra content"),
    ("<order><id>1</id>", "not well-formed: Premature end"),
    ("no XML", "not well-formed: Start tag expected"),
    ("", "not well-formed: Document is empty"),
    (b"<order><id>\xe4</id></order>", "not well-formed: Invalid bytes"),
    ("<order>" + "<x>" * 5000, "not well-formed: Excessive depth"),
    ('<!DOCTYPE o [<!ENTITY e SYSTEM "file:///etc/hostname">]><order><id>&e;</id></order>', "a DOCTYPE, which is"),
    ('<?xml version="1.0"?> <!-- c --> <!DOCTYPE o [<!ENTITY e "1">]><order><id>&e;</id></order>', "a DOCTYPE"),
]


@pytest.mark.parametrize(("body", "reason"), SYNTAX)
@pytest.mark.parametrize("validated", [True, False])
def test_parse_requires_one_document(tmp_path: Path, body: str | bytes, reason: str, validated: bool) -> None:
    """With any schema, a payload that is not a single XML document does not fit, and no entity is expanded."""
    rules = Requirements(NUMBERS, xsd=xsd(tmp_path) if validated else None)
    assert reason in (misfit(rules, body) or "fits")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("<ordre><id>1</id></ordre>", "the root is 'ordre', not 'order'"),
        ("<other>1</other>", "the root is 'other', not 'order'"),
        ('<order xmlns="urn:x"><id>1</id></order>', "Element '{urn:x}order': No matching global declaration"),
        ("<order><item>1</item></order>", "Element 'item': This element is not expected. Expected is ( id )"),
        ("<order/>", "Element 'order': Missing child element(s). Expected is ( id )"),
        ("<order><id>1</id><id>1</id></order>", "Element 'id': This element is not expected"),
        ("<order><id>1</id><more/></order>", "Element 'more': This element is not expected"),
        ("<order more='1'><id>1</id></order>", "The attribute 'more' is not allowed"),
        ("<order><id>one</id></order>", "Element 'id': 'one' is not a valid value of the atomic type 'xs:int'"),
        ("<order><id>" + "x" * 5000 + "</id></order>", "…"),
        ("\ufeff<?xml version='1.0'?><!-- c --><order><id>1</id><item> 2</item></order>\n", None),
    ],
)
def test_parse_validates_by_xsd(tmp_path: Path, body: str, reason: str | None) -> None:
    """An XSD validates the root, missing, repeated and superfluous elements, and values: the first fault is told, in
    less than 600 characters."""
    told = misfit(Requirements(NUMBERS, "order", xsd(tmp_path)), body)
    assert (told is None) if reason is None else (told is not None and reason in told and len(told) < 600)


def test_parse_ignores_schema_that_payload_names(tmp_path: Path) -> None:
    """A payload that names a schema of its own is validated by ours alone."""
    (tmp_path / "own.xsd").write_text(XSD % ("", '<xs:element name="order" type="xs:string"/>'))
    hint = f'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:noNamespaceSchemaLocation="{tmp_path}/own.xsd"'
    assert "is not a valid value" in (
        misfit(Requirements(NUMBERS, xsd=xsd(tmp_path)), f"<order {hint}><id>a</id></order>") or ""
    )


def test_parse_many_faults_in_linear_time(tmp_path: Path) -> None:
    """400,000 values that are not valid are a matter of a second; it was minutes in libxml2's other way."""
    body = "<order><id>1</id>" + "<item>b</item>" * 400_000 + "</order>"
    assert "'b' is not a valid value" in (misfit(Requirements(NUMBERS, xsd=xsd(tmp_path)), body) or "")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("<o><ID>1</ID><n:item xmlns:n='urn:x'>1</n:item><item>2</item><more/><more/></o>", None),
        ("<o><id>1</id><sub><id>2</id></sub></o>", None),
        ("<o><id>1</id><Id>2</Id></o>", "o/Id is repeated, and its column holds one"),
        ("<o><id>1</id><sub/><sub/></o>", "o/sub is repeated"),
        ("<o><id>1</id><sub><id>1</id><id>1</id></sub></o>", "o/sub/id is repeated"),
        ("<o><id>1</id><map><a>1</a><b>2</b></map></o>", None),
        ("<o><id>1</id><map><a>1</a><a>2</a></map></o>", "o/map/a is repeated"),
        ("<o/>", "o lacks the element id, whose column is NOT NULL"),
        ("<o><id> </id></o>", "o/id is empty, and its column is NOT NULL"),
    ],
)
def test_check_compares_document_with_columns(body: str, reason: str | None) -> None:
    """A value without room in its column, and a missing one that is NOT NULL, do not fit; elements without a column are
    left out."""
    inside = StructType([StructField("id", IntegerType())])
    kinds = columns(
        "id", id=IntegerType(), item=ArrayType(StringType()), sub=inside, map=MapType(StringType(), IntegerType())
    )
    told = misfit(Requirements(kinds), body)
    assert told == reason if reason is None else reason in (told or "fits")


def test_check_required_attributes() -> None:
    """An attribute that is NOT NULL has to be there, with whatever prefix."""
    rules = Requirements(columns("_at", _at=StringType()))
    assert misfit(rules, "<o at='1'/>") is None
    assert misfit(rules, "<o n:at='1' xmlns:n='urn:x'/>") is None
    assert misfit(rules, "<o/>") == "o lacks the attribute at, whose column is NOT NULL"


@pytest.mark.parametrize(
    ("root", "body", "fits"),
    [
        (None, "<anything/>", True),
        ("o", "<o xmlns='urn:x'/>", True),
        ("{urn:x}o", "<n:o xmlns:n='urn:x'/>", True),
        ("{urn:x}o", "<o/>", False),
        ("o", "<O/>", False),
    ],
)
def test_parse_requires_named_root(root: str | None, body: str, fits: bool) -> None:
    """Without an XSD any root fits, unless one is named, with or without its namespace."""
    assert (misfit(Requirements(NUMBERS, root), body) is None) == fits


def test_check_names_doubtful_values() -> None:
    """Values that Spark may not read are no misfit here: Spark decides."""
    rules = Requirements(columns(id=IntegerType(), f=DoubleType(), d=DateType(), _at=IntegerType(), s=StringType()))
    cases = {
        "<o><id>2147483648</id></o>": "o/id is '2147483648', which its column of the type int cannot hold",
        "<o><f>INF</f></o>": "o/f is 'INF'",
        "<o><d>2025-01-01Z</d></o>": "o/d is '2025-01-01Z'",
        "<o at='x'/>": "o, attribute at is 'x'",
        "<o><id><x/></id></o>": "o/id has elements",
        "<o at=' 1 '><id>-2147483648</id><f>NaN</f><d>2025-01-01</d><s><x/></s><id2>x</id2></o>": None,
    }
    for body, doubt in cases.items():
        found = checker(rules).check(body.encode())
        assert found[0] is None
        assert (found[1] is None) if doubt is None else doubt in (found[1] or "")


def test_check_payloads_of_column(tmp_path: Path) -> None:
    """Each gets its verdict, in order, also what is null; the checker is made once in a process."""
    rules = Requirements(NUMBERS, "order", xsd(tmp_path))
    found = check_payloads(pa.array([b"<order><id>1</id></order>", b"<a/>", None], pa.binary()), rules)
    assert [each["misfit"] is None for each in found.to_pylist()] == [True, False, False]
    assert checker(rules) is checker(Requirements(NUMBERS, "order", xsd(tmp_path)))


# -- XSD files ------------------------------------------------------------------------------------------------------

INCLUDING = """<xs:include schemaLocation="sub%20dir/parts.xsd"/>
<xs:import namespace="urn:t" schemaLocation="sub%20dir/types.xsd"/>
<xs:element name="order"><xs:complexType><xs:sequence>
  <xs:element name="id" type="part"/><xs:element name="x" type="t:T"/>
</xs:sequence></xs:complexType></xs:element>"""
PART = '<xs:simpleType name="%s"><xs:restriction base="%s"/></xs:simpleType>'


def test_read_xsd_with_included_files(tmp_path: Path) -> None:
    """Files that an XSD includes are read once, at the start, from beside the file that names them: tasks have them
    without a file."""
    folder = tmp_path / "sub dir"
    folder.mkdir()
    files = {
        "parts.xsd": XSD % ("", '<xs:include schemaLocation="deeper.xsd"/>' + PART % ("part", "deep")),
        "deeper.xsd": XSD % ("", '<xs:include schemaLocation="parts.xsd"/>' + PART % ("deep", "xs:int")),
        "types.xsd": XSD % ('targetNamespace="urn:t"', PART % ("T", "xs:date") + '<xs:element name="not-ours"/>'),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    found = xsd(tmp_path, INCLUDING, 'xmlns:t="urn:t"')
    for path, _ in found.files:
        Path(path).unlink()
    assert found.elements == ("order",)
    assert len(found.files) == 4
    rules = Requirements(columns(id=StringType(), x=StringType()), "order", found)
    assert misfit(rules, "<order><id>1</id><x>2025-01-01</x></order>") is None
    assert "'one' is not a valid value" in (misfit(rules, "<order><id>one</id><x>2025-01-01</x></order>") or "")
    assert "'soon' is not a valid value" in (misfit(rules, "<order><id>1</id><x>soon</x></order>") or "")


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (
            '<xs:include schemaLocation="http://127.0.0.1:9/x.xsd"/>',
            SchemaMismatchError,
            "line 2: http://127.0.0.1:9/x",
        ),
        ('<xs:import namespace="u" schemaLocation="//127.0.0.1/x"/>', SchemaMismatchError, "is not read from the"),
        ('<xs:redefine schemaLocation="ftp://127.0.0.1/x"/>', SchemaMismatchError, "put a copy beside the XSD"),
        ('<xs:include schemaLocation="none.xsd"/>', UsageError, "none.xsd: No such file"),
        ('<xs:element name="a" type="b"/>', SchemaMismatchError, "a b.xsd, line 2: this is no valid XSD 1.0"),
        ("<xs:elemen/>", SchemaMismatchError, "this is no valid XSD 1.0"),
        ("<xs:element", SchemaMismatchError, "not well-formed"),
        ('<xs:import namespace="urn:t" schemaLocation="a%20b.xsd"/>', SchemaMismatchError, "line 2"),
    ],
)
def test_read_xsd_says_what_is_wrong(tmp_path: Path, text: str, kind: type[PipelineError], said: str) -> None:
    """The error says what is wrong with the XSD and where; nothing is fetched."""
    with pytest.raises(kind) as told:
        xsd(tmp_path, text)
    assert said in str(told.value)
    assert str(tmp_path) in str(told.value)


def test_read_xsd_refuses_doctype(tmp_path: Path) -> None:
    """Nor is another document an XSD."""
    for text, said in {"<!DOCTYPE a [<!ENTITY e 'x'>]><a/>": "DOCTYPE", "<a/>": "its root is 'a'"}.items():
        (tmp_path / "x").write_text(text)
        with pytest.raises(SchemaMismatchError, match=said):
            read_xsd(str(tmp_path / "x"))
