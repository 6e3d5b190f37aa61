"""The real server process over real sockets: what it answers, refuses, prints, survives and leaves behind."""

import ctypes
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import (
    NS,
    PING,
    code,
    delete,
    mids,
    new_queue,
    payloads,
    push,
    push_list,
    receive,
    req,
    request,
    text,
)
from serving import COMMAND, READY_WITHIN, ServerProcess, serving

FAST = ("--durability", "none")


class Wire:
    """A connection, line by line."""

    def __init__(self, server: ServerProcess) -> None:
        self.socket = server.connect()
        self._lines = self.socket.makefile("rb")

    def send(self, *documents: str | bytes) -> None:
        self.socket.sendall(b"".join(d.encode() if isinstance(d, str) else d for d in documents))

    def line(self) -> str:
        """The next answer; empty at the end of the stream."""
        return self._lines.readline().decode()

    def ask(self, *documents: str | bytes) -> str:
        """The answer to the last of the documents."""
        self.send(*documents)
        return [self.line() for _ in documents][-1]

    def close(self) -> None:
        self._lines.close()
        self.socket.close()

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    with Wire(server) as wire:
        wire.ask(new_queue("q"))
        yield wire


def state(wire: Wire, root: Path) -> tuple[list[str], str]:
    """Every name in the root directory, and every message as a client sees it."""
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
    listed = mids(wire.ask(request("list-messages", "<qid>q</qid>", state="all")))
    found = [
        re.sub(' resp="[^"]*"', "", wire.ask(request("get-message", f"<qid>q</qid><mid>{mid}</mid>", peek="yes")))
        for mid in listed
    ]
    return names, "".join(found)


# -- operations -------------------------------------------------------------------------------------------------------


def test_every_operation_once(wire: Wire) -> None:
    """Each operation does what it is for, over a socket, one after the other."""
    assert "<queue>q</queue>" in wire.ask(request("list-queues"))
    first = mids(wire.ask(push("q", "one")))[0]
    second, third = mids(wire.ask(push_list("q", "two", "three")))
    assert mids(wire.ask(request("list-messages", "<qid>q</qid>"))) == [first, second, third]
    got = wire.ask(request("get-message", f"<qid>q</qid><mid>{first}</mid>"))
    assert (payloads(got), 'status="delivered"' in got) == (["one"], True)
    assert mids(wire.ask(receive("q", max=10))) == [second, third]
    assert "visible-at=" in wire.ask(request("extend-message", f"<qid>q</qid><mid>{second}</mid>", visibility=60))
    assert code(wire.ask(request("release-message", f"<qid>q</qid><mid>{second}</mid>"))) == 0
    stats = wire.ask(request("queue-stats", "<qid>q</qid>"))
    assert all(part in stats for part in ('new="0"', 'ready="1"', 'in-flight="2"', 'bytes="11"', 'pushed="3"'))
    assert mids(wire.ask(delete("q", first))) == [first]
    assert "<count>2</count>" in wire.ask(request("purge-queue", "<qid>q</qid>"))
    assert "<ping/>" in wire.ask(PING)
    assert code(wire.ask(request("delete-queue", "<qid>q</qid>"))) == 0
    assert "<queues></queues>" in wire.ask(request("list-queues"))


def test_odd_names(wire: Wire, server: ServerProcess) -> None:
    """A name with a slash, dots, a percent sign, a space or an emoji is a name like any other: one directory, not
    nested, of which the root keeps the encoded form."""
    names = ["a/b", "..", ".", ".hidden", "../../escape", "100%", "with space", "\N{GRINNING FACE}", "x" * 200]
    for name in names:
        assert code(wire.ask(new_queue(name))) == 0, name
        assert code(wire.ask(push(name, name))) == 0
        assert payloads(wire.ask(receive(name))) == [name]
    listed = wire.ask(request("list-queues"))
    assert re.findall("<queue>(.*?)</queue>", listed) == sorted([*names, "q"])
    directories = os.listdir(server.root)
    assert len(directories) == len(names) + 1
    assert not [name for name in directories if re.fullmatch(r"[A-Za-z0-9_\-.%]+", name) is None or name[0] == "."]
    assert not list(server.root.parent.glob("*escape*"))


