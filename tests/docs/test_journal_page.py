"""docs/journal.md is true and complete: its example is run, its tables are those of the code, every flag is named."""

import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from support.serving import PROJECT

from qs_storage.journal.log import frames, records
from qs_storage.journal.log.absent_record import Absent, Run
from qs_storage.journal.log.claim_records import Acked, Claim, Published, Staged, Unclaimed
from qs_storage.journal.log.retired_record import Retired
from qs_storage.journal.log.transfer_record import Transfer

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
    """The page has a row for each kind of record, with all its bytes."""
    sizes = {
        records.Kind.QUEUE: len(records.queue(1, 0, "")),
        records.Kind.PUSH: len(records.push(1, 0, 0, None, 0)),
        records.Kind.STATE: len(records.state(1, 0, 0, 0, False)),
        records.Kind.DELETE: len(records.delete(1, 0)),
        records.Kind.REMOVE: len(records.remove(1)),
        records.Kind.KEY: len(records.key_of(1, 0, records.NO_KEY, 0)),
        records.Kind.CHECKPOINT: len(records.checkpoint(0)),
        records.Kind.MOVED: len(records.moved(1, 0, 0, 0, False)),
        records.Kind.SHARED: len(records.shared(records.Shared(1, 0, 0, 0, False, 0, 0, 0))),
        records.Kind.CLAIM: len(Claim(1, 0, 0, 0, "", (1,)).body()),
        records.Kind.ACKED: len(Acked(1, 0, "", (1,)).body()),
        records.Kind.UNCLAIMED: len(Unclaimed(1, 0, "", (1,)).body()),
        records.Kind.STAGED: len(Staged(1, 0, 0, 0, 0, "", b"").body()),
        records.Kind.PUBLISHED: len(Published(1, 0, 0, "", ()).body()),
        records.Kind.TAKEN: len(records.taken(1, 0)),
        records.Kind.UNLINKED: len(records.unlinked(1, 0)),
        records.Kind.TRANSFER: len(Transfer(1, 0, 0, 0, 0, 0, False, None, b"").body()),
        records.Kind.RETIRED: len(Retired(1, (1,)).body()),
        records.Kind.REASON: len(records.reason(1, 0, 0, 0, False, "")),
        records.Kind.ABSENT: len(Absent((Run(1, 1, 1),)).body()),
    }
    told = {
        (int(number), name): 1 + sum(map(int, re.findall(r"\((\d+)\b", fields)))
        for number, name, fields, _ in rows("kind")
    }
    assert {kind for kind, _ in told} == set(records.Kind)
    assert told == {(kind.value, kind.name): size for kind, size in sizes.items()}


def test_every_field() -> None:
    """The bytes of a header, of a frame's and of a record's head add up."""
    for name, size in (("header", 64), ("frame", frames.FRAME_HEAD), ("record", records.HEAD.size)):
        found = rows(f"field of a {name}") if name != "header" else rows("field of the header")
        assert sum(int(size) for _, size, _ in found if size) == size
    empty = frames.pack_header(frames.Header(1, 1, 1, 1, b"saltsalt"))
    assert len(empty.rstrip(b"\0")) <= 64


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
