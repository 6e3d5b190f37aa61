"""A socket of the sync client: sends within a time, reads what has come. With TLS, or without."""

import contextlib
import math
import selectors
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from .errors import TlsFailed

if TYPE_CHECKING:
    from .tls import TlsLayer

_PIECE = 64 * 1024  # bytes of a read: the system maps a larger buffer anew each time
LONGEST = 86400.0
"""Seconds of one wait: the system counts milliseconds in 31 bits."""


class Wire:
    """A connected socket. layer: encrypts what is sent. One thread at a time may send, and one may read."""

    def __init__(
        self, sock: socket.socket, layer: "TlsLayer | None" = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sock = sock
        self._layer = layer
        self._clock = clock
        self._sending = False  # stays True after a send that failed: a part may have been sent

    @property
    def secure(self) -> bool:
        """Tells whether the wire speaks TLS."""
        return self._layer is not None

    def register(self, selector: selectors.BaseSelector) -> None:
        """Makes the selector wait until the socket is readable. The key's data is this wire."""
        selector.register(self._sock, selectors.EVENT_READ, self)

    def shake_hands(self, deadline: float) -> None:
        """Completes the handshake of TLS. TlsFailed, OSError; TimeoutError at the deadline, on the clock."""
        layer = self._layer
        if layer is None:
            return
        try:
            while True:
                self.send(b"", deadline)
                if layer.established:
                    return
                if self._clock() >= deadline:
                    raise TimeoutError("the handshake is not complete")
                self._limit(deadline)
                layer.feed(self._sock.recv(_PIECE))
        except TlsFailed:
            with contextlib.suppress(OSError):
                self._sock.send(layer.encrypt())  # sends an alert of TLS
            raise

    def send(self, data: bytes, deadline: float) -> None:
        """Sends all of the data. TimeoutError, OSError: a part may have been sent, so nothing else can be.

        Tries first without waiting, as the socket usually takes all at once.
        """
        self._sending = True
        if self._layer is not None:
            data = self._layer.encrypt(data)
        try:
            self._sock.settimeout(0)
            sent = self._sock.send(data) if data else 0
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._limit(deadline)  # applies to sending only: reading waits on the selector
            self._sock.sendall(memoryview(data)[sent:])
        self._sending = False

    def _limit(self, deadline: float) -> None:
        """Sets the time for the next operation. 0 would mean not to wait."""
        self._sock.settimeout(None if deadline == math.inf else min(max(deadline - self._clock(), 0.001), LONGEST))

    @property
    def ready(self) -> bool:
        """Tells whether `receive` has something that has been read from the socket already."""
        return self._layer is not None and self._layer.readable

    def receive(self) -> bytes | None:
        """Returns what has come on a readable socket: b"" at the end, None when nothing has come, as after a spurious
        wake-up. OSError when the connection broke."""
        layer = self._layer
        if layer is not None and layer.readable:
            return layer.read()
        try:
            data = self._sock.recv(_PIECE)
        except BlockingIOError:
            return None
        if layer is None:
            return data
        layer.feed(data)
        return layer.read()

    def has_input(self) -> bool:
        """Tells whether what has come on a readable socket is data or the end, not something of TLS alone."""
        if self._layer is not None and not self._layer.readable:
            with contextlib.suppress(BlockingIOError):
                self._layer.feed(self._sock.recv(_PIECE))
            return self._layer.readable
        return True

    def end(self) -> None:
        """Ends the sending side. The other side's data can still be read."""
        self._say_farewell()
        self._sock.shutdown(socket.SHUT_WR)

    def shut_down(self) -> None:
        """Ends both sides, which wakes a thread that waits for the socket. Any thread or signal handler may call it."""
        with contextlib.suppress(OSError):
            self._say_farewell()
            self._sock.shutdown(socket.SHUT_RDWR)

    def _say_farewell(self) -> None:
        """Ends TLS, if that is possible at once: not in the middle of a record."""
        if self._layer is not None and not self._sending and (data := self._layer.farewell()):
            with contextlib.suppress(OSError):
                self._sock.settimeout(0)
                self._sock.send(data)

    def close(self) -> None:
        """Closes the descriptor, and says nothing: in a child process, the connection is the parent's."""
        self._sock.close()
