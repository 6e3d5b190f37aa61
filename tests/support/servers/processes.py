"""The programs of qs as real processes: on a free port, known to be ready, ended by their own id.

A test waits for what a process writes (`until`), or counts how often a process wakes up.
"""

import contextlib
import itertools
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from qs_testing.forking import forking
from qs_testing.programs import WITHIN, Program, until

PROJECT = Path(__file__).resolve().parents[3]
SCRIPT = PROJECT / "scripts" / "queue-server.py"
COMMAND = [sys.executable, str(SCRIPT)]
WITH_SUPPORT = {**os.environ, "PYTHONPATH": str(PROJECT / "tests")}
"""The environment of a process that runs a module of this package: `python -m support.NAME`."""
FAST = ("--durability", "none")


class Address(Protocol):
    """The address of a server, a bus, or a proxy between them."""

    host: str
    port: int


Listening = Program


class ServerProcess(Listening):
    """`queue-server.py` as a process."""

    name = "server"
    modules = ("qs_server.main.queue_server", "qs_server.main.server")

    def __init__(self, root: Path, *flags: str, port: int = 0, log: Path | None = None) -> None:
        """log: the file for its stderr, None for one beside the root."""
        self.root = root
        log = log or root.parent / f"{root.name}.log"
        super().__init__(SCRIPT, ("--root", str(root), *flags), port, log)

    def until(self, condition: Callable[[], object], within: float = WITHIN) -> None:
        """Waits until a condition holds that changes with the files in the directories of the queues or of the journal.
        within: seconds."""
        until(condition, self.root, self.root / ".journal", within=within)


def run_server(*flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs `queue-server.py` with flags with which it ends by itself. variables: added to the present environment."""
    return forking(*ServerProcess.modules).run(SCRIPT, *flags, **variables)


@contextlib.contextmanager
def serving(root: Path, *flags: str, port: int = 0) -> Iterator[ServerProcess]:
    """Runs a server process for the length of a with block. Its log must hold no traceback at the end."""
    server = ServerProcess(root, *flags, port=port)
    try:
        yield server
    finally:
        server.stop()
    assert "Traceback" not in server.log(), server.log()


class Wire:
    """A connection to a server, line by line."""

    def __init__(self, server: Listening, connected: socket.socket | None = None) -> None:
        """connected: a socket that is connected to the server already."""
        self.server = server
        self.socket = connected or server.connect()
        self._lines = self.socket.makefile("rb")

    def send(self, *documents: str | bytes) -> None:
        self.socket.sendall(b"".join(d.encode() if isinstance(d, str) else d for d in documents))

    def line(self) -> str:
        """Returns the next answer; empty at the end of the stream."""
        return self._lines.readline().decode()

    def ask(self, *documents: str | bytes) -> str:
        """Sends the documents. Returns the answer to the last one."""
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
    """Raised when the server has been killed."""


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


BUS_SCRIPT = PROJECT / "scripts" / "queue-bus.py"
BUS_COMMAND = [sys.executable, str(BUS_SCRIPT)]
_numbers = itertools.count(1)


def lasting_port() -> int:
    """Returns a free port for a program that is killed and started again. The port is not one that the system gives to
    outgoing connections: such a port may be taken meanwhile, even by the very client that tries to reach it."""
    with contextlib.suppress(OSError, ValueError):
        least = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        for _ in range(100):
            port = random.randrange(10_000, least)
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
                return port
    return 0


class BusProcess(Listening):
    """`queue-bus.py` as a process.

    server: its queue server, which need not run; log: a file, if the server has no root beside which the log could
    stand.
    """

    name = "bus"
    modules = ("qs_bus.command", "qs_bus.bus")

    def __init__(self, server: Address, *flags: str, port: int = 0, log: Path | None = None) -> None:
        if log is None:
            assert isinstance(server, ServerProcess)
            log = server.root.parent / f"{server.root.name}-bus-{next(_numbers)}.log"
        super().__init__(BUS_SCRIPT, ("--server", f"{server.host}:{server.port}", *flags), port, log)


def run_bus(*flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs `queue-bus.py` with flags with which it ends by itself. variables: as for `run_server`."""
    return forking(*BusProcess.modules).run(BUS_SCRIPT, *flags, **variables)


@contextlib.contextmanager
def bus_serving(server: Address, *flags: str, port: int = 0, log: Path | None = None) -> Iterator[BusProcess]:
    """Runs a bus process for the length of a with block. Its log must hold no traceback at the end."""
    bus = BusProcess(server, *flags, port=port, log=log)
    try:
        yield bus
    finally:
        bus.stop()
    assert "Traceback" not in bus.log(), bus.log()


def wakeups(pid: int) -> int:
    """Returns how often the threads of a process have gone to sleep by themselves, which is how often they woke up."""
    count = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        lines = status.read_text().splitlines()
        count += next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return count


def polling(seconds: float) -> subprocess.Popen[bytes]:
    """Starts a process that wakes up again and again. Returns when the process has begun."""
    program = f"import time; print(flush=True)\nwhile True: time.sleep({seconds})"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def settled(*pids: int, seconds: float = 0.4, tries: int = 25) -> None:
    """Waits until none of the processes has woken up for that many seconds. Raises RuntimeError when that does not
    happen, as with a process that polls more often."""
    for _ in range(tries):
        if not any(woken(seconds, *pids)):
            return
    raise RuntimeError(f"processes {pids} do not come to rest")


def woken(seconds: float, *pids: int) -> list[int]:
    """Returns how often each of the processes wakes up in that many seconds."""
    before = [wakeups(pid) for pid in pids]
    time.sleep(seconds)
    return [wakeups(pid) - count for pid, count in zip(pids, before, strict=True)]
