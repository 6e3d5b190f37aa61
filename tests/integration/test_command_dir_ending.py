"""Tests how qs-dir ends: Ctrl-C, full disks, readers that go away, wrong usage; and what it shows on a terminal."""

import contextlib
import errno
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.faults import small_disk
from support.storage.directories import COMMAND, WITHIN, dir_tool, finish, listed, start, states

from qs_server.main.qs_dir import main
from qs_storage import vsqs
from qs_storage.tools.elements import LAYOUTS
from qs_testing.programs import until


def test_sink_ends(path: Path) -> None:
    """Without a message for --wait seconds it ends: with 3, if there were to be more."""
    path.mkdir()
    assert dir_tool("sink", path, "--wait", 0).stderr == "took 0 messages, 0 bytes\n"
    dir_tool("pump", path, "--count", 2)
    assert dir_tool("sink", path, "--wait", 0.1, "--count", 3, check=3).stderr.startswith("took 2 messages")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_interrupted_at_full_speed(path: Path, layout: str) -> None:
    """Ctrl-C leaves nothing half done: all that pump says it has stored is there, and nothing else."""
    pump = start("pump", path, "--layout", layout, "--no-sync", stdin=subprocess.DEVNULL)
    until(path.exists, path.parent)
    dir_tool("sink", path, "--layout", layout, "--count", 20, "--no-sync")
    code, _, err = finish(pump, signal.SIGINT)
    assert code == 130
    stored = re.match(r"stored (\d+) messages", err)
    assert stored is not None
    assert states(path) == ["ready"] * (int(stored[1]) - 20)


def test_terminated(path: Path) -> None:
    """SIGTERM ends it as Ctrl-C does, and shows in the exit code."""
    with vsqs.Queue(path, create=True) as queue:
        queue.publish(b"x")
        sink = start("sink", path, "--print")
        assert sink.stdout is not None
        assert sink.stdout.readline() == "x\n"
        assert finish(sink, signal.SIGTERM) == (143, "", "took 1 message, 1 byte\n")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reader_has_gone(path: Path, layout: str) -> None:
    """When the reader of the output ends, the exit code is 141, and the message that was not printed stays."""
    dir_tool("pump", path, "--no-sync", "--layout", layout, "--count", 2)
    reading, writing = os.pipe()
    os.close(reading)
    sink = start("sink", path, "--print", stdout=writing)
    os.close(writing)
    assert finish(sink)[0] == 141
    assert states(path) == ["in-flight" if layout == "vsqs" else "ready", "ready"]
    ls = start("ls", path, stdout=subprocess.PIPE)
    assert ls.stdout is not None
    ls.stdout.close()
    ls.stdout = None
    assert finish(ls)[0] == 141


def test_output_that_is_full(path: Path) -> None:
    """A message that cannot be printed is not removed, and one line says which side is full."""
    dir_tool("pump", path, "--layout", "dirq-simple", "--count", 1)
    with open("/dev/full", "w") as full:
        code, _, err = finish(start("sink", path, "--print", stdout=full))
    assert code == 1
    assert err == (
        "qs-dir: standard output: the disk is full: No space left on device; 0 messages were taken out before\n"
    )
    assert states(path) == ["ready"]


@pytest.mark.parametrize("words", [["ls"], ["ls", "--summary"], ["ls", "--json"], ["purge"]])
def test_list_on_output_that_is_full(path: Path, words: list[str]) -> None:
    """`ls` and purge say, once, that it is standard output and not the queue's disk."""
    dir_tool("pump", path, "--no-sync", "--count", 200)  # a list longer than what Python keeps before it writes
    with open("/dev/full", "w") as full:
        code, _, err = finish(start(*words, path, stdout=full))
    assert (code, err) == (1, "qs-dir: standard output: the disk is full: No space left on device\n")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_that_is_full(path: Path, layout: str) -> None:
    """A message larger than the memory that there is: one line, exit code 1, and nothing half there."""
    path.mkdir()
    little = ["sh", "-c", 'ulimit -v 500000; exec "$@"', "sh", *COMMAND]
    words = ["pump", str(path), "--layout", layout, "--size", str(1 << 30), "--count", "1"]
    done = subprocess.run([*little, *words], capture_output=True, text=True, timeout=WITHIN, check=False)
    told = (
        "qs-dir: there is not enough memory (a message is in it as a whole, more than once); 0 messages were {} before"
    )
    assert (done.returncode, done.stderr) == (1, told.format("stored") + "\n")
    assert _message_files(path) == []
    assert main(["pump", str(path), "--layout", layout, "--count", "1"]) == 0
    [payload] = _message_files(path)
    os.truncate(payload, 1 << 30)  # takes no room
    words = ["sink", str(path), "--count", "1"]
    done = subprocess.run([*little, *words], capture_output=True, text=True, timeout=WITHIN, check=False)
    assert (done.returncode, done.stderr) == (1, told.format("taken out") + "\n")
    assert [each["state"] for each in listed(path)] in (["ready"], ["in-flight"])