# -- bad input --------------------------------------------------------------------------------------------------------


def bomb(depth: int) -> str:
    return f'<qs xmlns="{NS}">' + "<op>" * depth + "</op>" * depth + "</qs>"


ATTRIBUTES = " ".join(f'a{number}="x"' for number in range(5000))
ENTITIES = (
    '<?xml version="1.0"?><!DOCTYPE qs [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">' for i in range(9))
    + f']><qs xmlns="{NS}"><op><push-message/></op><qid>q</qid><payload>&j;</payload></qs>'
)
EXTERNAL = (
    '<!DOCTYPE qs [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
    f'<qs xmlns="{NS}"><op><push-message/></op><qid>q</qid><payload>&x;</payload></qs>'
)
# name: (bytes, code, what the text says, whether the connection is closed)
BAD: dict[str, tuple[str | bytes, int, str, bool]] = {
    "not XML": ("GET / HTTP/1.1\r\n\r\n", 400, "not well-formed", True),
    "binary": (bytes(range(256)), 400, "not well-formed", True),
    "tags that do not match": (f'<qs xmlns="{NS}"><op></qs></op>', 400, "not well-formed", True),
    "an attribute without quotes": (f'<qs xmlns="{NS}" req=1><op><ping/></op></qs>', 400, "not well-formed", True),
    "an undeclared entity": (push("q", "&nope;"), 400, "not well-formed", True),
    "no namespace": ("<qs><op><ping/></op></qs>", 400, "namespace", False),
    "another namespace": (PING.replace(NS, "urn:other"), 400, "namespace", False),
    "another root": (f'<queue xmlns="{NS}"/>', 400, "qs", False),
    "a DOCTYPE": ("<!DOCTYPE qs>" + PING, 400, "DOCTYPE", True),
    "an entity bomb": (ENTITIES, 400, "DOCTYPE", True),
    "an external entity": (EXTERNAL, 400, "DOCTYPE", True),
    "a processing instruction": (PING.replace("<op>", "<?php x?><op>"), 400, "processing instruction", False),
    "too deep": (bomb(5000), 400, "deeper", False),
    "too many attributes": (f'<qs xmlns="{NS}"><op {ATTRIBUTES}><ping/></op></qs>', 400, "attributes", False),
    "invalid UTF-8": (push("q", "@").encode().replace(b"@", b"\xff\xfe\x80"), 400, "not well-formed", True),
    "UTF-16 with a mark": (push("q", "x").encode("utf-16"), 400, "UTF-8", True),
    "UTF-16 without one": (push("q", "x").encode("utf-16-le"), 400, "", True),
    "UTF-16 declared": ('<?xml version="1.0" encoding="UTF-16"?>' + PING, 400, "UTF-8", True),
    "Latin-1 declared": ('<?xml version="1.0" encoding="ISO-8859-1"?>' + PING, 400, "UTF-8", True),
    "a raw NUL in a name": (new_queue("a\0b"), 400, "not well-formed", True),
    "a NUL by reference": (new_queue("a&#0;b"), 400, "not well-formed", True),
    "a control character": (new_queue("a&#127;b"), 400, "control character", False),
    "a line break in a name": (new_queue("a&#10;b"), 400, "control character", False),
    "no name": (request("new-queue"), 400, "qid", False),
    "an empty name": (new_queue("  "), 400, "qid", False),
    "a name of 300": (new_queue("x" * 300), 400, "1 to 200", False),
    "a name whose directory is too long": (new_queue("\N{GRINNING FACE}" * 200), 400, "255", False),
    "an unknown operation": (request("frobnicate"), 501, "frobnicate", False),
    "no operation": (f'<qs xmlns="{NS}"><qid>q</qid></qs>', 400, "'op'", False),
    "an empty operation": (f'<qs xmlns="{NS}"><op/></qs>', 400, "'op'", False),
    "two operations": (f'<qs xmlns="{NS}"><op><ping/><list-queues/></op></qs>', 400, "", False),
    "an unknown element": (request("ping", "<surprise/>"), 400, "surprise", False),
    "an element twice": (push("q", "x").replace("</qs>", "<qid>q</qid></qs>"), 400, "qid", False),
    "text beside elements": (PING.replace("</op>", "</op>stray"), 400, "", False),
    "an unknown attribute": (PING.replace("<op>", '<op colour="red">'), 400, "colour", False),
    "a long req": (request("ping", req="r" * 129), 400, "128", False),
    "a response": (PING.replace("<qs ", '<qs type="response" '), 400, "response", False),
    "an error": (
        f'<qs xmlns="{NS}" type="error"><error code="404" type="not-found">x</error></qs>', 400, "error", False
    ),
    "another type": (PING.replace("<qs ", '<qs type="wish" '), 400, "type", False),
    "no payload": (request("push-message", "<qid>q</qid>"), 400, "payload", False),
    "an empty list": (request("push-message", "<qid>q</qid><messages/>"), 400, "payload", False),
    "a list of 1001": (push_list("q", *["x"] * 1001), 400, "1000", False),
    "a list of 1001 to delete": (
        request("delete-message", "<qid>q</qid><messages>" + "<mid>1</mid>" * 1001 + "</messages>"), 400, "1000", False
    ),
    "bad base64": (push("q", "x").replace("<payload>", '<payload encoding="base64">'), 400, "base64", False),
    "no mid": (request("get-message", "<qid>q</qid>"), 400, "mid", False),
    "a mid that is no number": (delete("q", "abc"), 400, "message id", False),
    "a negative mid": (delete("q", "-1"), 400, "message id", False),
    "a huge mid": (delete("q", "9" * 40), 400, "18 digits", False),
    "a mid that is a path": (delete("q", "../q/1"), 400, "message id", False),
    "a mid that nobody gave": (delete("q", "9" * 18), 404, "message", False),
    "max 0": (receive("q", max=0), 400, "max", False),
    "a negative max": (receive("q", max=-1), 400, "max", False),
    "a huge max": (receive("q", max="9" * 40), 400, "18 digits", False),
    "a negative wait": (receive("q", wait=-1), 400, "wait", False),
    "a huge wait": (receive("q", wait="9" * 10), 400, "9 digits", False),
    "wait in hexadecimal": (receive("q", wait="0x10"), 400, "wait", False),
    "wait with an exponent": (receive("q", wait="1e9"), 400, "wait", False),
    "wait is no number": (receive("q", wait="NaN"), 400, "wait", False),
    "an unknown queue": (push("absent", "x"), 404, "absent", False),
    "an unknown state": (request("list-messages", "<qid>q</qid>", state="odd"), 400, "state", False),
    "a queue that exists": (new_queue("q"), 409, "already an existing queue", False),
    "a queue that is not empty": (request("delete-queue", "<qid>q</qid>"), 409, "not empty", False),
    "too long": (push("q", "x" * (9 << 20)), 413, "8388608", True),
    "too long and never ending": (b"<qs " + b" " * (9 << 20), 413, "8388608", True),
}  # fmt: skip


