"""Implements a transport over a connected socket, with or without TLS."""

import fcntl
import socket
import sys
import termios
from contextlib import suppress

import trio

from qs_schemas.tls import TlsChannel, TlsError

from .hub import Hub
from .transport import CHUNK, Transport

_ALARMS = 64 * 1024
"""Bytes of TLS's own messages that may wait for a client that does not read, such as refusals to renegotiate, or a new
key for each one that the client asks for."""
_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # The kernel notices within half a minute that a client's machine is gone, and no process has to wake for it.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)

_buffer = memoryview(bytearray(CHUNK))
"""The buffer for every read. Most reads are short, so copying them out is cheaper than a new buffer for each."""


class SocketTransport(Transport):
    """Sends and receives over a connected socket, with or without TLS."""

    def __init__(self, connected: socket.socket, hub: Hub, channel: TlsChannel | None = None) -> None:
        """channel: a TLS channel that has completed its handshake over this socket; None for no TLS."""
        super().__init__(hub, address_of(connected))
        self._socket = connected
        self._channel = channel
        self._ciphertext: bytes | memoryview = b""  # bytes that the socket has not taken
        if channel is not None:
            self.peer_names = channel.peer_names()
        connected.setblocking(False)
        if connected.family in (socket.AF_INET, socket.AF_INET6):
            with suppress(OSError):  # the connection may be lost already; the first read will tell
                for level, option, value in _OPTIONS:
                    connected.setsockopt(level, option, value)

    @classmethod
    def adopt(cls, stream: trio.SocketStream, hub: Hub, channel: TlsChannel | None = None) -> "SocketTransport":
        """Makes a transport of the socket of a trio stream. The stream cannot be used any more."""
        inner = stream.socket
        return cls(socket.socket(inner.family, inner.type, inner.proto, inner.detach()), hub, channel)

    def fileno(self) -> int:
        return self._socket.fileno()

    def _receive_now(self, max_bytes: int) -> bytes:
        received = _buffer[: (count := self._socket.recv_into(_buffer, max_bytes))]
        self._hub.received += count
        return bytes(received) if self._channel is None else self._decrypt(self._channel, received)

    def send_now(self, data: bytes | memoryview) -> int:
        try:
            if self._channel is not None:
                return self._send_encrypted(self._channel, data)
            sent = self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError("connection lost") from error
        self._hub.sent += sent
        return sent

    async def send_all(self, data: bytes | memoryview) -> None:
        sent = self.send_now(data)
        rest = memoryview(data)[sent:]
        while rest:
            await trio.lowlevel.wait_writable(self._socket)
            rest = rest[self.send_now(rest) :]

    def backlog(self) -> int:
        try:
            return int.from_bytes(fcntl.ioctl(self._socket, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
        except OSError:
            return 0  # the connection is lost

    async def send_eof(self) -> None:
        try:
            if self._channel is not None:
                self._channel.close()
                while not self._flush(self._channel):
                    await trio.lowlevel.wait_writable(self._socket)
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise trio.BrokenResourceError("connection lost") from error

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._hub.drop(self)
            if self._channel is not None:
                self._channel.close()
                with suppress(OSError):
                    self._flush(self._channel)
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    # -- TLS. All of these raise OSErrors.

    def _decrypt(self, channel: TlsChannel, received: memoryview) -> bytes:
        """Returns the plaintext of received ciphertext. Raises BlockingIOError if no record is complete."""
        self._encrypted = len(received)
        if channel.ended:
            return b""
        try:
            data = channel.receive(received)
        except TlsError as error:
            self._flush(channel)  # it may have an alert to send
            raise ConnectionError(str(error)) from None
        if channel.ended:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RD)  # so that the next reader gets the end from the kernel
            return data
        if not self._flush(channel) and len(self._ciphertext) > self.begun + _ALARMS:
            raise ConnectionError("the client does not read what TLS has to say to it")
        if not data:
            raise BlockingIOError
        return data

    def _send_encrypted(self, channel: TlsChannel, data: bytes | memoryview) -> int:
        """Implements `send_now` with TLS. Plaintext counts as sent when the socket has taken all ciphertext of its
        record; until then the caller keeps these bytes and calls again."""
        sent = 0
        while not self.begun or self._flush(channel):
            sent += self.begun
            piece = memoryview(data)[sent : sent + CHUNK]
            self.begun = len(piece)
            if not piece:
                break
            try:
                channel.send(piece)
            except TlsError as error:
                raise ConnectionError(str(error)) from None
        return sent

    def _flush(self, channel: TlsChannel) -> bool:
        """Sends ciphertext without waiting. Returns True if no ciphertext is left."""
        if made := channel.take():
            self._ciphertext = b"".join((self._ciphertext, made)) if self._ciphertext else made
        if not self._ciphertext:
            return True
        try:
            count = self._socket.send(self._ciphertext)
        except BlockingIOError:
            return False
        self._hub.sent += count
        complete = count == len(self._ciphertext)
        self._ciphertext = b"" if complete else memoryview(self._ciphertext)[count:]
        return complete


def address_of(connected: socket.socket | trio.socket.SocketType) -> str:
    """Returns the other side's HOST:PORT, "unknown" if the other side has gone or has no such address."""
    try:
        host, port = connected.getpeername()[:2]
    except (OSError, ValueError):
        return "unknown"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
