"""Secrets stay secret: everything is made to fail with a marked token and a marked key, and no output has the mark."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.access import (
    OTHER_TOKEN,
    TOKEN,
    WRONG_TOKEN,
    access_file,
    digest,
    files_below,
    leaks,
    marks,
    token_files,
    write_secret,
)
from support.clients.access import write_secret as write
from support.servers.processes import (
    COMMAND,
    FAST,
    WITH_SUPPORT,
    BusProcess,
    ServerProcess,
    Wire,
    lasting_port,
    serving,
)
from support.servers.tls import Certificate, authority, local

from qs_testing.programs import until

QS = str(Path(sys.executable).parent / "qs")
CA = str(authority().cert)
OTHER_CA = str(authority("another CA").cert)


class World:
    """A server with TLS and an access file, at `-vv`, and all that was printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secrets = folder / "secrets"
        self.secrets.mkdir()
        self.tokens = token_files(self.secrets)
        self.access = access_file(self.secrets / "access.toml", "orders", "bus:*")
        given = local()
        self.certificate = Certificate(self.secrets / "server.pem", write_secret(self.secrets / "server.key", ""))
        self.certificate.cert.write_text(given.cert.read_text())
        self.certificate.key.write_text(given.key.read_text())
        self.sought = marks(given.key)
        self.told: list[tuple[str, str | bytes]] = []
        tls = ["--tls-cert", str(self.certificate.cert), "--tls-key", str(self.certificate.key)]
        self.closing = [*tls, "--access", str(self.access)]
        history = ["--history", str(folder / "history"), "--history-age", "0.1"]
        self.server = ServerProcess(folder / "root", *FAST, "-vv", *history, *self.closing, port=lasting_port())
        self.secure = ["--server", f"qss://localhost:{self.server.port}", "--ca", CA]
        self.with_token = [*self.secure, "--token-file", self.tokens["token"]]

    def run(self, *command: str, code: int, told: str = "", **environment: str) -> str:
        """Runs a program, keeps what it prints, and compares its exit code. told: is to be in it."""
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**WITH_SUPPORT, **environment},
        )
        self.told += [(f"stdout of {command}", done.stdout), (f"stderr of {command}", done.stderr)]
        assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert told in done.stdout + done.stderr, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def note_processes(self) -> None:
        """Keeps the command lines of all processes, as everybody on the machine can see them."""
        for each in Path("/proc").glob("[0-9]*/cmdline"):
            if int(each.parent.name) != os.getpid():
                with contextlib.suppress(OSError):
                    self.told.append((str(each), each.read_bytes().replace(b"\0", b" ")))

    def leaks(self) -> list[str]:
        """Returns where a mark was printed, logged or written."""
        given = [self.folder / "secrets" / each.name for each in self.secrets.iterdir()]
        return leaks([*self.told, *files_below(self.folder, but=given)], self.sought)


OPEN = '<qs xmlns="http://purl.oclc.org/DEFUZE/qs"><op>'


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """With a queue `orders`, which the tokens' owner may use."""
    world = World(tmp_path)
    try:
        world.run(QS, *world.with_token, "new", "orders", code=0)
        yield world
    finally:
        world.server.stop()


def test_the_search_finds_marks(world: World) -> None:
    """A test that finds nothing would prove little: each kind of mark is found in a file, a log and an output."""
    key = world.certificate.key.read_text()
    for mark in (TOKEN, OTHER_TOKEN, WRONG_TOKEN, digest(TOKEN), key):
        shown = world.folder / "shown"
        shown.write_text(f"x{mark}y")
        assert world.leaks()
        shown.unlink()
        assert not world.leaks()