def test_bad_input(server: ServerProcess, wire: Wire) -> None:
    """Everything that a client can send wrong has its documented error, changes nothing, and hurts no other client."""
    wire.ask(push("q", "precious"), push("q", "also"))
    wire.ask(receive("q", visibility=3600))
    before = state(wire, server.root)
    for name, (sent, expected, says, closes) in BAD.items():
        with Wire(server) as bad:
            bad.send(sent)
            answer = bad.line()
            assert (name, code(answer)) == (name, expected), answer
            assert says in text(answer), name
            assert len(answer.splitlines()) == 1
            if closes:
                assert bad.line() == "", name
            else:
                assert "<ping/>" in bad.ask(PING), name
        assert state(wire, server.root) == before, name
    assert "Traceback" not in server.log()


def test_huge_numbers_that_are_allowed(wire: Wire) -> None:
    """The greatest numbers that the contract allows are taken as what they are."""
    mid = mids(wire.ask(push("q", "x", delay="999999999.999999999")))[0]
    listed = request("list-messages", "<qid>q</qid>", state="delayed", max="9" * 18, after="0" * 18)
    assert mids(wire.ask(listed)) == [mid]
    assert mids(wire.ask(request("release-message", f"<qid>q</qid><mid>{mid}</mid>"))) == [mid]
    assert mids(wire.ask(receive("q", max="9" * 18, wait="999999999", visibility="999999999"))) == [mid]
    assert mids(wire.ask(receive("q", visibility=0))) == []
    assert mids(wire.ask(delete("q", mid))) == [mid]


