"""A socket for one event loop: reads and writes without blocking other tasks. With TLS, or without."""

import contextlib
import math
import socket
from typing import TYPE_CHECKING

import anyio

from .stream_errors import TlsFailed

if TYPE_CHECKING:
    from .tls_layer import TlsLayer

_PIECE = 64 * 1024  # bytes of a read: a larger buffer costs an allocation each time


class AsyncWire:
    """A connected, non-blocking socket, owned by the wire. layer: encrypts what is sent. One task at a time may wait;
    any may send."""

    def __init__(self, sock: socket.socket, layer: "TlsLayer | None" = None) -> None:
        self.cut = False  # nothing more can be sent; earlier data can still be read
        self._sock = sock
        self._layer = layer
        self._out = bytearray()  # bytes that the socket has not taken yet
        self._wait_scope: anyio.CancelScope | None = None  # around a wait for reading only

    def give_up_after(self, seconds: float) -> None:
        """See `AsyncConnection.give_up_after`."""
        option = getattr(socket, "TCP_USER_TIMEOUT", None)
        if option is not None:
            self._sock.setsockopt(socket.IPPROTO_TCP, option, round(seconds * 1000))

    @property
    def secure(self) -> bool:
        """Tells whether the wire speaks TLS."""
        return self._layer is not None

    async def shake_hands(self) -> None:
        """Completes the handshake of TLS. May be called again after a cancellation. TlsFailed, OSError."""
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
        """Returns what has come, at most 64 KiB; b"" at the end of the stream; None when nothing has come. OSError when
        the connection broke."""
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
                self._sock.recv(1, socket.MSG_PEEK)
            while layer is not None and not layer.readable:
                layer.feed(self._sock.recv(_PIECE))  # the bytes may be a message of TLS itself
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            pass
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
        return not scope.cancelled_caught or anyio.current_time() < deadline

    async def _readable_or_writable(self) -> None:
        async with anyio.create_task_group() as group:

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
        """Shuts down both sides, which wakes the task that waits. Comes before `close`, which would let the descriptor
        be reused."""
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
        """Closes the descriptor. Nothing else may be done with the connection of another process."""
        self._sock.close()
