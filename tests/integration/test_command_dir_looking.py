"""`qs-dir ls` and purge: each state of a message, in each layout, beside the package dirq; and what qs-dir refuses."""

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from dirq.QueueSimple import QueueSimple as OriginalSimple
from support.clients.documents import new_queue, payloads, receive
from support.servers.processes import ServerProcess, Wire
from support.storage.directories import DIRQ, WITHIN, age, dir_tool, element, listed, original_dirq, states, tree
from support.storage.vsqs_original import original, output

from qs_server.main.qs_dir import main
from qs_server.main.qs_dir_flags import make_parser
from qs_storage.directories import FilesEngine
from qs_storage.engine import Draft, Durability
from qs_storage.tools.elements import LAYOUTS, layout_of


def queue_of_all_states(root: Path) -> Path:
    """A directory of the layout vsqs with a message of each state."""
    (root / "q").mkdir()
    now = time.time_ns() // 1000 - 500_000
    engine = FilesEngine(str(root), clock=lambda: now, durability=Durability.NONE)
    engine.queue("q").push([Draft(b"12")])
    engine.receive(["q"], 1, 60_000_000, 1000)
    engine.queue("q").push([Draft(b"123", delay=70_000_000)])
    engine.queue("q").push([Draft(b"1234")])
    engine.commit()
    engine.close()
    (root / "q" / "5.6").write_bytes(b"1")
    (root / "q" / f"{now + 10}.new").write_bytes(b"12345")
    return root / "q"


def test_ls(tmp_path: Path) -> None:
    """Each message has a line with its state, in the order of delivery; the last line counts. Nothing is changed."""
    path = queue_of_all_states(tmp_path)
    before = tree(path)
    lines = dir_tool("ls", path).stdout.splitlines()
    assert [re.split(" {2,}", line)[-1] for line in lines[1:2]] == ["expired"]
    assert re.match(r"\d+ +\d\.\d +2  in flight, 5\d\.\d s left$", lines[2])
    assert re.match(r"\d+ +\d\.\d +3  delayed, 6\d\.\d s left$", lines[3])
    assert re.match(r"\d+ +\d\.\d +4  ready$", lines[4])
    assert re.match(r"\d+ +\d\.\d +5  being written, for \d\.\d s$", lines[5])
    summary = "5 messages, 15 bytes: 1 ready, 1 in flight, 1 delayed, 1 expired, 1 being written; the oldest is "
    assert lines[6].startswith(summary)
    assert dir_tool("ls", path, "--summary").stdout.startswith(summary)
    found = listed(path)
    assert [each["state"] for each in found] == ["expired", "in-flight", "delayed", "ready", "being-written"]
    assert (found[0]["name"], found[0]["size"]) == ("5", 1)
    assert tree(path) == before


@pytest.mark.parametrize("layout", DIRQ)
def test_ls_dirq(path: Path, layout: str) -> None:
    """Elements with their sizes, ages and locks; nothing is changed."""
    queue = original_dirq(path, layout)
    names = [queue.add(element(layout, text)) for text in ("1", "12")]
    queue.lock(names[0])
    before = tree(path)
    found = listed(path)
    extra = len("a\tb\n") if layout == "dirq" else 0
    assert [(each["name"], each["state"], each["size"] - extra) for each in found] == [
        (names[0], "locked", 1),
        (names[1], "ready", 2),
    ]
    assert all(0 <= each["age"] < WITHIN for each in found)
    assert 0 <= found[0]["since"] < WITHIN
    assert "locked, for " in dir_tool("ls", path).stdout
    assert tree(path) == before


# -- purge ----------------------------------------------------------------------------------------------------------


def test_purge_vsqs(tmp_path: Path) -> None:
    """Old unfinished files go, expired messages come back and count as received; all others stay as they are."""
    path = queue_of_all_states(tmp_path)
    for name in ("7.new", ".x.tmp"):
        (path / name).write_bytes(b"")
        age(path / name, 700)
    assert dir_tool("purge", path, "--max-temp", 0).stdout == (
        f"{path}: 0 unfinished files removed, 1 expired message made ready\n"
    )
    assert (path / "5").exists()
    assert dir_tool("purge", path).stdout == f"{path}: 2 unfinished files removed, 0 expired messages made ready\n"
    assert states(path) == ["ready", "in-flight", "delayed", "ready", "being-written"]
    engine = FilesEngine(str(tmp_path), clock=lambda: 0, durability=Durability.NONE)
    assert engine.queue("q").get(5, peek=True, visibility=None).receives == 1
    engine.close()


