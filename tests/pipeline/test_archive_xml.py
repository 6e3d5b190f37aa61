"""XML payloads as typed columns: schema files of three kinds, payloads that fit and payloads that do not.

What is found wrong with a payload is tested without Spark: tests/unit/pipeline/test_documents.py."""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from lxml import etree
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from support.spark.queues import SparkQueue, asked, rows

from qs_pipeline.archive import archive
from qs_pipeline.command import main
from qs_pipeline.documents import read_schema
from qs_pipeline.errors import SchemaMismatchError, UsageError

XSD = """\
<?xml version="1.0"?>
<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
  <xs:element name="order"><xs:complexType>
    <xs:sequence>
      <xs:element name="id" type="xs:int"/>
      <xs:element name="item" type="xs:string" minOccurs="0" maxOccurs="unbounded"/>
    </xs:sequence>
    <xs:attribute name="at" type="xs:dateTime"/>
  </xs:complexType></xs:element>
  %s
</xs:schema>
"""
DDL = "id INT, item ARRAY<STRING>, _at TIMESTAMP"
RECURSIVE = """\
<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
  <xs:element name="part" type="P"/>
  <xs:complexType name="P"><xs:sequence><xs:element name="part" type="P" minOccurs="0"/></xs:sequence></xs:complexType>
</xs:schema>
"""


def file(tmp_path: Path, text: str) -> str:
    place = tmp_path / "schema"
    place.write_text(text)
    return str(place)


@pytest.mark.long  # seconds, on two cores
def test_read_schema_from_xsd_ddl_and_json(spark: SparkSession, tmp_path: Path) -> None:
    """An XSD, DDL and JSON of the same document are the same, with every part nullable."""
    expected = StructType.fromDDL(DDL)
    texts = [XSD % "", f"\ufeff{DDL}\n", expected.json()]
    assert [read_schema(spark, file(tmp_path, text)).simpleString() for text in texts] == [expected.simpleString()] * 3
    assert "false" not in read_schema(spark, file(tmp_path, XSD % "")).json()


@pytest.mark.long  # seconds, on two cores
def test_read_schema_of_xsd_with_several_elements(spark: SparkSession, tmp_path: Path) -> None:
    """Which one payloads are has to be said."""
    schema = file(
        tmp_path,
        XSD % '<xs:element name="other"><xs:complexType><xs:attribute name="a"/></xs:complexType></xs:element>',
    )
    assert read_schema(spark, schema, root="order").names == ["id", "item", "_at"]
    with pytest.raises(SchemaMismatchError, match="--xml-root"):
        read_schema(spark, schema)
    with pytest.raises(SchemaMismatchError, match="no element 'ordre', but order, other"):
        read_schema(spark, schema, root="ordre")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello world, this is no schema",
        "{",
        '{"type":"struct"}',
        "<a/>",
        "<xs:schema",
        "id INT, _corrupt_record STRING",
        "INT",
        "a STRUCT<id: INT, ID: STRING>",
        "`n:id` INT",
        RECURSIVE,
    ],
)
def test_read_schema_refuses_what_is_none(spark: SparkSession, tmp_path: Path, text: str) -> None:
    """The file is named, in one line, and nothing of Java's. Also when elements could not be told apart by their
    columns, and when Spark has no columns for an XSD that is valid."""
    with pytest.raises(SchemaMismatchError) as told:
        read_schema(spark, file(tmp_path, text))
    assert str(tmp_path) in str(told.value)
    assert "\tat " not in str(told.value)


