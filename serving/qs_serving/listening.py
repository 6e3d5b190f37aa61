"""Opens the sockets that clients connect to, and makes sure that there are enough descriptors for these clients.

A process that has run out of descriptors can accept nobody and open no file of its own. So the limit is raised as far
as the system allows, and the number of connections is lowered to what the limit leaves.
"""

import errno
import logging
import resource
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace

import trio

from .errors import StartError
from .options import ServerLimits

_logger = logging.getLogger(__name__)
_LEAST_ROOM = 16
"""The fewest descriptors for clients with which a start makes sense."""
Announce = Callable[[str, int], None]
"""A function that is called with host and port once clients can connect."""


def listening_line(host: str, port: int) -> str:
    """Returns the line that says where clients can connect."""
    return f"listening on {f'[{host}]' if ':' in host else host}:{port}"


async def open_listeners(host: str, port: int, inherited: Sequence[socket.socket] = ()) -> list[trio.SocketListener]:
    """Opens listening sockets on every address of the host. port: 0 for a free port, on one address; inherited: sockets
    that listen already; if there are any, they are used instead. Raises StartError."""
    if inherited:
        return [trio.SocketListener(trio.socket.from_stdlib_socket(each)) for each in inherited]
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except (OSError, UnicodeError) as error:
        raise StartError(_cannot_listen(f"{host}:{port}", error)) from None
    if port == 0:
        # Each address of the host would get a port of its own, and only one can be announced.
        for other in listeners[1:]:
            await other.aclose()
        del listeners[1:]
    return listeners


async def check_port(host: str, port: int, inherited: Sequence[socket.socket] = ()) -> None:
    """Checks that `open_listeners` would succeed with these arguments, and leaves nothing open. Raises StartError if it
    would not."""
    # A start that reads a large storage takes long. A wrong port is reported before that. And since nothing listens
    # meanwhile, clients are refused at once and do not wait for an answer.
    if not inherited:
        for listener in await open_listeners(host, port):
            await listener.aclose()


def _cannot_listen(where: str, error: OSError | UnicodeError) -> str:
    inner = error.__cause__ if isinstance(error.__cause__, OSError) else error
    code = getattr(inner, "errno", None)
    if code == errno.EADDRINUSE:
        return f"cannot listen on {where}: the port is in use, maybe by another server; choose one with --port"
    if code == errno.EACCES:
        return f"cannot listen on {where}: not allowed; ports below 1024 need privileges, choose one with --port"
    reason = getattr(inner, "strerror", None) or inner
    return f"cannot listen on {where}: {reason}; choose an address with --host and --port"


def raise_descriptor_limit(wanted: int) -> int:
    """Raises the soft limit of open files, as far as the hard limit allows. Returns the number of files that may be
    open, at most `wanted`."""
    # The usual soft limit of 1024 is for programs that use select(), which cannot count further.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


def fit_descriptors(limits: ServerLimits, least: int, most: int) -> ServerLimits:
    """Raises the limit of open files so that all connections fit. If not all fit, logs that and returns limits with
    fewer connections, so that clients never take the descriptors that the process itself needs.

    least, most: descriptors that the process itself needs. If the limit is low, half of it is kept for the process, but
    at least `least`. Raises StartError if too few are left for clients.
    """
    clients = limits.connections + limits.handshakes + limits.leaving
    allowed = raise_descriptor_limit(clients + most)
    room = allowed - min(most, max(least, allowed // 2))
    if room >= clients:
        return limits
    if room < _LEAST_ROOM:
        raise StartError(
            f"the limit of open files is {allowed}, and {least + _LEAST_ROOM} are needed at least: raise it, with "
            "`ulimit -n` or, under systemd, LimitNOFILE="
        )
    # Handshakes, and clients that are told why they have to go, get few: the oldest of these give way to newer ones.
    handshakes, leaving = min(limits.handshakes, room // 8), min(limits.leaving, room // 8)
    connections = min(limits.connections, room - handshakes - leaving)
    if connections < limits.connections:
        _logger.warning(
            "the limit of open files is %d: at most %d connections at once, not %d as --max-connections says; raise "
            "the limit, with `ulimit -n` or, under systemd, LimitNOFILE=",
            allowed,
            connections,
            limits.connections,
        )
    return replace(limits, connections=connections, handshakes=handshakes, leaving=leaving)
