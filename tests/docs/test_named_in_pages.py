"""What pages name exists: files, tests, methods and records of the code, and commands."""

import importlib
import re
import shlex
from pathlib import Path

from support.serving import PROJECT

from qs_client.command_arguments import command_line
from qs_schemas import OPERATIONS
from qs_storage.journal.log import records

DOCS = PROJECT / "docs"
CLASSES = {
    "LogQueue": "queues.queue",
    "QueueState": "queues.state",
    "LogClaims": "queues.claims",
    "LogBatches": "queues.batches",
    "Ingester": "upkeep.ingest",
}
"""The modules, in the journal, of the classes that the table of states names."""


def section(page: Path, heading: str) -> str:
    """Returns what stands under a heading, up to the next one of its rank."""
    _, found, rest = page.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    assert found, f"{page.name} has no section {heading!r}"
    return rest.partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """Returns the cells of the only table of a text, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[1:]]


def test_the_map() -> None:
    """Each row of the map of CONTRIBUTING.md names files to open, and tests; all of them exist."""
    found = rows(section(PROJECT / "CONTRIBUTING.md", "To change something"))
    assert len(found) >= 20
    for what, opened, tests in found:
        for cell in (opened, tests):
            paths = re.findall(r"`([^`]+)`", cell)
            assert paths, what
            assert not [path for path in paths if not (PROJECT / path).exists()], what
        assert all(path.startswith("tests/") for path in re.findall(r"`([^`]+)`", tests)), what


def test_the_invariants() -> None:
    """The invariants of the journal are numbered without a gap, and each names tests that exist."""
    parts = re.split(r"^(\d+)\. ", section(DOCS / "journal.md", "What always holds"), flags=re.MULTILINE)[1:]
    numbers, texts = parts[::2], parts[1::2]
    assert list(map(int, numbers)) == list(range(1, len(numbers) + 1))
    assert len(numbers) > 10
    for number, text in zip(numbers, texts, strict=True):
        tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
        assert tests, number
        for path, name in tests:
            assert re.search(rf"^def {name}\(", (PROJECT / path).read_text(encoding="utf-8"), re.MULTILINE), (
                path,
                name,
            )


def test_the_states() -> None:
    """The table of states names operations, records and methods that exist, and every kind of record that a request
    writes."""
    text = section(DOCS / "architecture.md", "The states of a message")
    named: set[str] = set()
    for what, *_, written, code in rows(text):
        operations = re.findall(r"`([a-z]+-[a-z]+|subscribe)`", what.partition(" without ")[0])
        assert set(operations) <= OPERATIONS.keys() | {"max-receives"}, what
        named |= set(re.findall(r"\b[A-Z]{4,}\b", written))
        [(name, method)] = re.findall(r"`(\w+)\.(\w+)`", code)
        module = importlib.import_module(f"qs_storage.journal.{CLASSES[name]}")
        assert callable(getattr(getattr(module, name), method)), code
    kinds = {records.name_of(number) for number in records.KINDS}
    copied_by_compaction_or_about_queues = {"QUEUE", "KEY", "LETTER", "MOVED", "UNLINKED"}
    assert named == kinds - copied_by_compaction_or_about_queues


def test_commands_of_troubleshooting() -> None:
    """Each symptom comes with a command that shows it, and `qs` understands all that are named."""
    found = rows(section(DOCS / "operations.md", "Troubleshooting"))
    assert len(found) >= 12
    for symptom, look, what in found:
        assert re.search(r"`(qs|queue-server.py|queue-journal.py|journalctl|iostat) ", look), symptom
        for command in re.findall(r"`qs ([^`…]+)`", f"{look} {what}"):
            command_line(shlex.split(command.replace("MID", "1")))