def test_half_a_document_and_silence(tmp_path: Path) -> None:
    """--document-time: a document that has begun and does not end is 408, also one byte at a time; then the end."""
    with serving(tmp_path / "root", *FAST, "--document-time", "0.2") as server:
        with Wire(server) as wire:
            wire.send(PING[:30])
            assert code(wire.line()) == 408
            assert wire.line() == ""
        with Wire(server) as wire:
            for byte in PING[:-1]:
                try:
                    wire.send(byte)
                except OSError:
                    break
                if select.select([wire.socket], [], [], 0.02)[0]:
                    break
            assert code(wire.line()) == 408
        with Wire(server) as wire:
            assert "<ping/>" in wire.ask(PING)
            assert not select.select([wire.socket], [], [], 0.5)[0]  # idle: nobody is refused
            assert "<ping/>" in wire.ask(PING)


def test_half_a_document_and_the_end(server: ServerProcess, wire: Wire) -> None:
    """A client that goes in the middle of a document, or resets, leaves nothing behind."""
    before = state(wire, server.root)
    for linger in (False, True):
        with Wire(server) as half:
            half.send(push("q", "x" * 100_000)[:-20])
            if linger:
                half.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close() resets
    with Wire(server) as half:
        half.send(push("q", "x")[:-20])
        half.socket.shutdown(socket.SHUT_WR)
        assert code(half.line()) == 400
        assert half.line() == ""
    assert state(wire, server.root) == before


def test_too_many_clients(tmp_path: Path) -> None:
    """--max-connections: one more is told 429, whether it has sent something or not; the others are served."""
    two_at_most = (*FAST, "--max-connections", "2")
    with serving(tmp_path / "root", *two_at_most) as server, Wire(server) as one, Wire(server) as two:
        assert "<ping/>" in one.ask(PING)
        assert "<ping/>" in two.ask(PING)
        for sent in ("", PING, push("q", "x" * 1_000_000)):
            with Wire(server) as three:
                three.send(sent)
                assert code(three.line()) == 429
                assert three.line() == ""
        assert "<ping/>" in one.ask(PING)


def test_a_client_that_does_not_read_harms_nobody(tmp_path: Path) -> None:
    """One that asks for far more than it reads is not read from, and others are served meanwhile."""
    with serving(tmp_path / "root", *FAST, "--grace", "0.2") as server, Wire(server) as wire, Wire(server) as slow:
        wire.ask(new_queue("q"))
        mid = mids(wire.ask(push("q", "x" * 1_000_000)))[0]
        slow.socket.setblocking(False)
        peek = request("get-message", f"<qid>q</qid><mid>{mid}</mid>", peek="yes").encode()
        with pytest.raises(BlockingIOError):  # its requests are not taken for ever
            slow.socket.sendall(peek * 200_000)
        assert "<ping/>" in wire.ask(PING)
        memory = int(re.findall(r"VmRSS:\s+(\d+)", status(server))[0])
        assert memory < 200_000  # KiB


