"""Speaks with systemd, or another service manager with the same protocols.

- sd_listen_fds(3): the process takes over listening sockets that systemd has opened. systemd keeps them open while the
  process restarts, so clients that connect meanwhile wait, and are not refused.
- sd_notify(3): the process reports its state, with lines `NAME=value` in a datagram to the socket that NOTIFY_SOCKET
  names.

Each protocol needs only a few lines, so this module uses no library for it.
"""

import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping

import trio

from .errors import StartError

_FIRST = 3
"""The first descriptor that is handed over, after those of standard input, output and error."""
_PATIENCE = 1.0
"""Seconds that a datagram may wait until the service manager's socket takes it."""
_logger = logging.getLogger(__name__)


def inherited_sockets(environ: Mapping[str, str], pid: int) -> list[socket.socket]:
    """Returns the listening sockets that the process with this id has inherited, in the order of its .socket unit.
    environ: the environment of the process. Raises StartError if one of them is not a listening TCP socket."""
    count = environ.get("LISTEN_FDS", "")
    # A process that a server has started inherits the variables, but not the sockets: LISTEN_PID tells them apart.
    if environ.get("LISTEN_PID") != str(pid) or not (count.isascii() and count.isdigit()):
        return []
    names = environ.get("LISTEN_FDNAMES", "").split(":")
    return [_take_over(_FIRST + number, (names[number : number + 1] or [""])[0]) for number in range(int(count))]


def _take_over(descriptor: int, name: str) -> socket.socket:
    where = f"descriptor {descriptor} from the service manager ({name or 'without a name'})"
    try:
        os.set_inheritable(descriptor, False)  # a program that the server starts must not accept its clients
        taken = socket.socket(fileno=descriptor)
        accepts = taken.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise StartError(f"{where} cannot be used: {error.strerror}") from None
    if not accepts or taken.family not in (socket.AF_INET, socket.AF_INET6) or taken.type != socket.SOCK_STREAM:
        raise StartError(f"{where} is not a TCP socket that listens: in its .socket unit, use ListenStream=HOST:PORT")
    return taken


class ServiceManager:
    """Reports to the service manager that has started this process. Does nothing without a service manager.

    A datagram that the service manager does not take costs a line in the log, never stops the server, and delays the
    server by a second at most.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, pid: int | None = None) -> None:
        """environ: the environment of the process, None for no service manager; pid: the id of the process, None to ask
        the system."""
        self.environ = {} if environ is None else environ
        self.pid = os.getpid() if pid is None else pid
        self._address = _address(self.environ.get("NOTIFY_SOCKET", ""))

    @property
    def is_there(self) -> bool:
        """Tells whether there is a service manager to report to."""
        return self._address is not None

    @property
    def ping_interval(self) -> float | None:
        """Seconds between two signs of life: half of the service manager's time-out, as sd_watchdog_enabled(3) advises.
        None if the service manager does not wait for signs of life."""
        usec = self.environ.get("WATCHDOG_USEC", "")
        if self._address is None or self.environ.get("WATCHDOG_PID", str(self.pid)) != str(self.pid):
            return None
        return int(usec) / 2e6 if usec.isascii() and usec.isdigit() and int(usec) else None

    def ready(self, status: str) -> None:
        """Reports that clients are served, after a start or a reload. status: a line for people."""
        if self._address is None and (name := self.environ.get("NOTIFY_SOCKET")):
            _logger.warning("NOTIFY_SOCKET=%s is no socket of this machine: nothing is sent there", name)
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Reports that files are read again. Call `ready` afterwards."""
        # The protocol wants the time of this clock, by which systemd tells this reload from an earlier one.
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now}", "STATUS=reading files again")

    def stopping(self) -> None:
        """Reports that the process finishes the requests that have begun, and ends."""
        self._send("STOPPING=1", "STATUS=finishing what is begun")

    async def ping(self, probe: Callable[[], Awaitable[None]]) -> None:
        """Sends a sign of life each time that `probe` has returned, until cancelled. Returns at once if the service
        manager does not wait for signs of life. probe: proves that the server still does its work, not only that its
        loop runs."""
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
            # A socket for each datagram, as they are few: nothing is open that a stop would have to close.
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(_PATIENCE)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            _logger.warning("the service manager could not be told %s: %s", lines[0], error)


def _address(name: str) -> str | None:
    """Returns the address of a Unix socket for its name, None if the name is not one. `@NAME` is in Linux's abstract
    name space."""
    if name.startswith("@"):
        return f"\0{name[1:]}"
    return name if name.startswith("/") else None
