"""A stream with nothing between its source and the event loop.

`trio.SocketStream` passes through the scheduler twice for every answer. This stream never does: the hub hands received
bytes to a function, and what the socket takes at once is sent at once.
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
    """The stream of a connection.

    Ensures that bytes are passed on in their order, only between `start` or `resume` and `hold`, and the end of the
    stream once. Nothing is read meanwhile: what the kernel cannot hold, the other side has to keep, which is the only
    back-pressure that there is. It must never raise out of `ready`: the hub reads for all connections.

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
        self._most = CHUNK  # bytes of the next read
        self._encrypted = 0  # bytes of ciphertext in the last read

    # -- what a subclass implements

    @abstractmethod
    def fileno(self) -> int:
        """Returns the descriptor that the hub watches."""

    @abstractmethod
    def _receive_now(self, max_bytes: int) -> bytes:
        """Reads without waiting. BlockingIOError if there is nothing to read, other OSErrors if the stream is
        broken."""

    @abstractmethod
    def send_now(self, data: bytes | memoryview) -> int:
        """Sends as many bytes as it can without waiting. Returns their number. The next call has to begin with the
        bytes that were not sent."""

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
        """Changes the most bytes of one read, which are `CHUNK` at first: others have their turn after each."""
        self._most = most

    # -- reading

    def start(self, sink: Sink, failed: Callable[[Exception], None]) -> None:
        """Begins to read, or goes on with another sink. sink: is called with received bytes; failed: with a
        BrokenResourceError when the connection is lost, and with whatever the sink raises; then nothing more is
        read."""
        self._sink, self._failed = sink, failed
        self.resume()

    def hold(self) -> None:
        """Stops reading until `resume`. The other side has to wait once the kernel's buffers are full."""
        self.held = True  # it stays registered with the kernel until bytes come in vain: most holds end before

    def resume(self) -> None:
        """Undoes `hold`."""
        self.held = False
        if not self.watched:
            self._hub.watch(self)

    def end_poll(self) -> None:
        """Has done what the hub does at the end of a poll cycle. Call it after requests were taken up outside of one;
        never in a batch."""
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
        """Reads once and calls the sink. The hub calls it when there are bytes to read. Returns their number: with TLS
        that of the ciphertext, as a record of many bytes may have one of plaintext."""
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
    """Stands for a reader that has not come yet."""
