"""Schemas and payloads read nothing but the files of the directory of schemas, and open no connection."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qs_payloads import Checker, PayloadSchema, SchemaError, Schemas, find_schema

XS = 'xmlns:xs="http://www.w3.org/2001/XMLSchema"'
MONEY = f'<xs:schema {XS}><xs:simpleType name="money"><xs:restriction base="xs:int"/></xs:simpleType></xs:schema>'
ELEMENT = '<xs:element name="order" type="money"/>'


@pytest.fixture
def listener() -> Iterator[str]:
    """Yields the address of a port that must get no connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory of schemas, with a schema outside that could be used."""
    (tmp_path / "outside.xsd").write_text(MONEY)
    (tmp_path / "outside.json").write_text('{"type": "integer"}')
    (tmp_path / "schemas").mkdir()
    return tmp_path / "schemas"


def write(directory: Path, body: str, head: str = "") -> None:
    (directory / "order.xsd").write_text(f"{head}<xs:schema {XS}>{body}{ELEMENT}</xs:schema>")


@pytest.mark.parametrize("kind", ["include", "redefine", "import namespace='urn:x'"])
@pytest.mark.parametrize(
    "location",
    [
        "http://{listener}/money.xsd", "https://{listener}/money.xsd", "ftp://{listener}/money.xsd",
        "HTTP://{listener}/money.xsd", " http://{listener}/money.xsd", "//{listener}/money.xsd",
        "file://{outside}", "file:{outside}", "{outside}", "../outside.xsd", "x/../../outside.xsd",
        "%2e%2e/outside.xsd", "..%2foutside.xsd", "link.xsd", "folder/outside.xsd", "jar:file:{outside}",
    ],
)  # fmt: skip
def test_xsd_outside(directory: Path, listener: str, kind: str, location: str) -> None:
    """An XSD that refers to a URL, to an absolute path, through `..` or through a link that leads out is refused."""
    outside = directory.parent / "outside.xsd"
    (directory / "link.xsd").symlink_to(outside)
    (directory / "folder").symlink_to(directory.parent)
    written = location.format(listener=listener, outside=outside)
    write(directory, f'<xs:{kind} schemaLocation="{written}"/>')
    with pytest.raises(SchemaError, match=r"directory of the schemas|No such file"):
        find_schema(directory, "order").compile()
    schemas = Schemas(directory)
    assert any("order.xsd" in text for text in schemas.reload())
    assert "order" not in schemas.names


@pytest.mark.parametrize(
    "doctype",
    [
        '<!DOCTYPE x [<!ENTITY e SYSTEM "{outside}">]>',
        '<!DOCTYPE x SYSTEM "http://{listener}/x.dtd">',
        '<!DOCTYPE x [<!ENTITY % e SYSTEM "http://{listener}/x.dtd"> %e;]>',
    ],
)
def test_entities_of_an_xsd(directory: Path, listener: str, doctype: str) -> None:
    """An XSD with a DOCTYPE is refused, so that it has no entities; one that is included, too."""
    written = doctype.format(listener=listener, outside=directory.parent / "outside.xsd")
    (directory / "money.xsd").write_text(written + MONEY)
    write(directory, '<xs:include schemaLocation="money.xsd"/>')
    with pytest.raises(SchemaError, match=r"money\.xsd: has a DOCTYPE, which is refused"):
        find_schema(directory, "order")


def test_a_catalog(directory: Path, listener: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a catalog of the environment nor one that a document names leads anywhere else."""
    catalog = directory.parent / "catalog.xml"
    catalog.write_text(
        '<catalog xmlns="urn:oasis:names:tc:entity:xmlns:xml:catalog">'
        f'<system systemId="qs-schemas:///money.xsd" uri="file://{directory.parent}/outside.xsd"/></catalog>'
    )
    monkeypatch.setenv("XML_CATALOG_FILES", f"file://{catalog} http://{listener}/catalog.xml")
    head = f'<?oasis-xml-catalog catalog="http://{listener}/catalog.xml"?>'
    write(directory, '<xs:include schemaLocation="money.xsd"/>', head)
    (directory / "money.xsd").write_text(head + MONEY.replace("xs:int", "xs:date"))
    schema = find_schema(directory, "order")
    assert schema.fault(f"{head}<order>2024-01-01</order>".encode()) is None
    with_checker(schema, b"<order>2024-01-01</order>")


def with_checker(schema: PayloadSchema, payload: bytes) -> None:
    checker = Checker()
    try:
        assert checker.check(schema, [payload]) is None
    finally:
        checker.close()


