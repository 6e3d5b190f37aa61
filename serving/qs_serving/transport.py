"""A TCP stream with as little between the socket and the loop as can be.

What `trio.SocketStream` does in two passes through the scheduler for every answer, this does in one, or in none: it
waits only when the socket says that it would block; it can send without waiting at all; and what comes can be taken in
the hub's sweep while the task that reads sleeps on.
"""

import fcntl
import socket
import sys
import termios
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import outcome
import trio

from .hub import Hub

CHUNK = 64 * 1024
"""Bytes that one read takes at most."""
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

_buffer = memoryview(bytearray(CHUNK))
"""Where every read lands before it is copied out: most are short, and a fresh buffer of this size each time is dear."""

Sink = Callable[[bytes], None]
"""Takes what has come: at least one byte, or none when the other side has ended its stream."""


class Transport(ABC):
    """What a connection reads from and writes to; one task at a time reads. trio.BrokenResourceError when the other
    side has gone."""

    def __init__(self, hub: Hub, peer: str) -> None:
        """peer: the other side's address, HOST:PORT."""
        self.peer = peer
        self.watched = False
        self._hub = hub
        self._turns = 0
        self._sink: Sink | None = None  # while something is wanted
        self._feeding: Sink | None = None
        self._most = CHUNK
        self._task: trio.lowlevel.Task | None = None  # that sleeps until it is roused

    # -- what a kind of stream has of its own

    @abstractmethod
    def fileno(self) -> int:
        """By which the hub knows it."""

    @abstractmethod
    def _receive_now(self, max_bytes: int) -> bytes:
        """What is there. BlockingIOError when nothing is; other OSErrors when the stream is broken."""

    @abstractmethod
    def send_now(self, data: bytes | memoryview) -> int:
        """Sends what can be sent without waiting, and returns how many bytes that was."""

    @abstractmethod
    async def send_all(self, data: bytes | memoryview) -> None:
        """Every byte; waits while the other side does not read."""

    @abstractmethod
    def backlog(self) -> int:
        """How many bytes of those that were sent the other side has not taken yet."""

    @abstractmethod
    async def send_eof(self) -> None:
        """Tells the other side that nothing more will come."""

    @abstractmethod
    async def aclose(self) -> None:
        """Closes at once."""

    # -- reading, by a task

    async def receive_some(self, max_bytes: int) -> bytes:
        """At least one byte, or none when the other side has ended its stream. max_bytes: at most 65536 are read."""
        self._turns += 1
        if self._turns >= _TURNS:
            self._turns = 0
            await trio.lowlevel.checkpoint()
        self._most = min(max_bytes, CHUNK)
        received: bytes | None = self.look()
        if received is None:
            self._turns = 0
            received = await self._sleep(self._receive)
        return received

    def look(self) -> bytes | None:
        """What has come, without waiting: none at the end of the stream, and None when there is nothing."""
        try:
            return self._receive_now(self._most)
        except BlockingIOError:
            return None
        except OSError as error:
            raise trio.BrokenResourceError("connection lost") from error

    def _receive(self, data: bytes) -> None:
        self._wake(outcome.Value(data))

    # -- reading, in the hub's sweeps

    async def feed(self, sink: Sink) -> None:
        """Sleeps until `rouse`, or until the stream breaks; meanwhile sink is called with what comes. At the end of the
        stream, and when it raises something, sink is called no more."""
        self._most = CHUNK
        self._feeding = sink
        try:
            await self._sleep(sink)
        finally:
            self._feeding = None

    def hold(self) -> None:
        """Reads nothing for `feed` until `resume`: the other side has to wait, once what the kernel holds is full."""
        self._sink = None

    def resume(self) -> None:
        """Reads again."""
        if self._task is not None:
            self._sink = self._feeding
            if not self.watched:
                self._hub.watch(self)

    def rouse(self, error: Exception | None = None) -> None:
        """Ends `feed`, which raises the error if there is one. Nothing more is read."""
        self._wake(outcome.Value(None) if error is None else outcome.Error(error))

    def ready(self) -> int:
        """Called by the hub: something can be read."""
        sink = self._sink
        if sink is None:
            self._hub.drop(self)  # until somebody wants it
            return 0
        try:
            data = self._receive_now(self._most)
        except BlockingIOError:
            return 0
        except OSError as error:
            broken = trio.BrokenResourceError("connection lost")
            broken.__cause__ = error
            self.rouse(broken)
            return 0
        if not data:
            self._sink = None
        try:
            sink(data)
        except Exception as error:  # a fault in the reader's code is the reader's task's business
            self.rouse(error)
        return len(data)

    # -- the task that reads

    async def _sleep(self, sink: Sink) -> Any:
        if self._task is not None:
            raise trio.BusyResourceError("another task is reading already")
        if not self.watched:
            self._hub.watch(self)
        self._sink = sink
        self._task = trio.lowlevel.current_task()
        return await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._sink = self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake(self, result: outcome.Outcome[Any]) -> None:
        self._sink = None
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task, result)

    def _close_reading(self) -> None:
        """Before the descriptor is closed."""
        self._hub.drop(self)
        self._wake(outcome.Error(trio.ClosedResourceError("another task has closed the stream")))


class SocketTransport(Transport):
    """A connected socket."""

    def __init__(self, connected: socket.socket, hub: Hub) -> None:
        super().__init__(hub, _address(connected))
        self._socket = connected
        connected.setblocking(False)
        if connected.family in (socket.AF_INET, socket.AF_INET6):
            with suppress(OSError):  # it may be gone already; the first read will say so
                for level, option, value in _OPTIONS:
                    connected.setsockopt(level, option, value)

    @classmethod
    def adopt(cls, stream: trio.SocketStream, hub: Hub) -> "SocketTransport":
        """Takes the socket out of a stream of trio's, which is of no use any more."""
        inner = stream.socket
        return cls(socket.socket(inner.family, inner.type, inner.proto, inner.detach()), hub)

    def fileno(self) -> int:
        return self._socket.fileno()

    def _receive_now(self, max_bytes: int) -> bytes:
        return bytes(_buffer[: self._socket.recv_into(_buffer, max_bytes)])

    def send_now(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError("connection lost") from error

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
            return 0  # it is broken

    async def send_eof(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise trio.BrokenResourceError("connection lost") from error

    async def aclose(self) -> None:
        if self._socket.fileno() >= 0:
            self._close_reading()
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


def _address(connected: socket.socket) -> str:
    try:
        host, port = connected.getpeername()[:2]
    except (OSError, ValueError):
        return "unknown"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