@pytest.mark.long  # seconds, on two cores
def test_read_schema_of_unreadable_file(spark: SparkSession, tmp_path: Path) -> None:
    """No file, or one that is not text."""
    with pytest.raises(UsageError, match="No such file"):
        read_schema(spark, str(tmp_path / "none"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(UsageError, match="binary"):
        read_schema(spark, str(tmp_path / "binary"))


GOOD = {
    '<order at="2025-06-30T12:00:00Z"><id>1</id><item>a</item><item>b</item></order>': (1, ["a", "b"]),
    "<?xml version='1.0'?>\n<!-- c --><order><id>2</id><unknown/></order>": (2, None),
    "<order xmlns='urn:x'><item>&lt;ä&gt;</item></order>": (None, ["<ä>"]),
}
BAD: dict[str | bytes, str] = {
    "<order><id>1</id>": "not well-formed: Premature end of data",
    "<order><id>one</id></order>": "order/id is 'one', which its column of the type int cannot hold",
    "<order><id>1<!-- c -->2</id></order>": "Spark cannot read it",
    "<order><id>1</id><id>2</id></order>": "order/id is repeated",
    "<order><id>1</id></order><order/>": "not well-formed: Extra content at the end",
    "no XML at all": "not well-formed: Start tag expected",
    "": "not well-formed: Document is empty",
    b"\xff\xfe<order/>": "not well-formed: Start tag expected",
    '<!DOCTYPE o [<!ENTITY e SYSTEM "file:///etc/hostname">]><order><id>1</id><item>&e;</item></order>': "a DOCTYPE",
}


@pytest.mark.long  # ten seconds, on two cores
def test_archive_keeps_payloads_that_do_not_fit(
    queue: SparkQueue, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Payloads that fit have a document, the others are in a column of their own, and every body is as it was."""
    queue.push(*GOOD, *BAD)
    server = f"{queue.client.host}:{queue.client.port}"
    to = tmp_path / "archive"
    schema = file(tmp_path, DDL)
    assert main(["archive", queue.name, "--to", str(to), "--xml-schema", schema, "--server", server]) == 0
    found = rows(to)
    assert [row["body"] for row in found] == [
        each.encode() if isinstance(each, str) else each for each in (*GOOD, *BAD)
    ]
    documents = [row["document"] for row in found]
    assert [(each["id"], each["item"]) for each in documents[: len(GOOD)]] == list(GOOD.values())
    assert f"{documents[0]['_at']:%Y-%m-%d %H:%M}" == "2025-06-30 12:00"
    assert documents[len(GOOD) :] == [None] * len(BAD)
    assert [row["_corrupt_record"] for row in found[: len(GOOD)]] == [None] * len(GOOD)
    assert [(row["body"], told) for row, told in zip(found[len(GOOD) :], BAD.values(), strict=True)
            if told not in row["_corrupt_record"]] == []  # fmt: skip
    assert asked(to, "SELECT sum(document.id) FROM TABLE WHERE _corrupt_record IS NULL") == [(3,)]
    capsys.readouterr()
    assert main(["archive", queue.name, "--to", str(to), "--server", server]) == SchemaMismatchError.exit_code
    assert "begun with other columns (document:" in capsys.readouterr().err


FITS = """<n:order at="2025-06-30T12:00:00Z" xmlns:n="urn:o"><n:id>1</n:id><n:item>a</n:item></n:order>"""
MISFITS = {
    FITS.replace("n:order", "n:ordre"): "the root is '{urn:o}ordre', not '{urn:o}order'",
    FITS.replace("urn:o", "urn:x"): "the root is '{urn:x}order', not '{urn:o}order'",
    FITS.replace("<n:id>1</n:id>", ""): "not valid: Element '{urn:o}item': This element is not expected",
    FITS.replace("<n:id>", "<n:id>1</n:id><n:id>"): "not valid: Element '{urn:o}id': This element is not expected",
    FITS.replace("<n:item>a", "<n:more/><n:item>a"): "not valid: Element '{urn:o}more': This element is not expected",
    FITS + FITS: "not well-formed: Extra content at the end of the document",
    FITS + "garbage": "not well-formed: Extra content at the end of the document",
    FITS.replace(">1<", ">one<"): "not valid: Element '{urn:o}id': 'one' is not a valid value",
    FITS.replace("12:00:00Z", "12:00"): "not valid: Element '{urn:o}order', attribute 'at'",
}


@pytest.mark.parametrize("body", ["binary", "string"])
def test_archive_says_why_payload_is_not_valid(queue: SparkQueue, tmp_path: Path, body: str) -> None:
    """Each has the reason in `_corrupt_record` and no document, and its body as it was; prefixes do not matter."""
    queue.push(FITS, *MISFITS)
    head = '<xs:schema targetNamespace="urn:o" elementFormDefault="qualified" '
    schema = read_schema(queue.spark, file(tmp_path, (XSD % "").replace("<xs:schema ", head)))
    to, client = tmp_path / "archive", queue.client
    archive(queue.spark, [queue.name], str(to), host=client.host, port=client.port, schema=schema, body=body)
    fits, *found = rows(to)
    assert (fits["document"]["id"], fits["document"]["item"]) == (1, ["a"])
    assert fits["_corrupt_record"] is None
    assert [row["body"] for row in found] == [each.encode() if body == "binary" else each for each in MISFITS]
    assert [row["document"] for row in found] == [None] * len(MISFITS)
    told = [row["_corrupt_record"] for row in found]
    assert [each for each, reason in zip(told, MISFITS.values(), strict=True) if reason not in (each or "")] == []


# -- a real feed ----------------------------------------------------------------------------------------------------

FIELDS = ("groupId", "artifactId", "version", "scope", "type", "classifier", "id", "name", "value", "phase")
ELEMENTS = {
    "project", "parent", "dependency", "exclusion", "plugin", "execution", "configuration", "property", "mapping",
    "resource", "profile", "repository", "organization", "scm", "mailingList", "contributor", "developer", "license",
}  # fmt: skip


def feed() -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Elements of the project descriptions in the jars that pyspark brings: as they stand there, each with the text of
    those of its children that are FIELDS. One in which a field is there twice is left out."""
    parser = etree.XMLParser(resolve_entities=False, no_network=True, remove_comments=True, remove_pis=True)
    for jar in sorted(Path(pyspark.__file__).parent.glob("jars/*.jar")):
        with zipfile.ZipFile(jar) as archived:
            for name in archived.namelist():
                if name.endswith("pom.xml"):
                    yield from _elements(etree.fromstring(archived.read(name), parser))


def _elements(root: Any) -> Iterator[tuple[bytes, dict[str, Any]]]:
    for element in root.iter():
        if etree.QName(element).localname in ELEMENTS and len(element):
            children = [(etree.QName(child).localname, child) for child in element]
            fields = [(name, child) for name, child in children if name in FIELDS]
            if len(dict(fields)) == len(fields) and not any(len(child) for _, child in fields):
                texts = {name: (child.text or "").strip() or None for name, child in fields}
                yield etree.tostring(element, with_tail=False), {name: texts.get(name) for name in FIELDS}


@pytest.mark.slow
def test_archive_of_real_feed(queue: SparkQueue, tmp_path: Path) -> None:
    """More than 10,000 documents that people wrote: each archived once, its payload to the byte, its fields as lxml
    reads them. Takes 15 s."""
    sent = list(feed())
    assert len(sent) >= 10_000
    mids = [
        mid
        for start in range(0, len(sent), 1000)
        for mid in queue.push(*(body for body, _ in sent[start : start + 1000]))
    ]
    schema = read_schema(queue.spark, file(tmp_path, ", ".join(f"{name} STRING" for name in FIELDS)))
    client, to = queue.client, tmp_path / "archive"
    done = archive(queue.spark, [queue.name], str(to), host=client.host, port=client.port, batch=4000, schema=schema)
    assert done.total == len(sent)
    found = rows(to)
    assert [row["mid"] for row in found] == mids
    assert [row["body"] for row in found] == [body for body, _ in sent]
    assert [row["_corrupt_record"] for row in found if row["_corrupt_record"] is not None] == []
    wrong = [
        (body, row["document"]) for row, (body, fields) in zip(found, sent, strict=True) if row["document"] != fields
    ]
    assert wrong == []
    assert list(client.list_messages(queue.name, state="all")) == []
    counts = asked(to, "SELECT document.scope, count(*) FROM TABLE GROUP BY 1")
    assert dict(counts)["test"] == sum(fields["scope"] == "test" for _, fields in sent)
    assert json.dumps(counts)