def test_xsd_inside(directory: Path) -> None:
    """Files of the directory may include and import each other, from folders and back, in circles, and by links that
    stay inside; also files of another namespace that include others."""
    write(
        directory,
        '<xs:include schemaLocation="types/money.xsd"/><xs:import namespace="urn:x" schemaLocation="types/x.xsd"/>',
    )
    (directory / "types").mkdir()
    (directory / "real.xsd").write_text(MONEY)
    (directory / "types" / "my link.xsd").symlink_to("../real.xsd")
    (directory / "types" / "money.xsd").write_text(
        f'<xs:schema {XS}><xs:include schemaLocation="my%20link.xsd"/>'
        '<xs:include schemaLocation="../order.xsd"/></xs:schema>'
    )
    (directory / "types" / "x.xsd").write_text(
        f'<xs:schema {XS} targetNamespace="urn:x"><xs:include schemaLocation="./y.xsd"/></xs:schema>'
    )
    (directory / "types" / "y.xsd").write_text(
        f'<xs:schema {XS} targetNamespace="urn:x"><xs:element name="y" type="xs:int"/></xs:schema>'
    )
    schema = find_schema(directory, "order")
    assert schema.fault(b"<order>1</order>") is None
    assert schema.fault(b'<y xmlns="urn:x">1</y>') is None
    assert schema.fault(b'<y xmlns="urn:x">z</y>') is not None
    with_checker(schema, b"<order>1</order>")


def test_the_place_of_a_fault_in_an_included_file(directory: Path) -> None:
    """The text names the file that is wrong, and its line."""
    write(directory, '<xs:include schemaLocation="money.xsd"/>')
    (directory / "money.xsd").write_text(
        MONEY.replace("<xs:simpleType", "\n\n<xs:simpleType").replace("xs:int", "xs:no")
    )
    [text, _] = Schemas(directory).reload()
    assert text.startswith("money.xsd:3: ")


def test_payloads_load_nothing(directory: Path, listener: str) -> None:
    """A payload says where schemas are, and nobody looks; DTDs and entities neither."""
    (directory / "money.xsd").write_text(MONEY)
    write(directory, '<xs:include schemaLocation="money.xsd"/>')
    schema = find_schema(directory, "order")
    xsi = 'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'
    for at in (f"http://{listener}/x.xsd", str(directory.parent / "outside.xsd")):
        payload = f'<order {xsi} xsi:noNamespaceSchemaLocation="{at}" xsi:schemaLocation="urn:x {at}">1</order>'
        assert schema.fault(payload.encode()) is None
        with_checker(schema, payload.encode())
    # It would be told if it was read.
    (directory.parent / "outside.dtd").write_text("<!no DTD")
    for doctype in (
        f'SYSTEM "http://{listener}/x.dtd"',
        f'SYSTEM "file://{directory.parent}/outside.dtd"',
        f'SYSTEM "{directory.parent}/outside.dtd"',
        f'[<!ENTITY e SYSTEM "http://{listener}/e">]',
        f'[<!ENTITY % e SYSTEM "http://{listener}/e"> %e;]',
        f'[<!ENTITY % e SYSTEM "{directory.parent}/outside.dtd"> %e;]',
    ):
        assert "has a DOCTYPE" in str(schema.fault(f"<!DOCTYPE order {doctype}><order>1</order>".encode()))


@pytest.mark.parametrize(
    "reference",
    [
        "http://{listener}/x.json",
        "file://{outside}",
        "{outside}",
        "../outside.json",
        "link.json",
        "%2e%2e/outside.json",
    ],
)  # fmt: skip
def test_json_outside(directory: Path, listener: str, reference: str) -> None:
    """A JSON Schema that refers to anything outside the directory is refused."""
    outside = directory.parent / "outside.json"
    (directory / "link.json").symlink_to(outside)
    written = reference.format(listener=listener, outside=outside)
    (directory / "order.json").write_text(f'{{"$ref": "{written}"}}')
    assert any(text.startswith("order.json: ") or "link.json: " in text for text in Schemas(directory).reload())
    with pytest.raises(SchemaError):
        find_schema(directory, "order.json").compile()


def test_json_inside(directory: Path, make_schema: Callable[..., PayloadSchema]) -> None:
    """A `$ref` is a path within the directory, or the `$id` of a file in it."""
    (directory / "parts").mkdir()
    (directory / "parts" / "money.json").write_text('{"$ref": "../deep.json#/$defs/money"}')
    (directory / "deep.json").write_text('{"$defs": {"money": {"type": "integer"}}}')
    (directory / "named.json").write_text('{"$id": "https://example.com/named.json", "type": "string"}')
    (directory / "order.json").write_text(
        '{"$id": "https://example.com/order.json", "properties": {"a": {"$ref": "named.json"}}}'
    )
    (directory / "bill.json").write_text('{"properties": {"a": {"$ref": "parts/money.json"}}}')
    schemas = Schemas(directory)
    assert schemas.reload() == []
    assert schemas.get("order").fault(b'{"a": "x"}') is None
    assert schemas.get("order").fault(b'{"a": 1}') is not None
    assert schemas.get("bill").fault(b'{"a": 1}') is None
    assert schemas.get("bill").fault(b'{"a": "x"}') is not None


def test_files_that_are_none(directory: Path) -> None:
    """A folder and a pipe are named, and nothing waits for the pipe's writer; a name that is too long is too."""
    (directory / "folder.xsd").mkdir()
    os.mkfifo(directory / "pipe.xsd")
    (directory / f"{'n' * 101}.xsd").write_text(MONEY)
    texts = Schemas(directory).reload()
    assert len(texts) == 3
    assert "folder.xsd: " in texts[0]
    assert "at most 100 printable characters" in texts[1]
    assert texts[2] == "pipe.xsd: is not a regular file"
