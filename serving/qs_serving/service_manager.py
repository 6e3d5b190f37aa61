"""Tells systemd, or another service manager that speaks its protocol, how the process is doing.

The protocol is that of sd_notify(3): lines `NAME=value` in a datagram to the socket that NOTIFY_SOCKET names.
"""

import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping

import trio

_logger = logging.getLogger(__name__)
_PATIENCE = 1.0
"""Seconds that a datagram may wait for room in the socket of the service manager."""


class ServiceManager:
    """The service manager that has started this process. Without one, nothing is sent."""

    def __init__(self, environ: Mapping[str, str] | None = None, pid: int | None = None) -> None:
        """environ: the environment of the process, None for no service manager; pid: its id, None to ask the system."""
        self.environ = {} if environ is None else environ
        self.pid = os.getpid() if pid is None else pid
        self._address = _address(self.environ.get("NOTIFY_SOCKET", ""))

    @property
    def is_there(self) -> bool:
        """Tells whether somebody listens to what the process says of itself."""
        return self._address is not None

    @property
    def ping_interval(self) -> float | None:
        """Seconds between two signs of life: half of what the service manager waits for. None if it does not wait."""
        usec = self.environ.get("WATCHDOG_USEC", "")
        if self._address is None or self.environ.get("WATCHDOG_PID", str(self.pid)) != str(self.pid):
            return None
        return int(usec) / 2e6 if usec.isascii() and usec.isdigit() and int(usec) else None

    def ready(self, status: str) -> None:
        """Says that clients are served, after a start or a reload. status: a line for people."""
        if self._address is None and (name := self.environ.get("NOTIFY_SOCKET")):
            _logger.warning("NOTIFY_SOCKET=%s is no socket of this machine: nothing is sent there", name)
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Says that files are read again. Call `ready` when that is done."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now}", "STATUS=reading files again")

    def stopping(self) -> None:
        """Says that the process finishes what is begun, and ends."""
        self._send("STOPPING=1", "STATUS=finishing what is begun")

    async def ping(self, probe: Callable[[], Awaitable[None]]) -> None:
        """Gives a sign of life each time that `probe` has returned, until it is cancelled. Returns at once if nobody
        waits for that."""
        if (interval := self.ping_interval) is None:
            return
        while True:
            await probe()
            self._send("WATCHDOG=1")
            await trio.sleep(interval)

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(_PATIENCE)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            _logger.warning("the service manager could not be told %s: %s", lines[0], error)


def _address(name: str) -> str | None:
    """Returns the address of a socket of the local machine, None for others. One of the abstract name space is written
    with @."""
    if name.startswith("@"):
        return f"\0{name[1:]}"
    return name if name.startswith("/") else None