def status(server: ServerProcess) -> str:
    return Path(f"/proc/{server.process.pid}/status").read_text()


# -- start and stop ---------------------------------------------------------------------------------------------------


def start_that_fails(*flags: str, **options: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command that cannot start."""
    done = subprocess.run(
        [*COMMAND, *flags], capture_output=True, text=True, timeout=READY_WITHIN, check=False, **options
    )  # type: ignore[call-overload]
    return done.returncode, done.stdout, done.stderr


def one_line(error: str) -> bool:
    return error.startswith("queue-server.py: ") and error.count("\n") == 1


def test_the_root_is_a_file(tmp_path: Path) -> None:
    """A root that is a file, or below one: one line that says so and what to do, exit code 1."""
    file = tmp_path / "file"
    file.write_text("")
    for root in (file, file / "below"):
        exit_code, out, error = start_that_fails("--root", str(root), "--port", "0")
        assert (exit_code, out, one_line(error)) == (1, "", True), error
        assert "--root" in error


def give_up_roots_rights() -> None:
    """In a child of root's: from the next exec on it may write only where permissions say so."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH (capabilities(7))
        if libc.prctl(24, capability, 0, 0, 0) != 0:  # PR_CAPBSET_DROP
            raise OSError(ctypes.get_errno(), "prctl")


def test_the_root_is_not_writable(tmp_path: Path) -> None:
    """A root in which the server may not write: one line, exit code 1."""
    root = tmp_path / "root"
    root.mkdir()
    options: dict[str, object] = {}
    if os.geteuid() == 0:
        options["preexec_fn"] = give_up_roots_rights
    root.chmod(0o555)
    try:
        exit_code, out, error = start_that_fails("--root", str(root), "--port", "0", **options)
    except subprocess.SubprocessError:
        pytest.skip("NOT TESTED: this is root, who may write anywhere and cannot give that up here")
    assert (exit_code, out, one_line(error)) == (1, "", True), error
    assert "Permission denied" in error


def test_the_port_is_in_use(server: ServerProcess, tmp_path: Path) -> None:
    """A port that another one has: one line that says so and what to do, exit code 1."""
    exit_code, out, error = start_that_fails("--root", str(tmp_path / "two"), "--port", str(server.port))
    assert (exit_code, out, one_line(error)) == (1, "", True), error
    assert "in use" in error
    assert "--port" in error


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "a..b", "x" * 300])
def test_a_host_that_is_not_ours(tmp_path: Path, host: str) -> None:
    """An address that is not of this machine, or a name that means none: one line, exit code 1."""
    exit_code, out, error = start_that_fails("--root", str(tmp_path / "root"), "--port", "0", "--host", host)
    assert (exit_code, out, one_line(error)) == (1, "", True), error
    assert "--host" in error


BAD_FLAGS = [
    ["--port", "70000"], ["--port", "-1"], ["--port", "x"], ["--nope"], ["--durability", "maybe"],
    ["--storage", "punchcards"], ["--document-time", "nan"], ["--document-time", "0"], ["--max-connections", "0"],
    ["--max-document", "1.5"], ["--grace", "-1"], ["extra"],
]  # fmt: skip


def test_bad_flags(capsys: pytest.CaptureFixture[str]) -> None:
    """A flag that is wrong ends the command with exit code 2 and says which."""
    from qs_server.command import read_options

    for flags in BAD_FLAGS:
        with pytest.raises(SystemExit) as ended:
            read_options(flags)
        assert ended.value.code == 2
        assert flags[0].lstrip("-") in capsys.readouterr().err


def test_bad_flags_of_the_process(tmp_path: Path) -> None:
    """The same for the process: nothing is created."""
    exit_code, out, error = start_that_fails("--root", str(tmp_path / "root"), "--port", "nine")
    assert (exit_code, out) == (2, "")
    assert "Traceback" not in error
    assert not (tmp_path / "root").exists()


