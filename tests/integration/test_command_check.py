"""`qs check`: files against a schema, without a server."""

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qs_client import command

Run = Callable[..., tuple[int, str, str]]
XSD = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
  <xs:element name="order"><xs:complexType><xs:sequence>
    <xs:element name="total" type="xs:decimal"/>
  </xs:sequence></xs:complexType></xs:element>
</xs:schema>"""
GOOD, BAD = "<order><total>1.5</total></order>", "<order>\n\n<total>x</total></order>"
REASON = "'x' is not a valid value of the type 'xs:decimal'"


@pytest.fixture
def qs(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs qs in a folder with payloads and a directory `schemas`: its exit code, stdout and stderr."""
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "order.xsd").write_text(XSD)
    (tmp_path / "schemas" / "bill.json").write_text('{"required": ["total"]}')
    (tmp_path / "good.xml").write_text(GOOD)
    (tmp_path / "bad.xml").write_text(BAD)
    (tmp_path / "bill.json").write_text("\n{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QS_SCHEMAS", raising=False)

    def run(*argv: str) -> tuple[int, str, str]:
        code = command.main(argv)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_valid_and_not(qs: Run) -> None:
    """Each file has a line, also after one that is not valid or is not there; then the exit code is 1."""
    where = ("--schema", "order", "--schemas", "schemas")
    assert qs("check", "good.xml", *where) == (0, "good.xml: valid\n", "")
    code, out, err = qs("check", "bad.xml", "none.xml", "good.xml", *where)
    assert out == f"bad.xml:3: element 'total': {REASON}\ngood.xml: valid\n"
    assert (code, err) == (1, "qs: none.xml: No such file or directory\n")
    assert qs("check", "bill.json", "--schema", "bill", "--schemas", "schemas") == (
        1, 'bill.json:2: "total" is a required property\n', ""
    )  # fmt: skip


@pytest.mark.parametrize(
    "name", ["order", "order.xsd", "schemas/order.xsd", "./schemas/order", "{cwd}/schemas/order.xsd"]
)
def test_where_the_schema_is(qs: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is looked for in QS_SCHEMAS, else in the current folder; a path is a path."""
    given = name.format(cwd=os.getcwd())
    if "/" not in name:
        assert qs("check", "good.xml", "--schema", given)[0] == 2
        monkeypatch.setenv("QS_SCHEMAS", "schemas")
    assert qs("check", "good.xml", "--schema", given) == (0, "good.xml: valid\n", "")
    if "/" not in name:
        monkeypatch.delenv("QS_SCHEMAS")
        monkeypatch.chdir("schemas")
        assert qs("check", "../good.xml", "--schema", given) == (0, "../good.xml: valid\n", "")


def test_standard_input(qs: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file named - is standard input. Programs get JSON."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(BAD.encode())))
    where = ("--schema", "order", "--schemas", "schemas")
    assert qs("check", "-", *where) == (1, f"standard input:3: element 'total': {REASON}\n", "")
    code, out, _ = qs("check", "bad.xml", "good.xml", "--json", *where)
    assert (code, [json.loads(line) for line in out.splitlines()]) == (
        1,
        [
            {"file": "bad.xml", "valid": False, "line": 3, "element": "total", "reason": REASON},
            {"file": "good.xml", "valid": True},
        ],
    )


def test_no_such_schema(qs: Run, tmp_path: Path) -> None:
    """A slip names the schemas that are there; what does not compile says why. Both are wrong usage, exit code 2."""
    code, out, err = qs("check", "good.xml", "--schema", "ordre", "--schemas", "schemas")
    assert (code, out, err) == (2, "", "qs: there is no schema 'ordre'; there are: bill, order\n")
    (tmp_path / "schemas" / "bad.xsd").write_text(XSD.replace("xs:decimal", "xs:no"))
    code, out, err = qs("check", "good.xml", "--schema", "bad", "--schemas", "schemas")
    assert (code, out, err.startswith("qs: bad.xsd:3: ")) == (2, "", True)
    assert qs("check", "good.xml", "--schema", "order", "--schemas", "nowhere")[::2] == (
        2, "qs: nowhere: No such file or directory\n"
    )  # fmt: skip
    with pytest.raises(SystemExit, match="2"):
        qs("check", "good.xml")
