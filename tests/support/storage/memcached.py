"""A real memcached for tests, and an engine over it.

The server is started on a free port, stopped by its process id, and started again on the same port.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from qs_storage.engine import SECOND, Draft, Options, Receipt, State
from qs_storage.remote.memcached import MemcachedEngine
from qs_testing.programs import until
from support.storage.engines import LOTS, ManualClock

BINARY = shutil.which("memcached")
NOT_TESTED = (
    "NOT TESTED: the storage 'memcached', because there is no memcached on this machine (apt install memcached)"
)
needs_memcached = pytest.mark.skipif(BINARY is None, reason=NOT_TESTED)
_LONG = 20
"""Seconds: only a failure waits that long."""


class Memcached:
    """A memcached process on the loopback interface. Use it in a with statement."""

    def __init__(self, *flags: str, port: int | None = None, log: Path | None = None) -> None:
        """flags: added to address and port, such as `-m 1`. port: None for one that memcached lets the system choose.
        log: a file for memcached's errors and for every command that it gets."""
        self._flags = (*flags, "-vv") if log else flags
        self._log = log or Path(os.devnull)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = self.start(port)

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, port: int | None = None) -> int:
        """Starts memcached, after `kill` on its former port. Returns the port on which it listens."""
        if BINARY is None:
            pytest.skip(NOT_TESTED)
        with tempfile.TemporaryDirectory() as directory:
            said = Path(directory, "port")
            chosen = "-1" if port is None else str(port)  # -1: the system's choice, which it writes into the file
            command = [BINARY, "-l", "127.0.0.1", "-p", chosen, *self._flags]
            if os.getuid() == 0:
                command += ["-u", "root"]
            environment = os.environ | {"MEMCACHED_PORT_FILENAME": str(said)}
            with self._log.open("ab") as log:
                self._process = process = subprocess.Popen(command, env=environment, stderr=log)

            def listens() -> bool:
                assert process.poll() is None, "memcached has ended"
                return _port_in(said) != 0

            until(listens, Path(directory))
            self.port = _port_in(said)
        return self.port

    def command(self, line: str) -> bytes:
        """Returns the answer to a line, as far as one read gives it."""
        with socket.create_connection(self.address, _LONG) as connection:
            connection.sendall(line.encode() + b"\r\n")
            return connection.recv(1 << 20)

    def send(self, signum: int) -> None:
        assert self._process is not None
        self._process.send_signal(signum)

    def kill(self) -> None:
        """Kills memcached, and returns when it has ended."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(_LONG)
            self._process = None

    def restart(self) -> None:
        """Kills memcached, and starts another one on the same port."""
        self.kill()
        self.start(self.port)

    def __enter__(self) -> "Memcached":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()


def _port_in(file: Path) -> int:
    text = file.read_text() if file.exists() else ""
    return next((int(line.split(":")[1]) for line in text.splitlines(keepends=True) if line.endswith("\n")), 0)


def engine_on(
    *servers: Memcached, root: Path, clock: Callable[[], int] | None = None, namespace: str | None = None
) -> MemcachedEngine:
    """Returns an engine over memcached servers, with a namespace of its own unless one is given."""
    return MemcachedEngine(
        str(root),
        clock=clock or ManualClock(),
        servers=[server.address for server in servers],
        namespace=namespace or uuid.uuid4().hex,
    )


def push_and_receive(address: tuple[str, int], root: str, namespace: str, each: int, results: Any) -> None:
    """Works like a qs server: pushes to the queue q, and receives until nothing comes for a while. Runs in a spawned
    process, which has to find the function in a module. results: gets the ids."""
    clock = lambda: time.time_ns() // 1000  # noqa: E731
    engine = MemcachedEngine(root, clock=clock, servers=[address], namespace=namespace)
    engine.create("q", Options())
    found = []
    for number in range(each):
        engine.queue("q").push([Draft(b"%d" % number)])
        found += [message.mid for message in engine.receive(["q"], 1, 600 * SECOND, 1 << 40)]
    while messages := engine.receive(["q"], 10, 600 * SECOND, 1 << 40, wait=1.5):
        found += [message.mid for message in messages]
    results.put(found)
    engine.close()


LONG = 20
"""Seconds: only a failure waits that long."""
MakeEngine = Callable[..., MemcachedEngine]


def push_numbers(engine: MemcachedEngine, count: int, *, delay: int = 0, at_once: int = 100) -> list[int]:
    mids: list[int] = []
    for start in range(0, count, at_once):
        numbers = range(start, min(start + at_once, count))
        mids += engine.queue("q").push([Draft(b"%d" % number, delay) for number in numbers])
    return mids


def drain(engine: MemcachedEngine, count: int = 1000) -> list[int]:
    """Receives and deletes everything. Returns the ids in their order."""
    found = []
    while messages := engine.receive(["q"], count, None, LOTS):
        for message in messages:
            engine.queue("q").delete(Receipt(message.mid, message.receives))
            found.append(message.mid)
    return found


def listed(engine: MemcachedEngine, state: State = State.ALL) -> list[int]:
    return engine.queue("q").list_mids(state, 1_000_000, -1)


def items(memcached: Memcached) -> int:
    lines = memcached.command("stats").decode().split("\r\n")
    return next(int(line.split()[2]) for line in lines if line.startswith("STAT curr_items "))


def push(engine: MemcachedEngine, *payloads: bytes) -> list[int]:
    return engine.queue("q").push([Draft(payload) for payload in payloads])


def receive(engine: MemcachedEngine, count: int = 1000) -> list[bytes | None]:
    return [message.payload for message in engine.receive(["q"], count, None, LOTS)]
