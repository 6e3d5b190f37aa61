"""The schemas of a directory: their names, and reading them again."""

from pathlib import Path

import pytest

from qs_payloads import Checker, NoSuchSchemaError, PayloadFault, Schemas, find_schema

XSD = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
  <xs:element name="order">
    <xs:complexType>
      <xs:sequence>
        <xs:element name="total" type="xs:decimal"/>
        <xs:element name="note" type="xs:string" minOccurs="0"/>
      </xs:sequence>
    </xs:complexType>
  </xs:element>
</xs:schema>
"""


def test_names(tmp_path: Path) -> None:
    """A schema has the name of its file without suffix, and with it; a name of two files is refused, and says so."""
    (tmp_path / "order.xsd").write_text(XSD)
    (tmp_path / "bill.xsd").write_text(XSD)
    (tmp_path / "bill.json").write_text("{}")
    (tmp_path / ".hidden.xsd").write_text(XSD)
    (tmp_path / "notes.txt").write_text("")
    schemas = Schemas(tmp_path)
    assert schemas.reload() == []
    assert schemas.names == ["bill.json", "bill.xsd", "order"]
    assert schemas.get("order") is schemas.get("order.xsd")
    assert schemas.get("bill.json").file == "bill.json"
    with pytest.raises(NoSuchSchemaError, match=r"^bill\.xsd and bill\.json are both there: name one of them$"):
        schemas.get("bill")
    for name in ("ordre", "../order", ".hidden", "", "notes.txt", "o" * 1000):
        with pytest.raises(NoSuchSchemaError, match=r"there are: bill\.json, bill\.xsd, order$"):
            schemas.get(name)


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """A schema whose file is there but cannot be used is told as that, and not as one that is not there."""
    (tmp_path / "order.xsd").write_text("<broken")
    schemas = Schemas(tmp_path)
    assert len(schemas.reload()) == 1
    for name in ("order", "order.xsd"):
        with pytest.raises(NoSuchSchemaError, match=r"^order\.xsd cannot be used: the log of the server says why$"):
            schemas.get(name)
    with pytest.raises(NoSuchSchemaError, match=r"^there is no schema 'order\.json'; there are: none$"):
        schemas.get("order.json")
    (tmp_path / "order.xsd").unlink()
    assert schemas.reload() == []
    with pytest.raises(NoSuchSchemaError, match=r"there are: none$"):
        schemas.get("order")


def test_a_directory_without_schemas_is_named(tmp_path: Path) -> None:
    """A directory without any schema is named, because it may be the wrong one."""
    with pytest.raises(NoSuchSchemaError) as raised:
        find_schema(tmp_path, "order")
    assert str(raised.value) == f"there is no schema 'order': the directory {tmp_path} has none"


def test_reload_keeps_what_does_not_compile_any_more(tmp_path: Path) -> None:
    """A broken file keeps its earlier version, a new one is there, a removed one is gone."""
    file = tmp_path / "order.xsd"
    file.write_text(XSD)
    (tmp_path / "gone.xsd").write_text(XSD)
    schemas = Schemas(tmp_path)
    assert schemas.reload() == []
    earlier = schemas.get("order")
    file.write_text(XSD.replace("xs:decimal", "xs:nothing"))
    (tmp_path / "new.xsd").write_text(XSD)
    (tmp_path / "gone.xsd").unlink()
    [text] = schemas.reload()
    assert text.startswith("order.xsd:5: ")
    assert schemas.names == ["new", "order"]
    assert schemas.get("order") is earlier
    file.write_text(XSD.replace("xs:decimal", "xs:int"))
    assert schemas.reload() == []
    assert schemas.get("order").fault(b"<order><total>1.5</total></order>") is not None


def test_the_process_says_the_same(tmp_path: Path) -> None:
    """A check here and one by a checker find the same fault; the checker says of which payload."""
    (tmp_path / "order.xsd").write_text(XSD)
    schemas = Schemas(tmp_path)
    schemas.reload()
    order = schemas.get("order")
    assert order.is_quick(1024)
    assert not order.is_quick(1024 * 1024)
    good, bad = b"<order><total>1.5</total></order>", b"<order>\n<total>x</total></order>"
    fault = PayloadFault(2, "total", "'x' is not a valid value of the type 'xs:decimal'")
    assert order.fault(good) is None
    assert order.fault(bad) == fault
    checker = Checker()
    try:
        assert checker.check(order, [good, good]) is None
        assert checker.check(order, [good, bad, good]) == (1, fault)
    finally:
        checker.close()
