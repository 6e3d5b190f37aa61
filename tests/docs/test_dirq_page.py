"""docs/dirq.md is true: its examples are run, its signatures are those of the code, its layouts are what is on disk."""

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.console import Block
from support.serving import PROJECT

from qs_storage import dirq

PAGE = PROJECT / "docs" / "dirq.md"
TEXT = PAGE.read_text(encoding="utf-8")


Blocks = Callable[[str, str], list[Block]]


def test_the_examples(fenced_blocks: Blocks, tmp_path: Path) -> None:
    """The programs print what the page shows below them."""
    programs, printed = fenced_blocks(TEXT, "python"), fenced_blocks(TEXT, "text")[:-1]
    assert len(programs) == len(printed) == 2
    for program, expected in zip(programs, printed, strict=True):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program.body],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert (done.stdout, done.stderr) == (expected.body, "")


def test_the_signatures(fenced_blocks: Blocks) -> None:
    """The page gives those of the code."""
    told = fenced_blocks(TEXT, "text")[-1].body
    found = []
    for made in (dirq.QueueSimple, dirq.Queue):
        bare = [p.replace(annotation=p.empty) for p in inspect.signature(made).parameters.values()]
        found.append(f"{made.__name__}{inspect.Signature(bare)}")
    assert told.splitlines() == [line.replace("mappingproxy({})", "{}") for line in found]


def test_the_imports() -> None:
    """Each import that the page tells to write works."""
    shown = re.findall(r"\| `(from qs_storage\.[^`]+)` \|", TEXT)
    assert len(shown) == 5
    for line in shown:
        exec(line, {})


def shape(path: str) -> str:
    return re.sub(r"\b[0-9a-f]{14}\b", "ELEMENT", re.sub(r"\b[0-9a-f]{8}\b", "DIRECTORY", path))


def told(queue: str) -> set[str]:
    """The shapes of the paths in the page's table."""
    table = TEXT.partition(f"| in a directory of `{queue}` |")[2].partition("\n\n")[0]
    return {shape(path) for row in table.splitlines() for path in re.findall(r"`([^`]+)`", row.split("|")[1])}


def found(path: Path) -> set[str]:
    paths = (Path(above) / name for above, directories, files in os.walk(path) for name in [*directories, *files])
    return {shape(str(one.relative_to(path))) for one in paths}


def test_the_layout_of_queue_simple(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else than what the table says is there, in the middle of an addition too, and all of that."""
    queue = dirq.QueueSimple(tmp_path, sync=False)
    queue.lock(queue.add(b""))
    during: list[set[str]] = []

    def link(old: str, new: str) -> None:
        during.append(found(tmp_path))
        os.link(old, new)

    monkeypatch.setattr(queue._disk, "link", link)
    queue.add(b"")
    assert during == [told("QueueSimple")]


def test_the_layout_of_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of an addition and of a removal, the table names all paths that are there, and no others."""
    queue = dirq.Queue(tmp_path, schema={"body": "string"}, sync=False)
    names = [queue.add({"body": ""}) for _ in range(2)]
    assert all(map(queue.lock, names))
    during: set[str] = set()

    def rename(old: str, new: str) -> None:
        during.update(found(tmp_path))
        os.rename(old, new)
        during.update(found(tmp_path))

    monkeypatch.setattr(queue._disk, "rename", rename)
    queue.add({"body": ""})
    queue.remove(names[0])
    parts = re.compile(r"(temporary|obsolete)(/ELEMENT/.*)?")
    assert {one for one in during if not parts.fullmatch(one)} == told("Queue")
