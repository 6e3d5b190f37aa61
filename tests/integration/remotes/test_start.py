"""The server process starts with queues that another server keeps: flags, the default storage, restarts, missing
libraries."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from support.clients.documents import code, mids, new_queue, payloads, push, receive, request, subscribe, text
from support.servers.processes import COMMAND, FAST, Wire, serving
from support.servers.remote import LONG, Elsewhere, attributes, made, stats
from support.storage.memcached import needs_memcached

from qs_server.main.queue_server import read_options
from qs_testing.programs import READY_WITHIN

pytestmark = needs_memcached
LIBRARIES = {"memcached": "pymemcache", "sqs": "boto3"}
HIDING = """
import importlib.machinery
finder = importlib.machinery.PathFinder
find_spec = finder.find_spec
finder.find_spec = lambda name, *rest: None if name.partition(".")[0] in {} else find_spec(name, *rest)
"""
"""For a sitecustomize: the interpreter does as if a package was not installed."""


def hide(monkeypatch: pytest.MonkeyPatch, folder: Path, *libraries: str) -> None:
    """Processes that are started from now on do not find the packages."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HIDING.format(libraries))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)


def ended(*flags: str) -> "subprocess.CompletedProcess[str]":
    """The command, which does not serve with these flags."""
    return subprocess.run([*COMMAND, *flags], capture_output=True, text=True, timeout=READY_WITHIN, check=False)


def test_the_default_storage(elsewhere: Elsewhere, tmp_path: Path, storage: str) -> None:
    """With --storage new queues are made there, and still by their name in the root."""
    with elsewhere.serving(tmp_path / "root", "--storage", storage) as server, Wire(server) as wire:
        assert code(wire.ask(new_queue("q"))) == 0
        made(wire, "local", "journal")
        for qid, kept in (("q", storage), ("local", "journal")):
            assert stats(wire, qid)["storage"] == kept
            wire.ask(push(qid, f"to {qid}"))
            assert payloads(wire.ask(receive(qid, wait=LONG))) == [f"to {qid}"]
        assert ("volatile" in server.log()) is (storage == "memcached")


def test_a_restart(elsewhere: Elsewhere, tmp_path: Path, storage: str) -> None:
    """The queues are there again, with their options and what they hold."""
    root = tmp_path / "root"
    with elsewhere.serving(root) as server, Wire(server) as wire:
        made(wire, "kept", storage, visibility=77)
        [mid] = mids(wire.ask(push("kept", "x")))
        made(wire, "local", "journal")
    options = (root / "kept" / ".queue.toml").read_text()
    with elsewhere.serving(root) as server, Wire(server) as wire:
        assert re.findall("<queue>(.*?)</queue>", wire.ask(request("list-queues"))) == ["kept", "local"]
        answer = wire.ask(receive("kept", wait=LONG))
        pushed_at, visible_at = (
            int(found[1]) for name in ("pushed-at", "visible-at") if (found := re.search(rf'{name}="(\d+)"', answer))
        )
        assert (mids(answer), payloads(answer)) == ([mid], ["x"])
        assert 76_000_000 < visible_at - pushed_at < 77_000_000 + LONG * 1_000_000
        assert (root / "kept" / ".queue.toml").read_text() == options
        assert code(wire.ask(request("delete-queue", "<qid>kept</qid>", force="yes"))) == 0
        assert not (root / "kept").exists()