def _message_files(path: Path) -> list[Path]:
    return [found for found in path.rglob("*") if found.is_file() and not found.name.startswith(".")]


@pytest.fixture(name="small_disk")
def _small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "128k") as mounted:
        yield mounted


@pytest.mark.parametrize("layout", LAYOUTS)
def test_full_disk(small_disk: Path, layout: str) -> None:
    """One line says that the disk is full and how many messages are stored: just so many are there, and whole."""
    path = small_disk / "q"
    done = dir_tool("pump", path, "--no-sync", "--layout", layout, "--size", 5000, check=1)
    found = re.fullmatch(
        rf"qs-dir: {small_disk}\S*: the disk is full: {os.strerror(errno.ENOSPC)}; (\d+) messages were stored before\n",
        done.stderr,
    )
    assert found is not None, done.stderr
    assert int(found[1]) > 10
    assert [(each["state"], each["size"]) for each in listed(path)] == [("ready", 5000)] * int(found[1])


# -- on a terminal --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def on_terminal(*words: object) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A process whose stdin and stderr are a terminal, and that terminal's other end."""
    ours, theirs = pty.openpty()
    try:
        process = start(*words, stdin=theirs, stderr=theirs)
        os.close(theirs)
        yield process, ours
        process.communicate(timeout=WITHIN)
    finally:
        os.close(ours)


def read_until(terminal: int, text: str) -> str:
    found = ""
    with contextlib.suppress(OSError):  # EIO: nobody has it open any more
        while text not in found and (piece := os.read(terminal, 1000)):
            found += piece.decode()
    assert text in found, found
    return found


def test_live_rate(path: Path) -> None:
    """A line that is renewed once a second, and in the end another in its place."""
    with on_terminal("pump", path, "--rate", 20) as (pump, terminal):
        shown = read_until(terminal, "a second")
        assert re.fullmatch(r"\r\x1b\[Kstored \d+ messages, \d+ a second", shown)
        pump.send_signal(signal.SIGINT)
        rest = read_until(terminal, "\n")
        assert re.search(r"\r\x1b\[Kstored \d+ messages, \d+ bytes, in \d+\.\d\d s: \d+ a second\r\n$", rest)
    assert pump.returncode == 130


@pytest.mark.parametrize(("answer", "left"), [("y", 0), ("n", 3), ("", 3)])
def test_question(path: Path, answer: str, left: int) -> None:
    """`purge --all` asks first, and takes y for yes."""
    dir_tool("pump", path, "--no-sync", "--count", 3)
    with on_terminal("purge", path, "--all") as (purge, terminal):
        read_until(terminal, f"Remove all of {path}, 3 messages? [y/N] ")
        os.write(terminal, f"{answer}\n".encode())
    assert purge.returncode == bool(left)
    assert len(listed(path)) == left


@pytest.mark.parametrize(("end", "code"), [(b"\x03", 130), (b"\x04", 1)])
def test_question_that_is_not_answered(path: Path, end: bytes, code: int) -> None:
    """Ctrl-C and Ctrl-D leave the messages, and the cursor in a new line."""
    dir_tool("pump", path, "--no-sync", "--count", 3)
    with on_terminal("purge", path, "--all") as (purge, terminal):
        read_until(terminal, "[y/N] ")
        if end == b"\x03":
            purge.send_signal(signal.SIGINT)
        else:
            os.write(terminal, end)
        read_until(terminal, "\n")
    assert purge.returncode == code
    assert len(listed(path)) == 3
