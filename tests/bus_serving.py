"""A real bus process for tests, beside a real queue server: known to be ready, ended by its own id."""

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from serving import PROJECT, READY_WITHIN, ServerProcess

COMMAND = [sys.executable, str(PROJECT / "scripts" / "queue-bus.py")]


class Address(Protocol):
    """Where something listens: a server, a bus, or what stands between them."""

    host: str
    port: int


def lasting_port() -> int:
    """A free port for what is killed and started again. Not one that the system gives to connections: such a port may
    be taken meanwhile, even by the very client that tries to reach it."""
    with contextlib.suppress(OSError, ValueError):
        least = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        for _ in range(100):
            port = random.randrange(10_000, least)
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
                return port
    return 0


class BusProcess:
    """`queue-bus.py` as a child. host and port are known once the constructor returns; `log()` is its stderr.

    server: what it is a client of, which need not run; log: a file, if the server has no root for it to stand beside.
    """

    def __init__(self, server: Address, *flags: str, port: int = 0, log: Path | None = None) -> None:
        if log is None:
            assert isinstance(server, ServerProcess)
            log = server.root.parent / f"{server.root.name}-bus.log"
        self._log = log
        self._command = [*COMMAND, "--server", f"{server.host}:{server.port}", *flags]
        self.host, self.port = "127.0.0.1", port
        self.start()

    def start(self) -> None:
        """Starts it, or starts it again after it has ended: on the same port, with the same flags and the same log."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self._command, "--port", str(self.port)],
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        ready = re.fullmatch(r"listening on (.+):(\d+)\n", line)
        if ready is None:
            self._wait()
            raise AssertionError(f"the bus did not start: {line!r}\n{self.log()}")
        self.host, self.port = ready.group(1), int(ready.group(2))

    def log(self) -> str:
        return self._log.read_text()

    def connect(self, timeout: float = 20) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout)

    def kill(self) -> None:
        """kill -9, at once."""
        self.process.kill()
        self._wait()

    def stop(self, sig: int = signal.SIGTERM) -> int:
        """Asks it to stop, and gives its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
        return self._wait()

    def _wait(self) -> int:
        code = self.process.wait(READY_WITHIN)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


@contextlib.contextmanager
def bus_serving(server: Address, *flags: str, port: int = 0, log: Path | None = None) -> Iterator[BusProcess]:
    """A bus process for the length of a with block. Its log must hold no traceback at the end."""
    bus = BusProcess(server, *flags, port=port, log=log)
    try:
        yield bus
    finally:
        bus.stop()
    assert "Traceback" not in bus.log(), bus.log()