def test_what_a_server_delays(path: Path) -> None:
    """An element that a server is adding with a delay is shown as being written, and purged when it is old."""
    original_dirq(path, "dirq")
    unfinished = path / "temporary/0123456789abcd.delayed"
    (unfinished / "locked").mkdir(parents=True)
    assert [(each["name"], each["state"]) for each in listed(path)] == [("temporary/0123456789abcd", "being-written")]
    age(unfinished, 400)
    assert dir_tool("purge", path).stdout == f"{path}: 1 unfinished element removed, 0 old locks removed\n"
    assert listed(path) == []


def test_a_directory_that_is_purged_while_it_is_looked_at(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout is recognized though the intermediate directory is gone when it is opened: it was empty."""
    (path / "00000001").mkdir(parents=True)
    scandir = os.scandir

    def purged(directory: str) -> Any:
        if directory.endswith("00000001"):
            os.rmdir(directory)
        return scandir(directory)

    monkeypatch.setattr(os, "scandir", purged)
    assert layout_of(str(path)) == "dirq-simple"


@pytest.mark.parametrize("layout", DIRQ)
def test_purge_dirq(path: Path, layout: str) -> None:
    """Elements older than --max-temp and --max-lock are removed, by default or as given; 0 keeps them."""
    queue = original_dirq(path, layout)
    old, young = (queue.add(element(layout, text)) for text in ("old", "young"))
    for name in (old, young):
        queue.lock(name)
    unfinished = path / ("temporary/0123456789abcd" if layout == "dirq" else f"{old[:8]}/0123456789abcd.tmp")
    unfinished.mkdir() if layout == "dirq" else unfinished.touch()
    age(unfinished, 400)
    age(path / old, 700)
    told = "{}: {} unfinished element{} removed, {} old lock{} removed\n"
    assert dir_tool("purge", path, "--max-temp", 0, "--max-lock", 0).stdout == told.format(path, 0, "s", 0, "s")
    assert dir_tool("purge", path, "--max-temp", 500, "--max-lock", 800).stdout == told.format(path, 0, "s", 0, "s")
    assert dir_tool("purge", path).stdout == told.format(path, 1, "", 1, "")
    assert not unfinished.exists()
    assert {each["name"]: each["state"] for each in listed(path)} == {old: "ready", young: "locked"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_purge_all(path: Path, layout: str) -> None:
    """--all removes every message, also those that somebody has; not without --yes where nobody can be asked."""
    dir_tool("pump", path, "--layout", layout, "--count", 3, "--no-sync")
    if layout == "vsqs":
        output(original("receive", path, 60))
    else:
        queue = original_dirq(path, layout)
        assert queue.lock(queue.first())
    refused = dir_tool("purge", path, "--all", check=2)
    assert refused.stderr == "qs-dir: --all removes every message: add --yes (on a terminal you would be asked)\n"
    assert len(listed(path)) == 3
    assert dir_tool("purge", path, "--all", "--yes").stdout.endswith(" removed, 3 messages removed\n") is (
        layout != "vsqs"
    )
    assert listed(path) == []


# -- what it refuses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["sink", "ls", "purge"])
def test_no_directory(tmp_path: Path, command: str) -> None:
    """A directory that is not there is not made: one line, exit code 1."""
    done = dir_tool(command, tmp_path / "none", check=1)
    assert done.stderr == f"qs-dir: {tmp_path}/none: No such file or directory\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["pump", "sink", "ls", "purge"])
def test_no_queue(tmp_path: Path, command: str) -> None:
    """A directory that holds other things, a file, and one of another layout are refused, and stay as they are."""
    other, file, simple = tmp_path / "other", tmp_path / "file", tmp_path / "simple"
    other.mkdir()
    (other / "letter.txt").touch()
    file.touch()
    OriginalSimple(str(simple)).add(b"x")
    before = tree(tmp_path)
    assert dir_tool(command, other, check=1).stderr.startswith(f"qs-dir: {other} holds no queue of a known layout (")
    assert dir_tool(command, file, check=1).stderr == f"qs-dir: {file}: Not a directory\n"
    assert dir_tool(command, simple, "--layout", "vsqs", check=1).stderr == (
        f"qs-dir: {simple} has the layout dirq-simple, not vsqs\n"
    )
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["mend", "q"],
        ["pump"],
        ["ls", "q", "--layout", "maildir"],
        ["pump", "q", "--count", "0"],
        ["pump", "q", "--rate", "0"],
        ["pump", "q", "--size", "-1"],
        ["pump", "q", "--size", str((1 << 30) + 1)],
        ["pump", "q", "--size", "99999999999", "--count", "1"],
        ["pump", "q", "--lines", "--size", "3"],
        ["pump", "q", "--schema", "body=string"],
        ["pump", "q", "--layout", "dirq", "--schema", "body"],
        ["pump", "q", "--layout", "dirq", "--schema", "body=text"],
        ["pump", "q", "--layout", "dirq", "--schema", "body=string,body=string"],
        ["pump", "q", "--layout", "dirq", "--schema", "body=table"],
        ["pump", "q", "--layout", "dirq", "--schema", "body=string?"],
        ["pump", "q", "--layout", "dirq", "--schema", "body=string,header=table"],
        ["pump", "q", "--layout", "dirq", "--capacity", "3"],
        ["sink", ".", "--layout", "dirq", "--visibility", "3"],
        ["sink", ".", "--wait", "soon"],
        ["sink", ".", "--wait", "nan"],
        ["purge", ".", "--layout", "vsqs", "--max-lock", "3"],
    ],
)
def test_dir_wrong_usage_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """Exit code 2, one line, and nothing is made. In this process, as there are so many."""
    monkeypatch.chdir(tmp_path)
    try:
        code: object = main(words)
    except SystemExit as end:
        code = end.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert re.fullmatch(r"qs-dir( \w+)?: .*\n", err)
    assert list(tmp_path.iterdir()) == []


def test_size_that_is_too_large(capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the bound, which itself is accepted."""
    with pytest.raises(SystemExit, match="2"):
        main(["pump", "q", "--size", "99999999999"])
    assert "--size: at most 1073741824 bytes (1 GiB) are possible, not 99999999999\n" in capsys.readouterr().err
    assert make_parser().parse_args(["pump", "q", "--size", "1073741824"]).size == 1 << 30


def test_payload_that_is_no_text(path: Path) -> None:
    """A string of the layout dirq is UTF-8: one line says how many were stored before, and what keeps any bytes."""
    done = dir_tool("pump", path, "--layout", "dirq", "--lines", stdin=b"ok\n\xff\n", check=1)
    assert done.stderr == (
        "qs-dir: a payload is not UTF-8, as a string has to be (--schema body=binary keeps any bytes); "
        "1 message was stored before\n"
    )


@pytest.mark.slow  # some 3 s: a server, and six commands
def test_queue_of_a_journal(tmp_path: Path) -> None:
    """Pump stores messages, and the server takes them in. Sink and purge refuse, and say what to do."""
    root = tmp_path / "root"
    server = ServerProcess(root)
    try:
        with Wire(server) as wire:
            wire.ask(new_queue("q"))
            for command in ("sink", "purge"):
                refused = dir_tool(command, root / "q", check=1)
                assert refused.stderr.startswith(f"qs-dir: a server is running on {root}, ")
                assert refused.stderr.endswith("`qs receive` and `qs export` take them out\n")
            assert "is the root of a server" in dir_tool("ls", root, check=1).stderr
            dir_tool("pump", root / "q", "--count", 1)
            assert payloads(wire.ask(receive("q", wait=WITHIN))) == ["1"]
    finally:
        assert server.stop() == 0
    assert "queue-journal.py export" in dir_tool("purge", root / "q", "--all", "--yes", check=1).stderr


def test_dir_help_says_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """Each help says how the command is used."""
    for words in ([], ["pump"], ["sink"], ["ls"], ["purge"]):
        with pytest.raises(SystemExit, match="0"):
            main([*words, "--help"])
        assert capsys.readouterr().out.startswith(" ".join(["usage: qs-dir", *words]))
    assert dir_tool("--version").stdout.startswith("qs ")
