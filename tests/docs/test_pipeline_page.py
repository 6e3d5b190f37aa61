"""`docs/pipeline.md` is true: its five commands give an archive and a report, with a real Spark; its table of
faults."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType
from support.servers.processes import PROJECT
from support.spark.queues import SHORT_LIVED_JVM

from qs_pipeline.document_check import Requirements, checker
from qs_pipeline.errors import NoJavaError
from qs_pipeline.interpreters import find_java
from qs_pipeline.xml_parsing import read_xsd

PAGE = PROJECT / "docs" / "pipeline.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.fixture
def _java(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        find_java()
    except NoJavaError as error:
        pytest.skip(f"THE COMMANDS OF docs/pipeline.md ARE NOT TESTED: {error}")
    monkeypatch.setenv("JDK_JAVA_OPTIONS", SHORT_LIVED_JVM)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_java")
def test_five_commands(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run_console_blocks: Callable[..., int],
    fenced_blocks: Callable[..., list[Any]],
) -> None:
    """One of them installs what is installed here. Takes 40 s: Spark starts twice."""
    assert run_console_blocks(PAGE) == 4
    monkeypatch.chdir(tmp_path / "console")
    example = fenced_blocks(TEXT, "python")[0].body
    exec(compile(example, PAGE.name, "exec"), {})
    assert capsys.readouterr().out.strip() == example.rpartition("#")[2].strip() == "[(1000,)]"
    assert "<html" in Path("report/index.html").read_text()


ORDER = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" %s>
<xs:element name="order"><xs:complexType><xs:sequence>
<xs:element name="id" type="xs:int"/><xs:element name="item" type="xs:string" minOccurs="0"/>
</xs:sequence></xs:complexType></xs:element></xs:schema>"""
COLUMNS = StructType([StructField("id", IntegerType(), False), StructField("item", StringType())]).json()
FAULTS = [
    ("<order><id>1</id></order>x", "not XML"),
    ("<!DOCTYPE order><order><id>1</id></order>", "a DOCTYPE"),
    ("<ordre><id>1</id></ordre>", "another root"),
    ("<order/>", "an element or attribute is missing"),
    ("<order><id>1</id><id>1</id></order>", "an element is repeated"),
    ("<order><id>1</id><more/></order>", "an element or attribute is there"),
    ("<order><id>one</id></order>", "a value is not of its type"),
]


def faults_of_the_page(begin: str) -> tuple[str, ...]:
    """The cells of the row for a fault: with an XSD, with DDL."""
    (row,) = re.findall(rf"^\| {begin}[^|]*\|([^|]*)\|([^|]*)\|$", TEXT, re.MULTILINE)
    return tuple(row)


@pytest.mark.parametrize(("payload", "fault"), FAULTS)
def test_faults_and_what_is_said_of_them(tmp_path: Path, payload: str, fault: str) -> None:
    """With both kinds of schema, `_corrupt_record` has the texts of the table."""
    by_xsd, by_columns = faults_of_the_page(fault)
    (tmp_path / "order.xsd").write_text(ORDER % "")
    for said, rules in (
        (by_xsd, Requirements(COLUMNS, "order", read_xsd(str(tmp_path / "order.xsd")))),
        (by_columns if "the same" not in by_columns else by_xsd, Requirements(COLUMNS, "order")),
    ):
        reason = " / ".join(filter(None, checker(rules).check(payload.encode()))) or "fits"
        assert reason in said or any(reason.startswith(quoted) for quoted in re.findall("`([^`]+)`", said))


def test_another_namespace_is_told_with_both(tmp_path: Path) -> None:
    """The message is that of the page's table."""
    (tmp_path / "order.xsd").write_text(ORDER % 'targetNamespace="urn:o" elementFormDefault="qualified"')
    xsd = read_xsd(str(tmp_path / "order.xsd"))
    reason, _ = checker(Requirements(COLUMNS, xsd.tag("order"), xsd)).check(b"<order xmlns='urn:x'><id>1</id></order>")
    assert f"`{reason}`" in faults_of_the_page("another namespace")[0]
