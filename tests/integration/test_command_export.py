"""`qs export`: messages of a running server as files in the layout of vsqs."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.servers.processes import ServerProcess

from qs_client import QueueClient, command
from qs_storage import vsqs

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def qs(shared_server: ServerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs qs in this process: its exit code, stdout and stderr."""
    monkeypatch.setenv("QS_SERVER", f"{shared_server.host}:{shared_server.port}")

    def run(*argv: str) -> tuple[int, str, str]:
        code = command.main(argv)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_copy_leaves_the_queue_as_it_is(qs: Run, client: QueueClient, qid: str, tmp_path: Path) -> None:
    """Each visible message is a file; nothing is received; again, nothing is written twice."""
    mids = client.push_many(qid, ["a", "b", "\xe9"])
    out = str(tmp_path / "out")
    assert qs("export", qid, out) == (0, "3 messages\n", "")
    assert contents(tmp_path / "out") == dict(zip(map(str, mids), [b"a", b"b", b"\xc3\xa9"], strict=True))
    assert list(client.list_messages(qid, state="new")) == mids
    assert qs("export", qid, out) == (0, "3 messages, 3 of them were there already\n", "")


def test_many_are_moved_and_can_be_consumed_there(qs: Run, client: QueueClient, qid: str, tmp_path: Path) -> None:
    """With --delete the queue is empty afterwards; a library of vsqs finds the messages in order."""
    mids = client.push_many(qid, [str(number) for number in range(250)])
    assert qs("export", qid, str(tmp_path / "out"), "--delete") == (0, "250 messages\n", "")
    assert list(client.list_messages(qid, state="all")) == []
    with vsqs.Queue(tmp_path / "out") as queue:
        assert queue.size() == 250
        assert queue.receive(timeout=0) == (str(mids[0]), b"0")


def test_another_file_is_not_overwritten(qs: Run, client: QueueClient, qid: str, tmp_path: Path) -> None:
    """The error names it, the messages are visible again, and nothing was deleted."""
    mids = client.push_many(qid, ["a", "b"])
    (tmp_path / str(mids[1])).write_text("mine")
    code, _, err = qs("export", qid, str(tmp_path), "--delete")
    assert (code, err) == (
        1,
        f"qs: {tmp_path}/{mids[1]} exists with other content, and is not overwritten\n",
    )
    assert list(client.list_messages(qid, state="ready")) == mids
    assert contents(tmp_path) == {str(mids[1]): b"mine"}


def test_messages_that_are_hidden_are_said(qs: Run, client: QueueClient, qid: str, tmp_path: Path) -> None:
    """Hidden messages are not exported; the command says so, with its exit code too."""
    client.push(qid, "a")
    client.push(qid, "b", delay=1000)
    code, out, err = qs("export", qid, str(tmp_path / "out"))
    assert (code, out) == (1, "1 message\n")
    assert err.startswith("qs: 1 in flight or delayed: not exported")


def test_a_full_disk_deletes_nothing(
    shared_server: ServerProcess, client: QueueClient, qid: str, tmp_path: Path
) -> None:
    """A file that cannot be written (here: too large for a limit) is an error in one line; no message is lost."""
    mids = client.push_many(qid, ["a", "b" * 100_000])
    program = (
        "import resource, signal, sys; from qs_client.command import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "export", qid, str(tmp_path / "out"), "--delete"],
        env={**os.environ, "QS_SERVER": f"{shared_server.host}:{shared_server.port}"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("qs: ")
    assert "File too large" in done.stderr
    assert list(client.list_messages(qid, state="ready")) == mids
    assert list((tmp_path / "out").iterdir()) == []
