"""The command queue-journal.py, over the journal of a real server: what it says, what it changes, how it ends."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.clients.documents import mids, new_queue, payloads, push, receive
from support.servers.processes import PROJECT, ServerProcess, Wire, run_server
from support.storage.broken_journals import flip, middle_of, with_old_format

from qs_server.main import queue_journal as journal_command
from qs_storage.disk import Disk
from qs_storage.journal.log.opening import numbers_in
from qs_testing.programs import READY_WITHIN

SCRIPT = str(PROJECT / "scripts" / "queue-journal.py")


def journal(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *words], capture_output=True, text=True, timeout=READY_WITHIN, check=False
    )


def files(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def in_process(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the command, which is not started for that."""
    try:
        code = journal_command.main([*words])
    except SystemExit as ended:
        code = ended.code  # type: ignore[assignment]
    return code, *capsys.readouterr()


PUSHED = [f"message {number}" for number in range(20)]


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a killed server. Tests must not change it."""
    root = tmp_path_factory.mktemp("killed") / "root"
    server = ServerProcess(root, "--storage", "journal")
    with Wire(server) as wire:
        wire.ask(new_queue("q"))
        for payload in PUSHED:
            assert mids(wire.ask(push("q", payload)))
    server.kill()
    return root


@pytest.fixture
def killed(left: Path, tmp_path: Path) -> Path:
    """The root of a server that was killed."""
    return shutil.copytree(left, tmp_path / "the root")


def start(root: Path) -> subprocess.CompletedProcess[str]:
    """A server that does not start."""
    return run_server("--root", str(root), "--port", "0")


def delivered(root: Path) -> list[str]:
    server = ServerProcess(root, "--storage", "journal")
    try:
        with Wire(server) as wire:
            return payloads(wire.ask(receive("q", max=100)))
    finally:
        assert server.stop() == 0


def test_from_damage_to_a_server(killed: Path) -> None:
    """A byte in the middle: the start says in one line what to do; that command keeps all but one message."""
    path, at = middle_of(killed)
    flip(path, at, 3)
    refused = start(killed)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("queue-server.py: ")
    assert refused.stderr.count("\n") == 1
    assert str(path) in refused.stderr
    before = path.read_bytes()
    found = re.search(r"'queue-journal\.py (repair [^']*'[^']*'[^']*|repair [^']*)'", refused.stderr)
    assert found is not None, refused.stderr
    words = shlex.split(found[1])
    assert words == ["repair", "--root", str(killed)]

    checked = journal("check", *words[1:])
    assert checked.returncode == 1
    assert "not whole: bytes" in checked.stdout
    assert checked.stdout.splitlines()[-1] in refused.stderr

    done = journal(*words)
    assert (done.returncode, done.stderr) == (0, "")
    [aside] = killed.glob(".journal/damaged-*")
    assert f"what was there: {aside}" in done.stdout
    assert "lost: " in done.stdout
    assert "1 record, in " in done.stdout
    assert (aside / path.name).read_bytes() == before
    assert journal("check", *words[1:]).returncode == 0
    found_again = delivered(killed)
    assert [payload for payload in PUSHED if payload in found_again] == found_again
    assert len(found_again) == len(PUSHED) - 1


def test_a_journal_that_is_whole(killed: Path) -> None:
    """`check` counts what there is, with -v frame by frame; repair has nothing to do. Neither changes anything."""
    before = files(killed)
    done = journal("check", "--root", str(killed))
    assert (done.returncode, done.stderr) == (0, "")
    assert "messages: q 20" in done.stdout
    assert "no server is running" in done.stdout
    assert done.stdout.endswith("whole: a server starts with it\n")
    listed = journal("check", "--root", str(killed), "-v").stdout
    assert len(re.findall(r"^  frame \d+ at byte \d+: PUSH 1", listed, re.MULTILINE)) == 20
    done = journal("repair", "--root", str(killed))
    assert (done.returncode, done.stdout) == (0, f"{killed}/.journal: whole, nothing to repair\n")
    assert files(killed) == before


def test_a_torn_end(killed: Path) -> None:
    """A torn end stops no start: check reports it, and exits with 0."""
    directory = f"{killed}/.journal"
    path = Path(directory) / f"{numbers_in(directory, Disk())[-1]:016d}.segment"
    flip(path, len(path.read_bytes().rstrip(b"\0")) - 1, 0)
    done = journal("check", "--root", str(killed))
    assert done.returncode == 0
    assert f"torn: the end of {path}" in done.stdout
    assert journal("repair", "--root", str(killed)).stdout.endswith("nothing to repair\n")
    assert delivered(killed) == PUSHED[:-1]


FORMATS = {
    "check": ["check"],
    "repair": ["repair"],
    "backup": ["backup", "--to", "{}/copy"],
    "export": ["export", "--to", "{}/copy"],
    "convert": ["convert", "q", "--to", "files"],
}


@pytest.mark.parametrize("command", [*FORMATS, "start"])
def test_another_format(tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A journal of an earlier version: a start and each command name the format in one line, exit with 1, and change
    nothing."""
    root = tmp_path / "root"
    with_old_format(root)
    before = files(root / ".journal")
    if command == "start":
        code, said, error = (done := start(root)).returncode, done.stdout, done.stderr
    else:
        name, *words = FORMATS[command]
        words = [word.format(tmp_path) for word in words]
        code, said, error = in_process(capsys, name, "--root", str(root), *words)
    assert (code, said) == (1, "")
    assert error.count("\n") == 1
    path = f"{root}/.journal/0000000000000001.segment"
    assert f"{path}: it has the format 'qs-journal 2': another version of qs has written it" in error
    assert "this one reads 'qs-journal 3'" in error
    assert "queue-journal.py repair" not in error
    assert files(root / ".journal") == before
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


