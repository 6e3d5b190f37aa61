"""Connects without blocking, over anyio: from a host and a port to a wire, TLS included."""

import errno
import math
import os
import socket
import threading
import time
from collections import deque
from typing import Any

import anyio

from .async_wire import AsyncWire
from .errors import ServerUnavailable
from .forks import call_after_fork
from .place import Place, tune
from .security import PLAIN, Security
from .stream_errors import TlsFailed

_IN_PROGRESS = (errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK, errno.EINTR)


class Connecting:
    """An attempt to connect to the first address of a host that answers, and to begin TLS there. seconds: for the
    lookup and for each address.

    A cancelled attempt continues and can be awaited again, by any task, with the same deadline; otherwise call `close`.
    """

    def __init__(
        self, host: str, port: int, place: Place, seconds: float | None, *, security: Security = PLAIN
    ) -> None:
        """security: whose token is not sent."""
        self._host, self._port, self._place, self._security = host, port, place, security
        self._seconds = math.inf if seconds is None else seconds
        self._deadline = time.monotonic() + self._seconds  # errors of the lookup, then of each address
        self._lookup: _Lookup | None = None
        self._addresses: deque[Any] | None = None
        self._sock: socket.socket | None = None
        self._address: Any = None
        self._wire: AsyncWire | None = None  # connected, in the handshake
        self._failure: ServerUnavailable | None = None
        call_after_fork(self)

    def after_fork(self) -> None:
        """Closes the sockets in a child process, see `forks`."""
        self.close()

    @property
    def in_time(self) -> bool:
        """Tells whether the attempt has time left."""
        return time.monotonic() < self._deadline

    async def connected(self) -> AsyncWire:
        """Returns the connected wire. ServerUnavailable when no address answers, or TLS cannot begin."""
        if self._wire is None:
            self._wire = self._secured(await self._connected_socket())
        if self._wire.secure:
            try:
                with anyio.fail_after(self._deadline - time.monotonic()):
                    await self._wire.shake_hands()
            except OSError as error:
                self.close()
                raise self._place.handshake_failed(error) from error
        wire, self._wire = self._wire, None
        return wire

    def _secured(self, sock: socket.socket) -> AsyncWire:
        try:
            return AsyncWire(sock, self._security.layer(self._host))
        except BaseException as error:
            sock.close()
            if isinstance(error, TlsFailed):
                raise self._place.handshake_failed(error) from error
            raise

    async def _connected_socket(self) -> socket.socket:
        if self._addresses is None:
            self._addresses = deque(await self._resolve())
        while self._sock is not None or self._addresses:
            try:
                if self._sock is None:
                    self._begin(*self._addresses.popleft())
                return await self._finished()
            except TimeoutError as error:
                self._failure = self._place.connect_timed_out()
                self._failure.__cause__ = error
            except OSError as error:
                self._failure = self._place.cannot_connect(error)
                self._failure.__cause__ = error
            self.close()
        raise self._failure or self._place.cannot_connect(OSError(errno.EADDRNOTAVAIL, "it has no address"))

    def close(self) -> None:
        """Gives up the attempt."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        if self._lookup is not None:
            self._lookup.close()
            self._lookup = None

    async def _resolve(self) -> list[Any]:
        try:
            return socket.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )  # without a lookup
        except (OSError, UnicodeError):
            pass
        try:
            if self._lookup is None:
                self._lookup = _Lookup(self._host, self._port)
            await self._wait_for(self._lookup.done)
            addresses = self._lookup.addresses()
        except TimeoutError as error:
            self.close()
            raise self._place.connect_timed_out() from error
        except (OSError, UnicodeError) as error:
            self.close()
            raise self._place.cannot_connect(error) from error
        self._lookup.close()
        self._lookup = None
        return addresses

    def _begin(self, family: int, kind: int, protocol: int, _: str, address: Any) -> None:
        self._deadline = time.monotonic() + self._seconds
        self._address = address
        self._sock = socket.socket(family, kind, protocol)
        self._sock.setblocking(False)
        tune(self._sock)

    async def _finished(self) -> socket.socket:
        sock = self._sock
        assert sock is not None  # noqa: S101 - _begin has set it
        state = sock.connect_ex(self._address)
        if state in _IN_PROGRESS:
            await self._wait_for(sock, writable=True)
            state = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if state not in (0, errno.EISCONN):
            raise OSError(state, os.strerror(state))
        self._sock = None
        return sock

    async def _wait_for(self, sock: socket.socket, *, writable: bool = False) -> None:
        with anyio.fail_after(self._deadline - time.monotonic()):
            await (anyio.wait_writable if writable else anyio.wait_readable)(sock)


class _Lookup:
    """Looks up a name in a thread, as the system can do so only blocking. done: readable when the lookup is over."""

    def __init__(self, host: str, port: int) -> None:
        self._result: list[Any] | OSError | UnicodeError = []
        self.done, told = socket.socketpair()

        def look_up() -> None:
            try:
                self._result = list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            except (OSError, UnicodeError) as error:
                self._result = error
            finally:
                told.close()

        threading.Thread(target=look_up, daemon=True).start()

    def addresses(self) -> list[Any]:
        """Returns the addresses, or raises the lookup's error."""
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def close(self) -> None:
        """Stops waiting for the lookup."""
        self.done.close()