def test_a_capacity_after_a_restart(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """A queue in memcached has its capacity still."""
    with elsewhere.serving(tmp_path / "root") as server, Wire(server) as wire:
        made(wire, "bounded", "memcached", capacity=2)
        assert code(wire.ask(push("bounded", "one"))) == 0
    with elsewhere.serving(tmp_path / "root") as server, Wire(server) as wire:
        assert code(wire.ask(push("bounded", "two"))) == 0
        assert code(wire.ask(push("bounded", "three"))) == 507


def test_the_library_is_missing(
    elsewhere: Elsewhere, tmp_path: Path, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server starts for its other queues and says in its log what is missing; every request that needs it says
    what is to be typed to install it; the queue is listed. With the library everything is there again."""
    root = tmp_path / "root"
    with elsewhere.serving(root) as server, Wire(server) as wire:
        made(wire, "kept", storage)
        made(wire, "local", "journal")
        wire.ask(push("kept", "x"))
    needed = f"pip install 'qsbus[{storage}]'"
    kept = "<qid>kept</qid>"
    with monkeypatch.context() as hidden:
        hide(hidden, tmp_path / "hiding", LIBRARIES[storage])
        with elsewhere.serving(root) as server, Wire(server) as wire:
            assert needed in server.log()
            assert "'kept'" in server.log()
            for asked in (
                push("kept", "x"),
                receive("kept", wait=1),
                receive("kept", "local"),
                subscribe("kept"),
                request("queue-stats", kept),
                request("purge-queue", kept),
                request("delete-queue", kept, force="yes"),
                new_queue("another", f'<options storage="{storage}"/>'),
            ):
                answer = wire.ask(asked)
                assert (code(answer), needed in text(answer)) == (501, True), answer
            assert code(wire.ask(new_queue("kept"))) == 409
            assert "<queue>kept</queue>" in wire.ask(request("list-queues"))
            assert attributes(wire.ask(request("queue-stats")), "kept") == {
                "storage": storage,
                "subscribers": "0",
                "waiting": "0",
            }
            wire.ask(push("local", "y"))
            assert payloads(wire.ask(receive("local"))) == ["y"]
    with elsewhere.serving(root) as server, Wire(server) as wire:
        assert payloads(wire.ask(receive("kept", wait=LONG))) == ["x"]


def test_the_default_storage_is_missing(tmp_path: Path, storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose new queues would need a library that is missing does not start: one line says what to type."""
    hide(monkeypatch, tmp_path / "hiding", LIBRARIES[storage])
    done = ended("--root", str(tmp_path / "root"), "--port", "0", "--storage", storage)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("queue-server.py: ")
    assert f"pip install 'qsbus[{storage}]'" in done.stderr


def test_both_libraries_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that needs neither starts, and says nothing of them."""
    hide(monkeypatch, tmp_path / "hiding", *LIBRARIES.values())
    with serving(tmp_path / "root", *FAST) as server, Wire(server) as wire:
        assert code(wire.ask(new_queue("q"))) == 0
        assert code(wire.ask(push("q", "x"))) == 0
        assert "pip install" not in server.log()


def refused(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[object, str, str]:
    """Exit code, standard output and standard error of a command that ends when it has read its flags."""
    with pytest.raises(SystemExit) as ended:
        read_options(list(flags))
    return ended.value.code, *capsys.readouterr()


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """--help names the flags, what they are for, and their defaults."""
    shown = " ".join(refused(capsys, "--help")[1].split())
    for said in (
        "queues that other servers keep",
        "--memcached HOST[:PORT][,...]",
        "(default: 127.0.0.1:11211)",
        "--sqs-endpoint URL",
        "(default: Amazon)",
        "--sqs-region NAME",
        "--sqs-prefix TEXT",
        "--storage NAME",
        "memcached, sqs, postgres, or one that another package brings",
        "--postgres DSN",
    ):
        assert said in shown


@pytest.mark.parametrize(
    "written", ["", "localhost:", ":11211", "h:0", "h:65536", "h:x", "h:1,", "h:1,,h:2", "h:-1", "h:1:x"]
)
def test_a_memcached_that_cannot_be(capsys: pytest.CaptureFixture[str], written: str) -> None:
    """A wrong address is a usage error that says which and what it should be, exit code 2."""
    exit_code, out, error = refused(capsys, "--memcached", written)
    assert (exit_code, out) == (2, "")
    last = error.splitlines()[-1]
    assert "--memcached" in last
    assert "HOST[:PORT]" in last
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [("--sqs-endpoint", "localhost:9324", "URL"), ("--sqs-prefix", "a/b", "prefix"), ("--sqs-prefix", "x" * 80, "79")],
)
def test_an_sqs_that_cannot_be(tmp_path: Path, flag: str, value: str, said: str) -> None:
    """A wrong endpoint or prefix is one line at the start that says what it should be, and does not blame the root."""
    done = ended("--root", str(tmp_path / "root"), "--port", "0", flag, value)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert done.stderr.startswith("queue-server.py: ")
    assert said in done.stderr
    assert "cannot use root" not in done.stderr


def test_several_memcached(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """Several addresses, IPv6 among them, are taken; the log says which."""
    flags = ("--memcached", "127.0.0.1:1, [::1]:2", "--storage", "memcached")
    with serving(tmp_path / "root", *FAST, *flags) as server, Wire(server) as wire:
        assert "127.0.0.1:1, [::1]:2" in server.log()
        refused = wire.ask(new_queue("q"))
        assert code(refused) == 500
        assert "memcached at " in text(refused)
        assert not (tmp_path / "root" / "q").exists()
