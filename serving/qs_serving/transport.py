"""A TCP stream with as little between the socket and the loop as can be.

What `trio.SocketStream` does in two passes through the scheduler for every answer, this does in one: it waits only when
the socket says that it would block; and it can send without waiting at all.
"""

import socket
from contextlib import suppress
from typing import Protocol

import trio

_TURNS = 16
"""Reads that may succeed at once before others get their turn: who always has more to say must not hold the loop."""

_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # A machine that has gone without a word is noticed by the kernel, within half a minute; no process wakes for it.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)

_buffer = bytearray(64 * 1024)
"""Where every read lands before it is copied out: most are short, and a fresh buffer of this size each time is dear."""


class Transport(Protocol):
    """What a connection reads from and writes to."""

    async def receive_some(self, max_bytes: int) -> bytes | bytearray: ...
    def send_now(self, data: bytes | memoryview) -> int: ...
    async def send_all(self, data: bytes | memoryview) -> None: ...
    async def send_eof(self) -> None: ...
    async def aclose(self) -> None: ...


class SocketTransport:
    """A connected socket. trio.BrokenResourceError when the other side has gone."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._turns = 0
        connected.setblocking(False)
        if connected.family in (socket.AF_INET, socket.AF_INET6):
            with suppress(OSError):  # it may be gone already; the first read will say so
                for level, option, value in _OPTIONS:
                    connected.setsockopt(level, option, value)

    @classmethod
    def adopt(cls, stream: trio.SocketStream) -> "SocketTransport":
        """Takes the socket out of a stream of trio's, which is of no use any more."""
        inner = stream.socket
        return cls(socket.socket(inner.family, inner.type, inner.proto, inner.detach()))

    async def receive_some(self, max_bytes: int) -> bytes:
        """At least one byte, or none when the other side has ended its stream. max_bytes: at most 65536 are read."""
        self._turns += 1
        if self._turns >= _TURNS:
            self._turns = 0
            await trio.lowlevel.checkpoint()
        while True:
            try:
                count = self._socket.recv_into(_buffer, min(max_bytes, len(_buffer)))
                return bytes(memoryview(_buffer)[:count])
            except BlockingIOError:
                self._turns = 0
                await trio.lowlevel.wait_readable(self._socket)
            except OSError as error:
                raise trio.BrokenResourceError("connection lost") from error

    def send_now(self, data: bytes | memoryview) -> int:
        """As many bytes as the socket takes without waiting; how many that was."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError("connection lost") from error

    async def send_all(self, data: bytes | memoryview) -> None:
        """Every byte; waits while the other side does not read."""
        sent = self.send_now(data)
        rest = memoryview(data)[sent:]
        while rest:
            await trio.lowlevel.wait_writable(self._socket)
            rest = rest[self.send_now(rest) :]

    async def send_eof(self) -> None:
        """Tells the other side that nothing more will come."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise trio.BrokenResourceError("connection lost") from error

    async def aclose(self) -> None:
        """Closes at once."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