def test_a_settings_file_that_is_wrong(tmp_path: Path) -> None:
    """A queue whose .queue.toml cannot be understood: one line that names the file, exit code 1."""
    directory = tmp_path / "root" / "q"
    directory.mkdir(parents=True)
    (directory / ".queue.toml").write_text("visibility = 'long'\n")
    exit_code, out, error = start_that_fails("--root", str(tmp_path / "root"), "--port", "0")
    assert (exit_code, out, one_line(error)) == (1, "", True), error
    assert ".queue.toml" in error


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_listening_is_said_once(tmp_path: Path, host: str) -> None:
    """With standard output a pipe, the line is there as soon as clients can connect, once; port 0 picks a free port.
    A client that connects to what the line says is served."""
    if host == "::1" and not ipv6():
        pytest.skip("NOT TESTED: this machine has no IPv6")
    process = subprocess.Popen(
        [*COMMAND, "--root", str(tmp_path / "root"), "--port", "0", "--host", host, *FAST],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    listening = re.fullmatch(r"listening on (\[::1\]|127\.0\.0\.1):([1-9]\d*)\n", line)
    assert listening is not None, line
    with socket.create_connection((listening[1].strip("[]"), int(listening[2])), 20) as client:
        client.sendall(PING.encode())
        with client.makefile() as lines:
            assert "<ping/>" in lines.readline()
    process.terminate()
    out, error = process.communicate(timeout=READY_WITHIN)
    assert (process.returncode, out, error) == (0, "", "")


def ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_graceful_stop(tmp_path: Path, sig: int) -> None:
    """On SIGTERM and SIGINT: who waits gets an empty answer, the idle 503, then the end; exit code 0, nothing lost."""
    with serving(tmp_path / "root", *FAST) as server, Wire(server) as idle, Wire(server) as waiting:
        assert "<ping/>" in idle.ask(PING)
        waiting.ask(new_queue("q"))
        waiting.send(push("q", "kept"), receive("q"), receive("q", wait=60, req="w"), request("ping", req="p"))
        waiting.line()
        waiting.line()
        server.process.send_signal(sig)
        assert code(idle.line()) == 503
        answers = [waiting.line(), waiting.line()]
        assert req(answers[0]) == "w"
        assert mids(answers[0]) == []
        assert (req(answers[1]), code(answers[1])) in (("p", 0), ("p", 503))
        idle.close()
        waiting.close()
        assert server.stop() == 0
    with serving(tmp_path / "root", *FAST) as server, Wire(server) as wire:
        assert len(mids(wire.ask(request("list-messages", "<qid>q</qid>", state="in-flight")))) == 1


def test_a_second_signal(tmp_path: Path) -> None:
    """A second signal cuts off the clients that keep it, at once; what was answered is there. Exit code 0."""
    server = ServerProcess(tmp_path / "root", "--grace", "60", "--linger", "60")
    with Wire(server) as wire:
        wire.ask(new_queue("q"), push("q", "kept"))
        server.process.send_signal(signal.SIGTERM)
        assert code(wire.line()) == 503  # and it lingers for the client to close
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 10
    assert "Traceback" not in server.log()
    with serving(tmp_path / "root") as again, Wire(again) as wire:
        assert payloads(wire.ask(receive("q"))) == ["kept"]


def test_the_root_vanishes(tmp_path: Path) -> None:
    """When somebody removes the root from under it, requests are refused, and it stops as always: no traceback."""
    with serving(tmp_path / "root") as server, Wire(server) as wire:
        wire.ask(new_queue("q"), push("q", "x"))
        shutil.rmtree(tmp_path / "root")
        assert code(wire.ask(push("q", "y"))) in (404, 500)
        assert code(wire.ask(new_queue("z"))) in (404, 500)
        assert "<ping/>" in wire.ask(PING)
        wire.close()
        assert server.stop() == 0


# -- the disk ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    directory = tmp_path / "small"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"NOT TESTED: no small file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@pytest.mark.parametrize("durability", ["always", "none"])
def test_a_full_disk(small_disk: Path, durability: str) -> None:
    """Pushes that find the disk full are 507; what was answered stays; receiving and deleting go on and make room."""
    root = small_disk / "root"
    with serving(root, "--durability", durability) as server, Wire(server) as wire:
        wire.ask(new_queue("q"))
        stored: list[int] = []
        while code(answer := wire.ask(push("q", "x" * 20_000))) == 0:
            stored += mids(answer)
        assert code(answer) == 507
        assert len(stored) > 10
        assert code(wire.ask(push_list("q", *["y" * 9000] * 20))) == 507
        while code(answer := wire.ask(push("q", "z" * 100))) == 0:
            stored += mids(answer)
        assert code(wire.ask(new_queue("one-more"))) in (0, 507)
        assert mids(wire.ask(request("list-messages", "<qid>q</qid>", state="all"))) == stored
        assert mids(wire.ask(receive("q", max=1000))) == stored
        assert mids(wire.ask(delete("q", stored[0]))) == stored[:1]
        assert mids(wire.ask(delete("q", stored[1]))) == stored[1:2]
        new = mids(wire.ask(push("q", "x" * 20_000)))
        assert len(new) == 1
        assert not [name for name in os.listdir(root / "q") if name.endswith((".new", ".tmp")) or "batch" in name]
        wire.close()
        assert server.stop() == 0
        with serving(root, "--durability", durability) as again, Wire(again) as later:
            listed = request("list-messages", "<qid>q</qid>", state="all")
            assert mids(later.ask(listed)) == stored[2:] + new


# -- what lasts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["always", "interval", "none"])
def test_a_restart(tmp_path: Path, durability: str) -> None:
    """A restart keeps messages, their order and counts of receives, what is in flight and delayed, and what was never
    retrieved."""
    root = tmp_path / "root"
    with serving(root, "--durability", durability) as server, Wire(server) as wire:
        wire.ask(new_queue("q", '<options visibility="3600"/>'))
        pushed = mids(wire.ask(push_list("q", *"abcdef")))
        delayed = mids(wire.ask(push("q", "later", delay=3600)))
        assert mids(wire.ask(receive("q", max=3))) == pushed[:3]
        wire.ask(request("release-message", f"<qid>q</qid><mid>{pushed[0]}</mid>"))
        wire.ask(receive("q"))
        wire.ask(request("release-message", f"<qid>q</qid><mid>{pushed[0]}</mid>"))
        wire.ask(delete("q", pushed[1]))
    with serving(root, "--durability", durability) as server, Wire(server) as wire:

        def listed(state: str) -> list[int]:
            return mids(wire.ask(request("list-messages", "<qid>q</qid>", state=state)))

        assert listed("all") == [pushed[0], *pushed[2:], *delayed]
        assert listed("new") == [*pushed[3:], *delayed]
        assert listed("in-flight") == [pushed[2]]
        assert listed("delayed") == delayed
        answer = wire.ask(receive("q", max=10))
        assert mids(answer) == [pushed[0], *pushed[3:]]
        assert re.findall(r'receives="(\d)"', answer) == ["3", "1", "1", "1"]
        assert mids(wire.ask(push("q", "new")))[0] > delayed[0]


def test_two_servers_share_a_queue(tmp_path: Path) -> None:
    """Two servers on one root: what is pushed at one wakes who waits at the other, and nothing is given twice."""
    root = tmp_path / "root"
    with serving(root, *FAST) as one, serving(root, *FAST) as two, Wire(one) as first, Wire(two) as second:
        first.ask(new_queue("q"))
        second.send(receive("q", wait=20))
        while "404" in (answer := (first.ask(push("q", "across")), second.line())[1]):
            second.send(receive("q", wait=20))  # the other had not noticed the new queue yet
        assert payloads(answer) == ["across"]
        assert mids(first.ask(receive("q"))) == []
        mid = mids(answer)[0]
        assert mids(first.ask(delete("q", mid))) == [mid]
        assert code(second.ask(delete("q", mid))) == 404
        pushed = mids(first.ask(push_list("q", *map(str, range(100)))))
        got: list[int] = []
        while len(got) < 100:
            found = mids(first.ask(receive("q", max=3, wait=5))) + mids(second.ask(receive("q", max=3, wait=1)))
            assert found
            got += found
        assert sorted(got) == pushed


PUBLISH = """
import sys, threading, warnings
warnings.simplefilter("ignore")
if not hasattr(threading.Condition, "notifyAll"):
    threading.Condition.notifyAll = threading.Condition.notify_all
from vsqs.queue import QueueManager
manager = QueueManager(sys.argv[1])
queue = manager.get_queue(sys.argv[2])
sys.stdin.readline()
print(queue.publish(b"from vsqs"), flush=True)
sys.stdin.readline()
print(queue.size(), flush=True)
manager.close()
"""


def test_a_vsqs_process_publishes(server: ServerProcess, wire: Wire) -> None:
    """The original vsqs publishes into a directory that is being served, and that wakes who waits there; it sees it
    gone once it is deleted here."""
    pytest.importorskip("vsqs")
    publisher = subprocess.Popen(
        [sys.executable, "-c", PUBLISH, str(server.root), "q"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert publisher.stdin is not None
    assert publisher.stdout is not None
    wire.send(receive("q", wait=20))
    publisher.stdin.write("go\n")
    publisher.stdin.flush()
    mid = int(publisher.stdout.readline())
    answer = wire.line()
    assert (mids(answer), payloads(answer)) == ([mid], ["from vsqs"])
    assert mids(wire.ask(delete("q", mid))) == [mid]
    out, _ = publisher.communicate("go\n", timeout=20)
    assert int(out) == 0


def test_an_idle_server_sleeps(tmp_path: Path) -> None:
    """With 20 clients connected, three of them waiting, and a message in flight, it wakes up at most once in 1.5 s."""
    with serving(tmp_path / "root", "--durability", "always") as server:
        wires = [Wire(server) for _ in range(20)]
        wires[0].ask(new_queue("q"), push("q", "x"), receive("q", visibility=600))
        for wire in wires:
            assert "<ping/>" in wire.ask(PING)
        for wire in wires[:3]:
            wire.send(receive("q", wait=600))
        before = settled(server)
        select.select([wires[0].socket], [], [], 1.5)
        assert switches(server) - before <= 1
        for wire in wires:
            wire.close()


def switches(server: ServerProcess) -> int:
    """How often its threads have gone to sleep so far."""
    tasks = Path(f"/proc/{server.process.pid}/task")
    found = (
        re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.M) for task in tasks.iterdir()
    )
    return sum(int(match[1]) for match in found if match)


def settled(server: ServerProcess) -> int:
    """The count, once it has stayed the same for 0.2 s."""
    for _ in range(50):
        before = switches(server)
        time.sleep(0.2)
        if switches(server) == before:
            return before
    raise AssertionError("it does not come to rest")


def test_no_descriptor_is_lost(server: ServerProcess, wire: Wire) -> None:
    """A thousand connections, refused, reset and ended in all ways, leave no descriptor open."""

    def descriptors() -> int:
        return len(os.listdir(f"/proc/{server.process.pid}/fd"))

    before = descriptors()
    for number in range(300):
        with Wire(server) as other:
            other.send((PING, "<broken", push("q", "x")[:30], "")[number % 4])
            if number % 3 == 0:
                other.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    for _ in range(100):
        if descriptors() <= before:
            break
        assert "<ping/>" in wire.ask(PING)
        time.sleep(0.02)
    assert descriptors() <= before