@pytest.mark.slow  # some 5 seconds: 14 commands
def test_commands_that_fail(world: World) -> None:
    """`qs` with wrong tokens, CAs, keys and addresses says what is wrong, and never shows a token."""
    files = world.tokens
    two = str(write(world.secrets / "two.token", f"{TOKEN}\n{OTHER_TOKEN}\n"))
    shared = write(world.secrets / "shared.token", TOKEN)
    shared.chmod(0o644)
    place = f"localhost:{world.server.port}"
    key, other_key = str(world.certificate.key), str(authority().sign("DNS:other").key)
    run, secure, with_token = world.run, world.secure, world.with_token
    run(QS, *with_token, "push", "others", "x", code=1, told="403")
    run(QS, *secure, "ls", code=1, told="401", QS_TOKEN=WRONG_TOKEN)
    run(QS, *secure, "ls", code=1, QS_TOKEN=f"{TOKEN} {TOKEN}")
    run(QS, *secure, "ls", code=1, QS_TOKEN=TOKEN * 30)
    run(QS, *secure, "--token-file", two, "ls", code=1, told="two.token")
    run(QS, *secure, "--token-file", str(shared), "ls", code=0, told="everybody on this machine can read")
    run(QS, *secure, "--token-file", key, "ls", code=1, told="server.key")
    run(QS, *secure, "--token-file", "/nowhere/token", "ls", code=1, told="/nowhere/token")
    run(QS, *secure, "--cert", str(world.certificate.cert), "--client-key", other_key, "ls", code=1, told="key")
    run(QS, "-s", f"qss://{place}", "--ca", OTHER_CA, "--token-file", files["token"], "ls", code=1, told="certif")
    run(QS, "-s", f"qss://{place}", "--ca", key, "--token-file", files["token"], "ls", code=1, told="server.key")
    run(QS, "-s", place, "--token-file", files["token"], "--timeout", "5", "ls", code=1)
    run(QS, "-s", f"qss://me:{TOKEN}@{place}", "ls", code=2, told="no password")
    run(QS, "ls", code=2, told="no password", QS_SERVER=f"qss://{TOKEN}@{place}")
    assert world.leaks() == []


@pytest.mark.slow  # some 8 seconds: 14 starts
def test_flags_and_files_of_the_server_that_are_wrong(world: World) -> None:
    """A start, and --check, with files that are confused with each other or hold the token itself."""
    command = [*COMMAND, "--root", str(world.folder / "other"), "--port", "0", "--check"]
    cert, key, access = str(world.certificate.cert), str(world.certificate.key), str(world.access)
    plain = str(write(world.secrets / "plain.toml", f'[principals.a]\ntokens = ["{TOKEN}"]\n'))
    twice = str(
        write(world.secrets / "twice.toml", "".join(f'[principals.{n}]\ntokens = ["{digest(TOKEN)}"]\n' for n in "ab"))
    )
    broken = str(write(world.secrets / "broken.toml", f'[principals.a]\ntokens = ["{digest(TOKEN)}"\n{TOKEN}\n'))
    named = str(write(world.secrets / "named.toml", f"[principals.a]\n{TOKEN} = true\n"))
    for wrong in (plain, twice, broken, named, key, world.tokens["token"]):
        world.run(*command, "--access", wrong, code=1)
    world.run(*command[:-1], "--access", plain, code=1)
    world.run(*command, "--tls-cert", key, "--tls-key", cert, code=1)
    world.run(*command[:-1], "--tls-cert", key, "--tls-key", cert, code=1)
    world.run(*command, "--tls-cert", cert, "--tls-key", str(authority().sign("DNS:other").key), code=1)
    world.run(*command, "--tls-cert", cert, "--tls-key", world.tokens["token"], code=1)
    world.run(*command, "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", key, "--access", access, code=1)
    world.run(*command, *world.closing, code=0)
    assert world.leaks() == []


