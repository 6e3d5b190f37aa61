"""A socket for one event loop: connects, reads and writes without blocking other tasks, with or without TLS."""

import contextlib
import errno
import math
import os
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import anyio

from .errors import ServerUnavailable, TlsFailed
from .lifetimes import call_after_fork
from .place import Place, tune
from .security import PLAIN, Security

if TYPE_CHECKING:
    from .tls import TlsLayer


_PIECE = 64 * 1024  # bytes of a read, see `wire`


class AsyncWire:
    """A connected, non-blocking socket, and the TLS session over it if there is one.

    Ensures
    1. `send` and `receive` never wait, so no cancellation can leave half of a document behind: what the socket does not
       take is kept, and sent by a later `send` or by the task that waits.
    2. After an error of sending, bytes that have come before can still be read: the server may have said why.
    3. `shut_down` wakes the task that waits; the descriptor stays open until `close`, which the owner calls when no
       task waits for the descriptor: its number could otherwise be given to another file meanwhile.

    Assumes one event loop, and one task at a time that waits.
    """

    def __init__(self, sock: socket.socket, layer: "TlsLayer | None" = None) -> None:
        """layer: encrypts what is sent."""
        self.cut = False  # nothing more can be sent; earlier data can still be read
        self._sock = sock
        self._layer = layer
        self._out = bytearray()  # bytes that the socket has not taken yet
        self._wait_scope: anyio.CancelScope | None = None  # around a wait for reading only

    def give_up_after(self, seconds: float) -> None:
        """Limits the time without acknowledged bytes, see `AsyncConnection.give_up_after`."""
        option = getattr(socket, "TCP_USER_TIMEOUT", None)
        if option is not None:
            self._sock.setsockopt(socket.IPPROTO_TCP, option, round(seconds * 1000))

    @property
    def secure(self) -> bool:
        """Tells whether the wire speaks TLS."""
        return self._layer is not None

    async def shake_hands(self) -> None:
        """Completes the handshake of TLS. May be called again after a cancellation. Raises TlsFailed, OSError."""
        layer = self._layer
        if layer is None:
            return
        try:
            while True:
                self.send()
                if layer.established:
                    return
                try:
                    layer.feed(self._sock.recv(_PIECE))
                except (BlockingIOError, InterruptedError):
                    await self.wait(math.inf)
        except TlsFailed:
            self.send()  # sends an alert of TLS
            raise

    def fileno(self) -> int:
        """Returns the descriptor."""
        return self._sock.fileno()

    async def writable(self) -> None:
        """Waits until the socket takes bytes, or is shut down."""
        await anyio.wait_writable(self._sock)

    @property
    def unsent(self) -> bool:
        """Tells whether bytes are still to be sent."""
        return bool(self._out)

    def send(self, data: bytes = b"") -> None:
        """Sends earlier bytes and then the data, as far as the socket takes them; keeps the rest."""
        if self.cut:
            return
        if self._layer is not None:
            try:
                data = self._layer.encrypt(data)
            except TlsFailed:
                self.cut = True
                return
        if self._out:
            self._out += data
            del self._out[: self._taken(self._out)]
        else:
            taken = self._taken(data)
            if taken < len(data):
                self._out += memoryview(data)[taken:]
        if self._out and self._wait_scope is not None:
            self._wait_scope.cancel()  # the waiter has to wait for writability too

    def _taken(self, data: bytes | bytearray) -> int:
        try:
            return self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self.cut = True  # the reader will find out why, if the other side has said so
            return len(data)

    def receive(self) -> bytes | None:
        """Returns the bytes that have come, at most 64 KiB; b"" at the end of the stream; None when no bytes have come.
        Raises OSError if the connection broke."""
        layer = self._layer
        if layer is not None and layer.readable:
            return layer.read()
        try:
            data = self._sock.recv(_PIECE)
        except (BlockingIOError, InterruptedError):
            return None
        if layer is None:
            return data
        layer.feed(data)
        return layer.read()

    def has_input(self) -> bool:
        """Tells whether data or the end of the stream can be read."""
        layer = self._layer
        try:
            if layer is None:
                self._sock.recv(1, socket.MSG_PEEK)  # what has come stays for the task that reads
            while layer is not None and not layer.readable:
                layer.feed(self._sock.recv(_PIECE))  # the bytes may be a message of TLS itself
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            pass  # the end of the connection, which a read will report
        return True

    async def wait(self, deadline: float) -> bool:
        """Waits until there is something to read, until the socket takes unsent bytes, or until `send` leaves some.
        Returns False at the deadline."""
        with anyio.CancelScope(deadline=deadline) as scope:
            if self._out:
                await self._readable_or_writable()
            else:
                self._wait_scope = scope
                try:
                    await anyio.wait_readable(self._sock)
                finally:
                    self._wait_scope = None
        # `send` cancels the scope too, and then it is not the deadline: the caller goes on, and waits for both.
        return not scope.cancelled_caught or anyio.current_time() < deadline

    async def _readable_or_writable(self) -> None:
        async with anyio.create_task_group() as group:  # a task more, so only when bytes are unsent

            async def writable() -> None:
                await anyio.wait_writable(self._sock)
                group.cancel_scope.cancel()

            group.start_soon(writable)
            await anyio.wait_readable(self._sock)
            group.cancel_scope.cancel()

    def end(self) -> None:
        """Shuts down the sending side. The other side's data can still be read."""
        self._end(socket.SHUT_WR)

    def shut_down(self) -> None:
        """Shuts down both sides, which wakes the task that waits. Call it before `close`, which lets the system use the
        descriptor's number again."""
        self._end(socket.SHUT_RDWR)

    def _end(self, how: int) -> None:
        with contextlib.suppress(OSError):
            if self._layer is not None and not self._out and not self.cut:
                self._sock.send(self._layer.farewell())
        self._out.clear()
        self.cut = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(how)

    def close(self) -> None:
        """Closes the descriptor without a word to the server. In a child process the connection stays the parent's."""
        self._sock.close()


