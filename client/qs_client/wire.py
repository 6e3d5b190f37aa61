"""A socket of the sync client: connects, sends within a time, and reads, with or without TLS."""

import contextlib
import math
import select
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from .errors import TlsFailed
from .place import Place, tune
from .security import PLAIN, Security

if TYPE_CHECKING:
    from .tls import TlsLayer

_PIECE = 64 * 1024
"""Bytes of a read: a larger buffer is mapped anew by the system for each read, so reads would take longer."""

BRIEF = 0.01
"""Seconds that a read waits by itself. Most answers come sooner, and then nothing but the read has been called. Short,
because each signal whose handler returns starts this time anew, and a deadline would not be noticed meanwhile."""

_BRIEFLY = struct.pack("ll", 0, int(BRIEF * 1_000_000))  # a timeval

LONGEST = 86400.0
"""Seconds of one wait: the system counts milliseconds in 31 bits, and a `timeout` may be up to 31 years."""


class Wire:
    """A connected socket, and the TLS session over it if there is one.

    Ensures
    1. `send` returns when the system has taken all bytes, or raises. After it has raised, nothing can be sent, because
       a part may have gone out.
    2. `receive` waits for BRIEF at most, and then returns None. The system keeps that time, not Python: a signal whose
       handler returns starts it anew, so signals that come in a row more often than that put off a time-out.
    3. `shut_down` may be called at any moment, by any thread and by a signal handler, and wakes a thread that waits.

    Assumes one thread at a time that reads; any may send, and documents of two threads do not mix.
    Never closes the descriptor by itself: its owner calls `close` when no thread waits for the descriptor, because the
    system may give the same number to the next file that is opened.
    """

    def __init__(
        self, sock: socket.socket, layer: "TlsLayer | None" = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """layer: encrypts what is sent."""
        self._sock = sock
        self._layer = layer
        self._clock = clock
        self._turn = threading.Lock()  # of the thread that sends
        self._sending = False  # stays True after a send that failed: a part may have been sent
        # Blocking, as Python polls before each operation of a socket with a time-out.
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _BRIEFLY)

    @property
    def secure(self) -> bool:
        """Tells whether the wire speaks TLS."""
        return self._layer is not None

    def register(self, selector: selectors.BaseSelector) -> None:
        """Makes the selector wait until the socket is readable. The key's data is this wire."""
        selector.register(self._sock, selectors.EVENT_READ, self)

    def shake_hands(self, deadline: float) -> None:
        """Completes the handshake of TLS. Raises TlsFailed, OSError; TimeoutError at the deadline, on the wire's
        clock."""
        layer = self._layer
        if layer is None:
            return
        try:
            while True:
                self.send(deque((b"",)), deadline)  # what TLS has to say
                if layer.established:
                    return
                # Before each read: a server that sends a byte now and then would begin the time anew.
                self._wait(select.POLLIN, deadline)
                with contextlib.suppress(BlockingIOError):  # a spurious wake-up
                    layer.feed(self._sock.recv(_PIECE))
        except TlsFailed:
            with contextlib.suppress(OSError):
                self._sock.send(layer.encrypt())  # the alert tells the server's log what was wrong
            raise

    def send(self, documents: deque[bytes], deadline: float) -> None:
        """Takes all documents out and sends them, when no other thread does. Raises TimeoutError, OSError: a part may
        have been sent, so nothing else can be."""
        with self._turn:
            if not documents:
                return
            data = documents.popleft()  # mostly there is one, and a large document is not copied
            if documents:
                data += b"".join([documents.popleft() for _ in range(len(documents))])
            self._sending = True
            if self._layer is not None:
                data = self._layer.encrypt(data)
            try:
                # Without waiting first: the socket usually takes all at once.
                sent = self._sock.send(data, socket.MSG_DONTWAIT) if data else 0
            except BlockingIOError:
                sent = 0
            while sent < len(data):
                self._wait(select.POLLOUT, deadline)
                with contextlib.suppress(BlockingIOError):
                    sent += self._sock.send(memoryview(data)[sent:], socket.MSG_DONTWAIT)
            self._sending = False

    def _wait(self, event: int, deadline: float) -> None:
        """Waits until the socket can be read or written. Raises TimeoutError at the deadline."""
        poll = select.poll()
        poll.register(self._sock, event)
        while True:
            seconds = deadline - self._clock()
            if seconds <= 0:
                raise TimeoutError("timed out")
            if poll.poll(math.ceil(min(seconds, LONGEST) * 1000)):
                return

    @property
    def ready(self) -> bool:
        """Tells whether `receive` has something that has been read from the socket already."""
        return self._layer is not None and self._layer.readable

    def receive(self) -> bytes | None:
        """Returns the bytes that come: b"" at the end, None when none come within BRIEF. Raises OSError if the
        connection broke."""
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
        """Tells whether a readable socket has data or the end, and not bytes of the TLS session alone."""
        if self._layer is not None and not self._layer.readable:
            with contextlib.suppress(BlockingIOError):
                self._layer.feed(self._sock.recv(_PIECE, socket.MSG_DONTWAIT))
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
                self._sock.send(data, socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Closes the descriptor without a word to the server: in a child process, the connection is the parent's."""
        self._sock.close()


def open_wire(host: str, port: int, place: Place, timeout: float | None, security: Security = PLAIN) -> Wire:
    """Connects, and begins TLS. The arguments and errors are those of `open_connection`."""
    try:
        sock = socket.create_connection((host, port), None if timeout is None else min(timeout, LONGEST))
    except TimeoutError as error:
        raise place.connect_timed_out() from error
    except (OSError, UnicodeError) as error:  # UnicodeError: of a name that IDNA cannot encode
        raise place.cannot_connect(error) from error
    # The handshake has a time of its own: an address that does not answer must take none of it.
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    try:
        tune(sock)
        wire = Wire(sock, security.layer(host))
        wire.shake_hands(deadline)
    except BaseException as error:
        sock.close()
        if isinstance(error, OSError):
            raise place.handshake_failed(error) from error
        raise
    return wire
