"""The pages about running a server are true: their examples are run, their tables are those of the code.

They are operations, security, monitoring, the figures, the lifecycle record and the journal.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from support.servers.figures import ALERTS
from support.servers.processes import FAST, PROJECT, bus_serving, serving
from support.servers.systemd import Machine
from support.servers.tls import authority, tls_flags
from support.storage.engines import ManualClock

from qs_client import Figure, QueueClient
from qs_server.history.history import open_history
from qs_server.main.options import HistoryOptions
from qs_storage.journal.log import frames, records
from qs_storage.journal.log.pool import FIRST_SEGMENT, LARGEST_SEGMENT, SMALLEST
from qs_storage.shared import Event
from qs_web.metrics import BUS, FIGURES, QUEUES, TOTALS


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    (tmp_path / "machine").mkdir()
    opened = Machine(tmp_path / "machine")
    try:
        yield opened
    finally:
        opened.close()


def test_operations_page_guide(machine: Machine, run_console_blocks: Callable[..., int]) -> None:
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


def test_pages_name_every_extra() -> None:
    """The table of what to install has every extra but those for working on qs, README.md says what goes into
    requirements.txt, and no page names an extra that is not there."""
    extras = {*tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]}
    for page in (PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *(PROJECT / "docs").glob("*.md")):
        named = re.findall(r"(?:qsbus|'\.)\[([a-z,-]+)\]", page.read_text())
        assert {each for names in named for each in names.split(",")} <= extras, page
    told = " ".join((PROJECT / "README.md").read_text().split())
    assert all(each in told for each in ("`requirements.txt`", "`qsbus`", "`qsbus[server]`"))
    rows = re.findall(r"^\| `qsbus\[.*?\|", (PROJECT / "docs" / "operations.md").read_text(), re.MULTILINE)
    assert set(re.findall(r"qsbus\[([a-z-]+)\]", "".join(rows))) == extras - {"dev", "bench"}


SECURITY = PROJECT / "docs" / "security.md"


def test_security_page_example(run_console_blocks: Callable[..., int]) -> None:
    """The CA, the certificates, the access file, the server, the bus and the clients do what the page shows."""
    assert run_console_blocks(SECURITY) > 20


def test_security_page_makes_ca_with_five_commands(fenced_blocks: Callable[..., list[Any]]) -> None:
    """The first block makes the CA and the certificates, with as many commands of openssl as the page says."""
    first = fenced_blocks(SECURITY.read_text(encoding="utf-8"), "console")[0]
    assert first.body.count("$ openssl ") == 5


MONITORING = PROJECT / "docs" / "monitoring.md"
MONITORING_TEXT = MONITORING.read_text(encoding="utf-8")


def test_monitoring_page_examples(run_console_blocks: Callable[..., int]) -> None:
    """The commands print what the page shows."""
    assert run_console_blocks(MONITORING) > 8


def test_monitoring_page_explains_every_metric() -> None:
    """Each metric stands there with the text that Prometheus shows."""
    rows = dict(re.findall(r"^\| `(qs_\w+)` \| (.+) \|$", MONITORING_TEXT, re.MULTILINE))
    expected = {
        f"qs_{prefix}{name}": text.rstrip(".").lower()
        for prefix, texts in (("", {**TOTALS, **FIGURES, **QUEUES}), ("bus_", BUS))
        for name, text in texts.items()
    }
    assert {name: text.lower() for name, text in rows.items()} == expected


def test_monitoring_page_names_every_alert() -> None:
    """Each alert stands there, in the order of the file."""
    assert re.findall(r"^\| `(Qs\w+)` \|", MONITORING_TEXT, re.MULTILINE) == re.findall(
        r"- alert: (\w+)", ALERTS.read_text()
    )


SECTION = (PROJECT / "docs" / "protocol.md").read_text(encoding="utf-8").partition("\n#### Figures\n")[2]
TABLES = re.split(
    r"\nOf (?:the|each) [^\n]*:\n",
    SECTION.partition("\n## ")[0],
)
COMMON_FIGURES, SERVER_FIGURES, BUS_FIGURES, CONNECTION_FIGURES = (
    {
        name: set(re.findall(r"`(\w+)`", labels))
        for names, labels in re.findall(r"^\| (`[^|]*`) \| ([^|]*)\|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }
    for table in TABLES[1:]
)


DAY = 86_400


def answered(figures: Iterable[Figure]) -> dict[str, set[str]]:
    """The labels of each figure, by its name."""
    found: dict[str, set[str]] = {}
    for figure in figures:
        assert found.setdefault(figure.name, set(figure.labels)) == set(figure.labels), figure
    return found


OF_CONDITIONS = ("condition_let_through_total", "condition_kept_back_total")
"""Figures that a bus has only while a subscriber has a condition."""


def test_figures_of_server_and_bus(tmp_path: Path) -> None:
    """Server and bus answer exactly the figures of the page; those of each connection only on request."""
    with serving(tmp_path / "root", *FAST) as server, bus_serving(server) as bus:
        for process, own in ((server, SERVER_FIGURES), (bus, BUS_FIGURES)):
            with QueueClient("127.0.0.1", process.port) as client:
                client.server_stats()  # its own duration is known from the second time on
                expected = {**COMMON_FIGURES, **own}
                del expected["tls_certificate_expiry_time_seconds"]
                for absent in ("postgres_oldest_snapshot_seconds", *OF_CONDITIONS):
                    expected.pop(absent, None)
                assert answered(client.server_stats()) == expected
                assert answered(client.server_stats(connections=True)) == {**expected, **CONNECTION_FIGURES}


def test_figures_with_tls(tmp_path: Path) -> None:
    """With TLS there is the end of the certificate too: a year from when the tests have made it."""
    with (
        serving(tmp_path / "root", *FAST, *tls_flags()) as server,
        QueueClient("127.0.0.1", server.port, tls=str(authority().cert)) as client,
    ):
        client.server_stats()
        figures = client.server_stats()
    expected = {**COMMON_FIGURES, **SERVER_FIGURES}
    del expected["postgres_oldest_snapshot_seconds"]
    assert answered(figures) == expected
    values = {figure.name: figure.value for figure in figures}
    assert values["tls_certificate_expiry_time_seconds"] - values["start_time_seconds"] == pytest.approx(365 * DAY, DAY)


HISTORY = PROJECT / "docs" / "history.md"
HISTORY_TEXT = HISTORY.read_text(encoding="utf-8")


def history_names(header: str) -> list[str]:
    """The first cells of the table that begins so, without their quotes."""
    table = HISTORY_TEXT.partition(f"| {header} |")[2].partition("\n\n")[0]
    return re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)


def test_history_page_example(run_console_blocks: Callable[..., int]) -> None:
    """The example prints what the page shows."""
    assert run_console_blocks(HISTORY) > 3


def test_history_page_names_every_event() -> None:
    """The page has a row for each event, and no other."""
    assert sorted(history_names("event")) == sorted(get_args(Event))


def test_history_page_names_every_member(tmp_path: Path, fenced_blocks: Callable[..., list[Any]]) -> None:
    """The page has a row for each member of a line, and a column of Spark's schema, in the line's order."""
    history = open_history(HistoryOptions(str(tmp_path)), str(tmp_path / "root"), ManualClock())
    history.note("pushed", "q", 1, 2, 3, trace="00-4b-00-01")
    history.close()
    [path] = tmp_path.iterdir()
    line = json.loads(path.read_text())
    assert history_names("member") == list(line)
    [program] = fenced_blocks(HISTORY_TEXT, "python")
    schema = re.search(r'"(time BIGINT.*)"$', program.body, re.MULTILINE)
    assert schema is not None
    columns = dict(column.split() for column in schema[1].split(","))
    assert list(columns) == list(line)
    types = {int: {"BIGINT", "INT"}, str: {"STRING"}}
    assert all(columns[name] in types[type(value)] for name, value in line.items())


def test_history_page_gives_defaults() -> None:
    """The page gives the defaults."""
    default = HistoryOptions("")
    assert f"| `--history-size BYTES` | {default.size} |" in HISTORY_TEXT
    assert f"| `--history-age SECONDS` | {default.age:g} |" in HISTORY_TEXT


JOURNAL = PROJECT / "docs" / "journal.md"
JOURNAL_TEXT = JOURNAL.read_text(encoding="utf-8")


def journal_rows(header: str) -> list[list[str]]:
    """The cells of the table that begins so."""
    table = JOURNAL_TEXT.partition(f"| {header} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_journal_page_example(run_console_blocks: Callable[..., int]) -> None:
    """The example prints what the page shows."""
    assert run_console_blocks(JOURNAL) > 8


def test_journal_page_has_every_kind_of_record() -> None:
    """The page has a row for each kind of record, in the order of the numbers, with its name and all its fields."""
    told = [(int(number), name, fields) for number, name, fields, _ in journal_rows("kind")]
    assert told == [(number, records.name_of(number), kind.LAYOUT) for number, kind in sorted(records.KINDS.items())]


def test_journal_page_layouts_have_size_of_struct() -> None:
    """The fields of a kind have as many bytes as its struct and, before what follows that, its further fixed fields."""
    for number, kind in records.KINDS.items():
        told = 1 + sum(int(size) for size in re.findall(r"\((\d+)(?:, signed)?\)", kind.LAYOUT))
        origin = records._ORIGIN.size if "dead from" in kind.LAYOUT else 0
        assert told == kind.FORMAT.size + origin, records.name_of(number)
        assert kind.MORE is not kind.LAYOUT.endswith(")") or "ids (8 each)" in kind.LAYOUT


def test_journal_page_fields_add_up() -> None:
    """The bytes of a header, of a frame's and of a record's head add up."""
    sizes = {"of the header": frames._HEADER.size, "of a frame": frames.FRAME_HEAD, "of a record": records.HEAD.size}
    for name, size in sizes.items():
        assert sum(int(each) for _, each, _ in journal_rows(f"field {name}") if each) == size
    empty = frames.pack_header(frames.Header(1, 1, 1, b"saltsalt"))
    assert len(empty.rstrip(b"\0")) <= frames._HEADER.size
    assert f"`{empty[:12].decode()}`, a newline" in JOURNAL_TEXT


def test_journal_page_gives_segment_sizes() -> None:
    """The page says how large segments are, and what the journal keeps of the disk."""
    assert f"has {FIRST_SEGMENT >> 20} MiB" in JOURNAL_TEXT
    assert f"up to {LARGEST_SEGMENT >> 20} MiB" in JOURNAL_TEXT
    assert f"segments of at most {LARGEST_SEGMENT >> 20} MiB" in JOURNAL_TEXT
    assert f"but {SMALLEST >> 10} KiB at least" in JOURNAL_TEXT
    at_rest = 4 * LARGEST_SEGMENT
    assert f"four times {LARGEST_SEGMENT >> 20} MiB at rest, some {at_rest // 10**6} MB" in " ".join(
        JOURNAL_TEXT.split()
    )
    assert at_rest < 80 * 10**6


@pytest.mark.parametrize("command", [[], ["check"], ["repair"]])
def test_journal_page_names_every_flag(command: list[str]) -> None:
    """The page names every flag, and both commands."""
    done = subprocess.run(
        [sys.executable, str(PROJECT / "scripts" / "queue-journal.py"), *command, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", done.stdout):
        assert f"`{flag}" in JOURNAL_TEXT, flag
    assert all(f"queue-journal.py {word}" in JOURNAL_TEXT for word in ("check", "repair"))
