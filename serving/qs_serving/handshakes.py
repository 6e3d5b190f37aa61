"""Completes TLS handshakes before clients count as connections, within bounds of number and time, and never many in a
row.

A handshake costs a server a hundred times what a request costs. So each pass of the event loop works on one handshake,
however many clients are waiting, and connected clients are served in between.
"""

import logging
import socket

import trio

from qs_schemas.tls import TlsChannel, TlsError

from .options import ServerLimits
from .socket_transport import address_of
from .timers import within
from .tls import ServerTls
from .transport import CHUNK

_logger = logging.getLogger(__name__)
_HEADER = 5
"""Bytes of a record before its content, the last two of which are its length."""
_LONGEST = 16 * 1024 + 2048
"""The most bytes in a record."""
_FIRST = b"\x16\x03"
"""The first bytes of the first record of every client."""


class _NoTlsError(Exception):
    """Reports that the client does not speak TLS."""


class Handshakes:
    """Completes the TLS handshakes of new clients.

    Ensures that at most `limits.handshakes` are under way, each for a bounded time, and that a pass of the loop works
    on one record of one client. When there are too many, the oldest handshake is ended: it is probably one that never
    completes. This class must never read beyond the handshake: later bytes of the client belong to its connection."""

    def __init__(self, tls: ServerTls, limits: ServerLimits) -> None:
        self._tls = tls
        self._limits = limits
        self._turn = trio.Lock()
        self._under_way: dict[trio.CancelScope, None] = {}  # the oldest first
        self._stopped = False
        self.failed = 0
        """The number of handshakes that have failed since the start, except for those that a stop has ended."""

    async def complete(self, stream: trio.SocketStream) -> TlsChannel | None:
        """Completes a handshake and returns its TLS channel. Closes the stream and returns None if the client does not
        speak TLS, is not acceptable, is too slow, or has the oldest of too many handshakes."""
        handshake, peer = _Handshake(stream.socket, self._tls, self._turn), address_of(stream.socket)
        under_way = self._under_way
        if len(under_way) >= self._limits.handshakes:
            oldest = next(iter(under_way))
            del under_way[oldest]
            oldest.cancel()
        with trio.CancelScope() as scope:
            under_way[scope] = None
            if self._stopped:
                scope.cancel()
            try:
                if await within(self._limits.document_time, handshake.run):
                    return handshake.channel
                _logger.debug("%s: no TLS handshake within %g s", peer, self._limits.document_time)
            except (OSError, _NoTlsError) as error:
                _logger.debug("%s: no TLS handshake: %s", peer, error)
            except TlsError as error:
                _logger.debug("%s: the TLS handshake has failed: %s", peer, error)
                await within(self._limits.linger, handshake.say_why)
            finally:
                under_way.pop(scope, None)
        self.failed += not self._stopped
        await stream.aclose()
        return None

    def stop(self) -> None:
        """Ends all handshakes, and those that would begin later."""
        self._stopped = True
        for scope in list(self._under_way):
            scope.cancel()


class _Handshake:
    """Completes one handshake. Reads record by record, so that later bytes of the client are left to the transport.
    Each method can be cancelled and called again."""

    def __init__(self, connected: trio.socket.SocketType, tls: ServerTls, turn: trio.Lock) -> None:
        self.channel: TlsChannel | None = None
        self._socket = connected
        self._tls = tls
        self._turn = turn
        self._record = bytearray()  # the record that is being received
        self._unsent = bytearray()

    async def run(self) -> None:
        """Works until the handshake is complete. Raises TlsError, OSError or _NoTlsError."""
        while self.channel is None or not self.channel.established:
            await self._flush()
            await self._complete_record()
            async with self._turn:
                self.channel = self.channel or self._tls.new_channel()
                record = bytes(self._record)
                self._record.clear()
                try:
                    self.channel.receive(record)
                finally:
                    self._unsent += self.channel.take()
        await self._flush()

    async def say_why(self) -> None:
        """Sends the alert that a TlsError has left in the channel, and waits until the client has closed the
        connection."""
        try:
            await self._flush()
            self._socket.shutdown(socket.SHUT_WR)
            while await self._socket.recv(CHUNK):
                pass
        except OSError:
            pass  # the client has gone

    async def _flush(self) -> None:
        while self._unsent:
            del self._unsent[: await self._socket.send(self._unsent)]

    async def _complete_record(self) -> None:
        record = self._record
        while missing := self._missing():
            data = await self._socket.recv(missing)
            if not data:
                raise ConnectionError("the client has closed the connection")
            record += data
            if self.channel is None and not _FIRST.startswith(bytes(record[:2])):
                raise _NoTlsError("the client does not speak TLS")

    def _missing(self) -> int:
        """Returns how many bytes the record lacks, as far as is known: first of its header, then of the whole
        record."""
        if len(self._record) < _HEADER:
            return _HEADER - len(self._record)
        length = int.from_bytes(self._record[3:_HEADER], "big")
        if length > _LONGEST:
            raise _NoTlsError("a record of the client is too long for TLS")
        return _HEADER + length - len(self._record)
