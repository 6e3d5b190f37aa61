"""What is measured in `rivals`, and what each system has to offer for that."""

import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Protocol

Publish = Callable[[Sequence[bytes]], Awaitable[float]]
"""Publishes messages together, as is usual with the client. Returns when the system has taken them, in the way that it
promises; what it returns is the clock from just before the first call."""
Received = Callable[[int], None]
"""Is told the number of a subscriber each time that it gets a message; from any thread."""


class Rival(Protocol):
    """A system that takes a message and gives it to every subscriber."""

    name: str
    survives: str
    """Which messages are still there after a crash of the system, or a power loss, with these settings."""

    def started(self, folder: Path) -> AbstractContextManager[None]:
        """Runs it on loopback with all its files in the folder, which exists."""
        ...

    def subscribed(self, subscribers: int, received: Received) -> AbstractAsyncContextManager[Publish]:
        """So many subscribers with a connection each, that all get every message from now on; and a publisher."""
        ...


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


class Program:
    """A process of somebody else's: started, known to be ready when its port can be connected to, ended by its id."""

    def __init__(
        self, command: Sequence[str], port: int, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, cwd=log.parent
            )
        try:
            self._wait_for(port)
        except BaseException:
            self.end()
            raise

    def _wait_for(self, port: int, seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                time.sleep(0.02)  # it cannot tell us
            else:
                return
        raise RuntimeError(f"{self._process.args!r} does not listen: {self._log.read_text()[-2000:]}")

    def end(self) -> None:
        """Asks it to end; makes it, if it does not."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> "Program":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