def test_beside_a_server(tmp_path: Path) -> None:
    """`check` works, and says that a server runs; repair refuses."""
    root = tmp_path / "root"
    server = ServerProcess(root, "--storage", "journal")
    try:
        with Wire(server) as wire:
            wire.ask(new_queue("q"))
            wire.ask(push("q", "one"))
            done = journal("check", "--root", str(root))
            assert (done.returncode, done.stderr) == (0, "")
            assert "a server is running" in done.stdout
            assert "messages: q 1" in done.stdout
            done = journal("repair", "--root", str(root))
            assert done.returncode == 1
            assert done.stderr == f"queue-journal.py: a server is using {root}/.journal: stop it first\n"
            wire.ask(push("q", "two"))
    finally:
        assert server.stop() == 0
    assert delivered(root) == ["one", "two"]


@pytest.mark.parametrize("command", ["check", "repair"])
def test_where_there_is_none(tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A root without a journal: one line, exit code 1, and nothing is made."""
    for root in (tmp_path, tmp_path / "none"):
        says = f"queue-journal.py: there is no journal in {root}; --root names the directory of the queues\n"
        assert in_process(capsys, command, "--root", str(root)) == (1, "", says)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="NOT TESTED: root may read anything")
def test_what_cannot_be_read(killed: Path) -> None:
    """A file without permissions: one line, exit code 1."""
    path, _ = middle_of(killed)
    path.chmod(0)
    done = journal("check", "--root", str(killed))
    assert done.returncode == 1
    assert re.fullmatch(r"queue-journal\.py: .*Permission denied.*\n", done.stderr)


def test_a_file_that_is_a_link_to_nothing(killed: Path) -> None:
    """A link to nothing with a segment's name is left alone."""
    (killed / ".journal" / "0000000000000099.segment").symlink_to("nowhere")
    assert journal("check", "--root", str(killed)).returncode == 0


@pytest.mark.parametrize("words", [[], ["mend"], ["check", "--roo", "x"], ["repair", "-v"]])
def test_journal_wrong_usage_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown command or flag ends with exit code 2 and one line."""
    code, said, error = in_process(capsys, *words)
    assert (code, said) == (2, "")
    assert error.startswith("queue-journal.py")
    assert error.count("\n") == 1


def test_journal_help_says_how_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """Each help says what the command does and how it ends."""
    listed = journal("--help").stdout
    for command in ("check", "repair", "export", "backup", "convert"):
        assert f"\n    {command} " in listed
        _, said, _ = in_process(capsys, command, "--help")
        assert "Exit codes: 0" in said
        assert "--root DIR" in said
    assert in_process(capsys, "--version")[1].startswith("qs ")


def test_the_reader_has_gone(killed: Path) -> None:
    """When the reader of the output ends, there is no traceback."""
    command = subprocess.Popen(
        [sys.executable, SCRIPT, "check", "--root", str(killed), "-v"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.close()
    error = command.stderr.read()
    command.stderr.close()
    assert command.wait(READY_WITHIN) == 128 + signal.SIGPIPE
    assert error == b""


def test_output_that_is_full_or_closed(killed: Path) -> None:
    """One line says that it is standard output."""
    for redirected, code, says in (
        (">/dev/full", 1, "queue-journal.py: standard output: the disk is full: No space left on device\n"),
        (">&-", 2, "queue-journal.py: standard output is closed: redirect it to a file, or to /dev/null\n"),
    ):
        words = shlex.join([sys.executable, SCRIPT, "check", "--root", str(killed)])
        done = subprocess.run(
            ["sh", "-c", f"{words} {redirected}"], capture_output=True, text=True, timeout=READY_WITHIN, check=False
        )
        assert (done.returncode, done.stderr) == (code, says)


def test_ctrl_c_ends_journal_command_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends it with exit code 130, without a word."""

    def interrupt(directory: str, disk: Disk) -> None:
        raise KeyboardInterrupt

    (tmp_path / ".journal").mkdir()
    monkeypatch.setattr("qs_storage.tools.journal_check.examine", interrupt)
    for command in ("check", "repair"):
        assert journal_command.main([command, "--root", str(tmp_path)]) == 130
    assert capsys.readouterr() == ("", "")


def test_journal_command_root_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error says that the root is a file."""
    file = tmp_path / "file"
    file.write_text("")
    says = f"queue-journal.py: {file} is a file; --root names the directory of the queues\n"
    assert in_process(capsys, "check", "--root", str(file)) == (1, "", says)
