"""Defines the stream of a connection, which needs no task to receive.

`trio.SocketStream` passes through the scheduler twice for every answer. A Transport never does: the hub hands received
bytes to a function, and bytes that the socket takes at once are sent at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import trio

from qs_schemas.tls import PeerNames

from .hub import Hub

CHUNK = 64 * 1024
"""The most bytes of one read, and of plaintext that is encrypted ahead of the socket."""

Sink = Callable[[bytes], None]
"""Takes received bytes: at least one, or none at the end of the stream."""


class Transport(ABC):
    """Sends and receives the bytes of a connection.

    Ensures that bytes are passed on in their order, only between `start` or `resume` and `hold`, and the end of the
    stream once. After `hold` nothing is read: the other side has to wait once the kernel's buffers are full, and this
    is the only back-pressure. `ready` must never raise, because the hub reads for all connections.

    Methods that send raise trio.BrokenResourceError if the connection is lost."""

    peer_names: PeerNames = ()
    """The names in the client's certificate, which has been verified; none without TLS or without a certificate."""

    def __init__(self, hub: Hub, peer: str) -> None:
        """hub: tells when bytes can be read; peer: the other side's address, HOST:PORT."""
        self.peer = peer
        self.watched = False
        self._hub = hub
        self._sink: Sink | None = None  # takes what comes, once there is a reader
        self._failed: Callable[[Exception], None] = _ignore
        self.held = True
        """True while received bytes are left in the kernel. `hold` and `resume` say so; an attribute, as a connection
        holds and resumes with every request."""
        self.begun = 0
        """Bytes behind those that the last `send_now` took, which the next call has to bring again: TLS has encrypted
        them."""
        self._most = CHUNK  # bytes of the next read
        self._encrypted = 0  # bytes of ciphertext in the last read

    # -- what a subclass implements

    @abstractmethod
    def fileno(self) -> int:
        """Returns the descriptor that the hub watches."""

    @abstractmethod
    def _receive_now(self, max_bytes: int) -> bytes:
        """Reads without waiting. Raises BlockingIOError if there is nothing to read, other OSErrors if the stream is
        broken."""

    @abstractmethod
    def send_now(self, data: bytes | memoryview) -> int:
        """Sends as many bytes as possible without waiting. Returns the number of bytes sent. The next call has to begin
        with the bytes that were not sent."""

    @abstractmethod
    async def send_all(self, data: bytes | memoryview) -> None:
        """Sends every byte; waits while the other side does not read."""

    @abstractmethod
    def backlog(self) -> int:
        """Returns the number of sent bytes that the other side has not acknowledged."""

    @abstractmethod
    async def send_eof(self) -> None:
        """Ends the stream to the other side; reading goes on."""

    @abstractmethod
    def close(self) -> None:
        """Closes at once. Does nothing the second time."""

    def limit_reads(self, most: int) -> None:
        """Changes the most bytes of one read, which are `CHUNK` at first. Other connections are served after each
        read."""
        self._most = most

    # -- reading

    def start(self, sink: Sink, failed: Callable[[Exception], None]) -> None:
        """Begins to read, or goes on with another sink. sink: called with received bytes; failed: called with a
        BrokenResourceError when the connection is lost, and with any error of the sink; nothing more is read after
        that."""
        self._sink, self._failed = sink, failed
        self.resume()

    def hold(self) -> None:
        """Stops reading until `resume`. The other side has to wait once the kernel's buffers are full."""
        self.held = True  # the kernel still watches the stream until bytes come in vain: most holds end before that

    def resume(self) -> None:
        """Undoes `hold`."""
        self.held = False
        if not self.watched:
            self._hub.watch(self)

    def end_poll(self) -> None:
        """Calls the hub's `on_poll_end`. Call this after requests were taken up outside of a poll cycle, but never in a
        batch."""
        self._hub.on_poll_end()

    def look(self) -> bytes | None:
        """Reads without waiting. Returns b"" at the end of the stream, and None if there is nothing to read."""
        try:
            return self._receive_now(self._most)
        except BlockingIOError:
            return None
        except OSError as error:
            raise trio.BrokenResourceError("connection lost") from error

    def ready(self) -> int:
        """Reads once and calls the sink. The hub calls it when there are bytes to read. Returns the number of bytes
        read: with TLS the bytes of ciphertext, because a long record may have one byte of plaintext."""
        if self.held or self._sink is None:
            self._hub.drop(self)  # no reads until it is resumed
            return 0
        try:
            data = self._receive_now(self._most)
        except BlockingIOError:
            return self._encrypted
        except OSError as error:
            broken = trio.BrokenResourceError("connection lost")
            broken.__cause__ = error
            self._fail(broken)
            return 0
        if not data:
            self.held = True  # the kernel would tell of the end again and again
        try:
            self._sink(data)
        except Exception as error:
            self._fail(error)
        return self._encrypted or len(data)

    def _fail(self, error: Exception) -> None:
        self.held = True
        self._failed(error)


def _ignore(error: Exception) -> None:
    """Ignores an error before a reader is set."""
