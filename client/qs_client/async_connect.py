"""Connecting without blocking: from a host and a port to a socket, over anyio."""

import errno
import os
import socket
from typing import Any

import anyio

from .errors import ServerUnavailable
from .place import Place


async def connected_socket(host: str, port: int, place: Place, seconds: float | None) -> socket.socket:
    """A socket that does not block, connected to the first address of the host that answers, each within so many
    seconds. ServerUnavailable when none does."""
    failure: ServerUnavailable | None = None
    for family, kind, protocol, _, address in await _addresses(host, port, place, seconds):
        try:
            with anyio.fail_after(seconds):
                return await _connected(family, kind, protocol, address)
        except TimeoutError as error:
            failure = place.silent()
            failure.__cause__ = error
        except OSError as error:
            failure = place.nobody(error)
            failure.__cause__ = error
    raise failure or place.nobody(OSError(errno.EADDRNOTAVAIL, "it has no address"))


async def _addresses(host: str, port: int, place: Place, seconds: float | None) -> list[Any]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)  # asks nobody
    except (OSError, UnicodeError):
        pass
    try:
        with anyio.fail_after(seconds):
            return list(await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except TimeoutError as error:
        raise place.silent() from error
    except (OSError, UnicodeError) as error:
        raise place.nobody(error) from error


async def _connected(family: int, kind: int, protocol: int, address: Any) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        begun = sock.connect_ex(address)
        if begun in (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EINTR):
            await anyio.wait_writable(sock)
            begun = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if begun:
            raise OSError(begun, os.strerror(begun))
    except BaseException:
        sock.close()
        raise
    return sock