_IN_PROGRESS = (errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK, errno.EINTR)


class Connecting:
    """An attempt to connect to the first address of a host that answers, and to begin TLS there. seconds: for the
    lookup and for each address.

    Ensures: a cancelled attempt continues and can be awaited again, by any task, with the same deadline. Polls that are
    shorter than a handshake takes would otherwise never connect. An attempt that nobody awaits any more has to be
    closed with `close`.
    Never blocks the event loop: the lookup of a name, which can, is done in a thread.
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
        """Closes the sockets in a child process, see `lifetimes`."""
        self.close()

    @property
    def in_time(self) -> bool:
        """Tells whether the attempt has time left."""
        return time.monotonic() < self._deadline

    async def connected(self) -> AsyncWire:
        """Returns the connected wire. Raises ServerUnavailable if no address answers, or TLS cannot begin."""
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
        """Tries one address after the other. Raises the error of the last one."""
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
        """Returns the addresses of the host. An IP address needs no lookup, and so no thread."""
        try:
            return socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
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
        self._deadline = time.monotonic() + self._seconds  # an address that does not answer takes no other's time
        self._address = address
        self._sock = socket.socket(family, kind, protocol)
        self._sock.setblocking(False)
        tune(self._sock)

    async def _finished(self) -> socket.socket:
        sock = self._sock
        assert sock is not None  # noqa: S101 - _begin has set it
        state = sock.connect_ex(self._address)  # again, if it is resumed: EISCONN then, or EALREADY
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
    """Looks up a name in a thread, because the system's lookup blocks. done: readable when the lookup is over.

    A socket tells the end, not an event: any task of any loop can wait for a socket, and the thread needs to know no
    loop.
    """

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

        threading.Thread(target=look_up, daemon=True).start()  # daemon: the program may end before the lookup does

    def addresses(self) -> list[Any]:
        """Returns the addresses, or raises the lookup's error."""
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def close(self) -> None:
        """Stops waiting for the lookup."""
        self.done.close()
