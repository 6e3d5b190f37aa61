"""A real process for tests, a server above all: on a free port, known to be ready, ended by its own id."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from support.changes import WITHIN, until
from support.forked import ForkedProcess, forking

PROJECT = Path(__file__).resolve().parents[2]
SCRIPT = PROJECT / "scripts" / "queue-server.py"
COMMAND = [sys.executable, str(SCRIPT)]
WITH_SUPPORT = {**os.environ, "PYTHONPATH": str(PROJECT / "tests")}
"""The environment of a process that runs a module of this package: `python -m support.NAME`."""
READY_WITHIN = 30
FAST = ("--durability", "none")


class Address(Protocol):
    """The address of a server, a bus, or a proxy between them."""

    host: str
    port: int


class Listening:
    """A program as a process that listens, `name` in what is said of it, forked from one that has imported `modules`.
    host and port are known once the constructor returns; `log()` is its stderr."""

    name: str
    modules: Sequence[str]

    def __init__(self, script: Path, flags: Sequence[str], port: int, log: Path) -> None:
        self._script = script
        self._flags = flags
        self._log = log
        self.host, self.port = "127.0.0.1", port
        self.start()

    def start(self) -> None:
        """Starts it, or starts it again after it has ended: on the same port, with the same flags and the same log."""
        with self._log.open("ab") as log:
            self.process = self._launch([*self._flags, "--port", str(self.port)], log)
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        ready = re.fullmatch(r"listening on (.+):(\d+)\n", line)
        if ready is None:
            self.wait()
            raise AssertionError(f"the {self.name} did not start: {line!r}\n{self.log()}")
        self.host, self.port = ready.group(1), int(ready.group(2))

    def _launch(self, flags: list[str], log: BinaryIO) -> "ForkedProcess | subprocess.Popen[bytes]":
        """Starts the process. log: for its stderr; its stdout is a pipe."""
        return forking(*self.modules).start(self._script, *flags, log=log)

    def log(self) -> str:
        return self._log.read_text()

    def until_logged(self, text: str, times: int = 1) -> None:
        """Waits until the text is in its log, so often."""
        until(lambda: self.log().count(text) >= times, self._log.parent)

    def connect(self, timeout: float = 20) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout)

    def kill(self) -> None:
        """kill -9, at once."""
        self.process.kill()
        self.wait()

    def stop(self, sig: int = signal.SIGTERM) -> int:
        """Asks it to stop, and gives its exit code."""
        self.process.send_signal(sig)  # Popen sends nothing to a process that has ended
        return self.wait()

    def wait(self) -> int:
        """The exit code, once it has ended. subprocess.TimeoutExpired if it does not end within READY_WITHIN."""
        code = self.process.wait(READY_WITHIN)
        self.process.stdout.close()
        return code


class ServerProcess(Listening):
    """`queue-server.py` as a process."""

    name = "server"
    modules = ("qs_server.main.queue_server", "qs_server.main.server")

    def __init__(self, root: Path, *flags: str, port: int = 0, log: Path | None = None) -> None:
        """log: where its stderr goes, None for beside the root."""
        self.root = root
        log = log or root.parent / f"{root.name}.log"
        super().__init__(SCRIPT, ("--root", str(root), *flags), port, log)

    def until(self, condition: Callable[[], object], within: float = WITHIN) -> None:
        """Waits until a condition holds that changes with the queues, or with what those of the journal hold. within:
        seconds."""
        until(condition, self.root, self.root / ".journal", within=within)


def run_server(*flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs `queue-server.py` with flags with which it ends by itself. variables: of the environment, beside those of
    now."""
    return forking(*ServerProcess.modules).run(SCRIPT, *flags, **variables)


@contextlib.contextmanager
def serving(root: Path, *flags: str, port: int = 0) -> Iterator[ServerProcess]:
    """A server process for the length of a with block. Its log must hold no traceback at the end."""
    server = ServerProcess(root, *flags, port=port)
    try:
        yield server
    finally:
        server.stop()
    assert "Traceback" not in server.log(), server.log()


class Wire:
    """A connection to a server, line by line."""

    def __init__(self, server: Listening, connected: socket.socket | None = None) -> None:
        """connected: to the server already."""
        self.server = server
        self.socket = connected or server.connect()
        self._lines = self.socket.makefile("rb")

    def send(self, *documents: str | bytes) -> None:
        self.socket.sendall(b"".join(d.encode() if isinstance(d, str) else d for d in documents))

    def line(self) -> str:
        """Returns the next answer; empty at the end of the stream."""
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


class Gone(Exception):  # noqa: N818 - it is what happens, not a fault
    """The server has been killed."""


class MortalWire:
    """A connection on which the server may end at any moment."""

    def __init__(self, server: Listening) -> None:
        try:
            self._socket = server.connect()
        except OSError:
            raise Gone from None
        self._lines = self._socket.makefile("rb")

    def send(self, *documents: str) -> None:
        try:
            self._socket.sendall("".join(documents).encode())
        except OSError:
            raise Gone from None

    def line(self) -> str:
        try:
            line = self._lines.readline()
        except OSError:
            raise Gone from None
        if not line.endswith(b"\n"):
            raise Gone
        return line.decode()

    def ask(self, document: str) -> str:
        self.send(document)
        return self.line()

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


def exchange(connection: socket.socket, document: str | bytes, answers: int = 1) -> list[str]:
    """Sends the bytes and reads that many lines: one answer is one line."""
    connection.sendall(document.encode() if isinstance(document, str) else document)
    with connection.makefile("rb") as lines:
        return [lines.readline().decode() for _ in range(answers)]