def test_a_server_that_is_reloaded_and_killed(world: World) -> None:
    """Reloads of bad files, requests that carry tokens where none belongs, and kill -9 while a program waits."""
    server = world.server
    with Wire(server) as plain:  # on a TLS port
        plain.send(f"{OPEN}<authenticate/></op><token>{TOKEN}</token></qs>")
        with contextlib.suppress(ConnectionError):
            world.told.append(("plain text on the TLS port", plain.line()))
    waiting = subprocess.Popen(
        [QS, *world.secure, "receive", "orders", "--wait", "60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "QS_TOKEN": TOKEN},
        text=True,
    )
    try:
        world.note_processes()
        for path, text in (
            (world.access, f'[principals.a]\ntokens = ["{TOKEN}"]\n'),
            (world.access, f"[principals.a]\ntokens = {digest(TOKEN)}\n"),
            (world.certificate.key, "-----BEGIN PRIVATE KEY-----\n" + world.sought[-1]),
        ):
            before = path.read_text()
            lines = len(server.log())
            path.write_text(text)
            server.process.send_signal(signal.SIGHUP)
            until(lambda lines=lines: len(server.log()) > lines, world.folder)  # type: ignore[misc]
            path.write_text(before)
        world.run(QS, *world.with_token, "push", "orders", "still open", code=0)
        assert waiting.wait(60) == 0
        server.kill()
        world.run(QS, *world.with_token, "--timeout", "5", "ls", code=1)
    finally:
        waiting.kill()
        world.told.append(("the program that waits", waiting.communicate()[0]))
    assert world.leaks() == []


@pytest.mark.slow  # some 10 seconds
def test_the_bus_and_the_python_clients(world: World) -> None:
    """Python programs fail against the server and the bus, and print tracebacks, logs and repr; one bus has a wrong
    token, another loses its server and gets bad files."""
    tokens = world.tokens
    towards = ["-q", "orders", "-vv", "--server-ca", CA, "--server-token-file"]
    mistaken = BusProcess(world.server, *towards, tokens["wrong"])
    bus = BusProcess(world.server, *towards, tokens["token"], *world.closing)
    try:
        mistaken.until_logged("401")
        ports = [str(port) for port in (world.server.port, bus.port, mistaken.port)]
        printed = world.run(
            sys.executable, "-m", "support.clients.secret_clients", "localhost", *ports, CA, OTHER_CA,
            code=1, told="Forbidden", MARK=TOKEN, WRONG=WRONG_TOKEN,
        )  # fmt: skip
        assert printed.count("failed as it should") == 14
        world.run(
            QS, "tail", "orders", "--bus", f"qss://localhost:{bus.port}", "--ca", CA, code=1, QS_TOKEN=WRONG_TOKEN
        )
        world.note_processes()
        good = world.access.read_text()
        write(world.access, good.replace(digest(TOKEN), TOKEN))
        bus.process.send_signal(signal.SIGHUP)
        bus.until_logged("after SIGHUP")
        write(world.access, good)
        world.server.kill()
        bus.until_logged("connecting again")
        world.server.start()
        assert (bus.stop(), mistaken.stop()) == (0, 0)
    finally:
        for each in (bus, mistaken):
            each.kill()
    assert world.leaks() == []


HOSTILE = [
    f"{OPEN}<authenticate/></op><token>{WRONG_TOKEN}</token></qs>",
    f"{OPEN}<authenticate/></op><token>{TOKEN}</qs>",
    f"{OPEN}<authenticate/></op><token>{TOKEN}&#0;</token></qs>",
    f"{OPEN}<authenticate/></op><token><{TOKEN}/></token></qs>",
    f"{OPEN}<authenticate/></op><{TOKEN}/></qs>",
    f"{OPEN}<authenticate token='{TOKEN}'/></op></qs>",
    f"{OPEN}<{TOKEN}/></op></qs>",
    f"{OPEN}<ping/></op><token>{TOKEN}</token></qs>",
    f"{OPEN}<push-message/></op><qid>{TOKEN[:60]}</qid><token>{TOKEN}</token></qs>",
    f"<qs xmlns='{TOKEN}'><op><authenticate/></op></qs>",
    f"{TOKEN} is no document",
    f"{OPEN}<authenticate/></op><token>{TOKEN * 100}</token></qs>",
]


def test_the_log_of_a_server_that_gets_it_wrong(tmp_path: Path) -> None:
    """A token that is wrong, or stands where none belongs, is in no log, though the answer may show it. The server has
    no TLS, so that any bytes can be sent."""
    access = access_file(tmp_path / "access.toml", "orders")
    with serving(tmp_path / "root", *FAST, "-vv", "--access", str(access), "--max-document", "2000") as server:
        for document in HOSTILE:
            with Wire(server) as wire:
                wire.send(document)
                assert wire.line(), document
    assert "a wrong token" in server.log()
    assert leaks([("log", server.log())], marks()) == []
