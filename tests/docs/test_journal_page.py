"""docs/journal.md is true and complete: its example is run, its tables are those of the code, every flag is named."""

import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from support.serving import PROJECT

from qs_storage.journal.log import frames, records
from qs_storage.journal.log.pool import FIRST_SEGMENT, LARGEST_SEGMENT, SMALLEST

PAGE = PROJECT / "docs" / "journal.md"
TEXT = PAGE.read_text(encoding="utf-8")


def rows(header: str) -> list[list[str]]:
    """The cells of the table that begins so."""
    table = TEXT.partition(f"| {header} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_the_example(run_console_blocks: Callable[..., int]) -> None:
    """The example prints what the page shows."""
    assert run_console_blocks(PAGE) > 8


def test_every_kind() -> None:
    """The page has a row for each kind of record, in the order of the numbers, with its name and all its fields."""
    told = [(int(number), name, fields) for number, name, fields, _ in rows("kind")]
    assert told == [(number, records.name_of(number), kind.LAYOUT) for number, kind in sorted(records.KINDS.items())]


def test_every_layout() -> None:
    """The fields of a kind have as many bytes as its struct and, before what follows that, its further fixed fields."""
    for number, kind in records.KINDS.items():
        told = 1 + sum(int(size) for size in re.findall(r"\((\d+)(?:, signed)?\)", kind.LAYOUT))
        origin = records._ORIGIN.size if "dead from" in kind.LAYOUT else 0
        assert told == kind.FORMAT.size + origin, records.name_of(number)
        assert kind.MORE is not kind.LAYOUT.endswith(")") or "ids (8 each)" in kind.LAYOUT


def test_every_field() -> None:
    """The bytes of a header, of a frame's and of a record's head add up."""
    sizes = {"of the header": frames._HEADER.size, "of a frame": frames.FRAME_HEAD, "of a record": records.HEAD.size}
    for name, size in sizes.items():
        assert sum(int(each) for _, each, _ in rows(f"field {name}") if each) == size
    empty = frames.pack_header(frames.Header(1, 1, 1, b"saltsalt"))
    assert len(empty.rstrip(b"\0")) <= frames._HEADER.size
    assert f"`{empty[:12].decode()}`, a newline" in TEXT


def test_every_size() -> None:
    """The page says how large segments are, and what the journal keeps of the disk."""
    assert f"has {FIRST_SEGMENT >> 20} MiB" in TEXT
    assert f"up to {LARGEST_SEGMENT >> 20} MiB" in TEXT
    assert f"segments of at most {LARGEST_SEGMENT >> 20} MiB" in TEXT
    assert f"but {SMALLEST >> 10} KiB at least" in TEXT
    at_rest = 4 * LARGEST_SEGMENT
    assert f"four times {LARGEST_SEGMENT >> 20} MiB at rest, some {at_rest // 10**6} MB" in " ".join(TEXT.split())
    assert at_rest < 80 * 10**6


@pytest.mark.parametrize("command", [[], ["check"], ["repair"]])
def test_every_flag(command: list[str]) -> None:
    """The page names every flag, and both commands."""
    done = subprocess.run(
        [sys.executable, str(PROJECT / "scripts" / "queue-journal.py"), *command, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", done.stdout):
        assert f"`{flag}" in TEXT, flag
    assert all(f"queue-journal.py {word}" in TEXT for word in ("check", "repair"))
