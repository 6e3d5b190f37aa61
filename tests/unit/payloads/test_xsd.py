"""Payloads and XSDs: what is told of a payload that is not valid, in any encoding; no DOCTYPE; the first fault only."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from qs_payloads import PayloadFault, PayloadSchema, find_schema

ORDER = """<xs:element name="order"><xs:complexType><xs:sequence>
<xs:element name="total" type="xs:decimal"/>
<xs:element name="items" minOccurs="0"><xs:complexType><xs:sequence>
  <xs:element name="item" minOccurs="0" maxOccurs="unbounded"><xs:complexType><xs:sequence>
    <xs:element name="price" type="xs:int"/></xs:sequence><xs:attribute name="n" type="xs:int"/></xs:complexType>
  </xs:element></xs:sequence></xs:complexType></xs:element>
</xs:sequence></xs:complexType></xs:element>"""
GOOD = "<order>\n<total>1.5</total></order>"
BAD = "<order>\n<total>x</total></order>"
FAULT = PayloadFault(2, "total", "'x' is not a valid value of the type 'xs:decimal'")


@pytest.fixture(scope="module")
def order(tmp_path_factory: pytest.TempPathFactory) -> PayloadSchema:
    file = tmp_path_factory.mktemp("schemas") / "order.xsd"
    file.write_text(f'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">{ORDER}</xs:schema>')
    return find_schema(file.parent, "order")


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        (BAD, "line 2, element 'total': 'x' is not a valid value of the type 'xs:decimal'"),
        ("<order><x/></order>", "line 1, element 'x': this element is not expected. Expected is ( total )"),
        ("<order/>", "line 1, element 'order': missing child element(s). Expected is ( total )"),
        (
            "<order><total>1</total>\n<items><item><price>1</price></item>\n<item n='x'/></items></order>",
            "line 3, element 'items/item[2]/@n': 'x' is not a valid value of the type 'xs:int'",
        ),
        (
            "<order><total>1</total>\n<items><item><price>1</price></item>\n<item><price>x</price></item></items></order>",
            "line 3, element 'items/item[2]/price': 'x' is not a valid value of the type 'xs:int'",
        ),
        ("<bill/>", "line 1, element 'bill': no matching global declaration available for the validation root"),
        ("", "is empty: an XML document is wanted"),
        ("two apples", "line 1: is not well-formed XML, column 1: start tag expected, '<' not found"),
        ("<order>\n<total>", "line 2: is not well-formed XML, column 8: premature end of data in tag total line 2"),
        ("<a></b>", "line 1: is not well-formed XML, column 8: opening and ending tag mismatch: a line 1 and b"),
        (
            "<order>a\0b</order>",
            "line 1: is not well-formed XML, column 9: invalid character: Char 0x0 out of allowed range",
        ),
        ("<x:order/>", "line 1: is not well-formed XML, column 9: namespace prefix x on order is not defined"),
        ("<order>&x;</order>", "line 1: is not well-formed XML, column 11: entity 'x' not defined"),
        ("<!DOCTYPE order>\n" + GOOD, "line 1: has a DOCTYPE, which is refused"),
        ("<?a?>\n<!-- b -->\n<!DOCTYPE order [<!ENTITY x 'y'>]>" + GOOD, "line 3: has a DOCTYPE, which is refused"),
    ],
)  # fmt: skip
def test_what_is_told(order: PayloadSchema, payload: str, told: str) -> None:
    """The text has the line, the element and the reason, and no namespaces in braces."""
    assert str(order.fault(payload.encode())) == told


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "iso-8859-1"])
def test_encodings(order: PayloadSchema, encoding: str) -> None:
    """An encoding that the document declares, or that its first bytes show, changes nothing, and hides no DOCTYPE."""
    head = f'<?xml version="1.0" encoding="{encoding.removesuffix("-sig")}"?><!--\xe9-->'
    assert order.fault((head + GOOD).encode(encoding)) is None
    assert order.fault((head + BAD).encode(encoding)) == FAULT
    doctype = "<!DOCTYPE order [<!ENTITY x '1'>]>"
    fault = order.fault(f"{head}\n{doctype}{GOOD}".encode(encoding))
    assert fault is not None
    assert fault == PayloadFault(2, "", "has a DOCTYPE, which is refused")


def test_wrong_bytes(order: PayloadSchema) -> None:
    """Bytes that are none of the encoding, and an encoding that there is not, are told."""
    assert "not well-formed" in str(order.fault(b"<order><total>\xff</total></order>"))
    assert "not well-formed" in str(order.fault(b'<?xml version="1.0" encoding="none"?><order/>'))


def test_namespaces_are_left_out(make_schema: Callable[..., PayloadSchema]) -> None:
    """An element of a namespace is told by its name."""
    schema = make_schema(
        '<xs:element name="a"><xs:complexType><xs:sequence><xs:any namespace="urn:x" processContents="skip"/>'
        "</xs:sequence></xs:complexType></xs:element>"
    )
    fault = schema.fault(b'<a><b xmlns="urn:y"/></a>')
    assert fault is not None
    assert (fault.element, "{urn:y}" in fault.reason) == ("b", False)


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        ("<p:order xmlns:p='urn:a'/>", "element 'order': no matching global declaration"),
        ("<order><p:x xmlns:p='urn:a'/></order>", "element 'x': this element is not expected"),
        (
            ("<order><total>1</total><items><item><price>1</price></item>\n"
            "<item><x xmlns='urn:a'/></item></items></order>"),
            "line 2, element 'items/item[2]/x': this element is not expected",
        ),
        (
            "<order><total>1</total><items><!-- a --><item><price>1</price></item>\n<x xmlns='urn:a'/></items></order>",
            "line 2, element 'items/x': this element is not expected",
        ),
        ("<order><total>1</total><items xmlns:p='urn:a' p:n='1'/></order>", "element 'items/@n': the attribute"),
    ],
)  # fmt: skip
def test_faults_of_elements_in_namespaces(order: PayloadSchema, payload: str, told: str) -> None:
    """An element is found by its place, whatever the prefixes of the payload mean, and wherever they are declared."""
    assert told in str(order.fault(payload.encode()))


def test_prefixes_that_change(tmp_path: Path) -> None:
    """An element is told apart from those beside it that have its name under another prefix."""
    (tmp_path / "a.xsd").write_text(
        '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" targetNamespace="urn:a" elementFormDefault="qualified">'
        '<xs:element name="a"><xs:complexType><xs:sequence><xs:element name="b" type="xs:int" maxOccurs="9"/>'
        "</xs:sequence></xs:complexType></xs:element></xs:schema>"
    )
    schema = find_schema(tmp_path, "a")
    for payload in (
        "<p:a xmlns:p='urn:a'><p:b>1</p:b><q:b xmlns:q='urn:a'>1</q:b>\n<p:b>x</p:b></p:a>",
        "<p:a xmlns:p='urn:a'><p:b>1</p:b><p:b>1</p:b>\n<q:b xmlns:q='urn:a'>x</q:b></p:a>",
        "<a xmlns='urn:a'><b>1</b><b>1</b>\n<b>x</b></a>",
    ):
        assert str(schema.fault(payload.encode())).startswith("line 2, element 'b[3]': 'x' is not"), payload


@pytest.mark.parametrize("count", [10, 3000, 30_000])
def test_first_fault_of_many(order: PayloadSchema, count: int) -> None:
    """However many faults there are, the first one is found, and soon: libxml2 would look for all."""
    items = "<item>\n<price>1</price></item>" * 5 + "<item>\n<price>x</price></item>" * count
    fault = order.fault(f"<order><total>1</total><items>{items}</items></order>".encode())
    assert fault == PayloadFault(7, "items/item[6]/price", "'x' is not a valid value of the type 'xs:int'")


def test_a_fault_far_behind(order: PayloadSchema) -> None:
    """A fault behind the first bytes is found too, and one in well-formedness goes before it."""
    items = "<item>\n<price>1</price></item>" * 5000
    whole = f"<order><total>1</total><items>{items}<item><price>x</price></item></items></order>"
    assert order.fault(whole.encode()) == PayloadFault(
        5001, "items/item[5001]/price", "'x' is not a valid value of the type 'xs:int'"
    )
    assert "not well-formed" in str(order.fault(whole[:-1].encode()))


def test_long_values_are_cut(order: PayloadSchema) -> None:
    """A reason is a line of bounded length, whatever the value."""
    fault = order.fault(b"<order><total>" + b"x\n" * 100_000 + b"</total></order>")
    assert fault is not None
    assert len(str(fault)) < 600
    assert "\n" not in str(fault)


def test_several_threads_at_once(order: PayloadSchema) -> None:
    """Each thread gets the fault of its own payload."""
    found: list[bool] = []

    def check(value: int) -> None:
        for number in range(200):
            text = f"x{value}y{number}"
            fault = order.fault(f"<order><total>{text}</total></order>".encode())
            found.append(fault is not None and fault.reason.startswith(f"'{text}' "))
            found.append(order.fault(GOOD.encode()) is None)

    threads = [threading.Thread(target=check, args=[value]) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(found), all(found)) == (1600, True)
