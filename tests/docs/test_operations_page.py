"""docs/operations.md: an operator's steps, from the installation to the end, are run on a machine of the tests."""

import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.machine import Machine
from support.serving import PROJECT


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    (tmp_path / "machine").mkdir()
    opened = Machine(tmp_path / "machine")
    try:
        yield opened
    finally:
        opened.close()


def test_the_guide(machine: Machine, run_console_blocks: Callable[..., int]) -> None:
    """Each step does what the page shows; in the end nothing is left but the backups."""
    assert run_console_blocks(PROJECT / "docs" / "operations.md", on=machine) > 30
    left = {path.name for path in machine.folder.glob("*/*") if path.parent.name in ("etc", "opt", "var")}
    assert left == {"systemd", "sysusers.d", "lib", "backups"}
    assert not list((machine.folder / "etc").rglob("*.*s*"))
    assert {path.name for path in (machine.folder / "var").glob("*/*")} == {
        "qs-before",
        "qs-before-upgrade",
        "qs-monday",
    }


def test_the_extras() -> None:
    """The table of what to install has every extra but those for working on qs, README.md says what goes into
    requirements.txt, and no page names an extra that is not there."""
    extras = {*tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]}
    for page in (PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *(PROJECT / "docs").glob("*.md")):
        named = re.findall(r"(?:qsbus|'\.)\[([a-z,]+)\]", page.read_text())
        assert {each for names in named for each in names.split(",")} <= extras, page
    told = " ".join((PROJECT / "README.md").read_text().split())
    assert all(each in told for each in ("`requirements.txt`", "`qsbus`", "`qsbus[server]`"))
    rows = re.findall(r"^\| `qsbus\[.*?\|", (PROJECT / "docs" / "operations.md").read_text(), re.MULTILINE)
    assert set(re.findall(r"qsbus\[([a-z]+)\]", "".join(rows))) == extras - {"dev", "bench"}
