"""Orders, and their schema, for tests of queues that take nothing else."""

from pathlib import Path

XSD = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="order"><xs:complexType><xs:sequence>
<xs:element name="total" type="xs:decimal"/></xs:sequence></xs:complexType></xs:element></xs:schema>"""
VALID = "<order><total>12.50</total></order>"
INVALID = "<order><total>much</total></order>"


def schemas_in(directory: Path) -> Path:
    """Makes a directory of schemas, in which `order` is that of an order, and returns it."""
    directory.mkdir()
    (directory / "order.xsd").write_text(XSD, encoding="utf-8")
    return directory
