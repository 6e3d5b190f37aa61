"""A stream with as little as possible between its source and the event loop.

`trio.SocketStream` passes through the scheduler twice for every answer. This stream passes through it once or never: it
waits only when the socket would block, it can send without waiting, and the hub can hand received bytes to a callback
while the task that reads sleeps on.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import outcome
import trio

from qs_schemas.tls import PeerNames

from .hub import Hub

CHUNK = 64 * 1024
"""The most bytes of one read, and of plaintext that is encrypted ahead of the socket."""
_TURNS = 16
"""Reads that may succeed at once before other tasks run: a client that never stops sending must not hold the loop."""

Sink = Callable[[bytes], None]
"""Takes received bytes: at least one, or none at the end of the stream."""


class Transport(ABC):
    """The stream of a connection. Only one task may read at a time. Methods raise trio.BrokenResourceError if the
    connection is lost."""

    peer_names: PeerNames = ()
    """The names in the client's certificate, which has been verified; none without TLS or without a certificate."""

    def __init__(self, hub: Hub, peer: str) -> None:
        """hub: tells when bytes can be read; peer: the other side's address, HOST:PORT."""
        self.peer = peer
        self.watched = False
        self._hub = hub
        self._turns = 0
        self._sink: Sink | None = None  # None: received bytes are left in the kernel
        self._feeding: Sink | None = None
        self._chunk = CHUNK
        self._most = CHUNK  # bytes of the next read
        self._encrypted = 0  # bytes of ciphertext in the last read
        self._task: trio.lowlevel.Task | None = None  # the task that sleeps until it is roused

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
    async def aclose(self) -> None:
        """Closes at once."""

    def limit_reads(self, most: int) -> None:
        """Changes the most bytes of one read, which are `CHUNK` at first: others have their turn after each."""
        self._most = self._chunk = most

    # -- reading, by a task

    async def receive_some(self, max_bytes: int) -> bytes:
        """Reads at least one byte, or none at the end of the stream. max_bytes: at most 65536 are read; with TLS, the
        plaintext that they complete may be up to 16 KiB more."""
        self._turns += 1
        if self._turns >= _TURNS:
            self._turns = 0
            await trio.lowlevel.checkpoint()
        self._most = min(max_bytes, self._chunk)
        received: bytes | None = self.look()
        if received is None:
            self._turns = 0
            received = await self._sleep(self._receive)
        return received

    def look(self) -> bytes | None:
        """Reads without waiting. Returns b"" at the end of the stream, and None if there is nothing to read."""
        try:
            return self._receive_now(self._most)
        except BlockingIOError:
            return None
        except OSError as error:
            raise trio.BrokenResourceError("connection lost") from error

    def _receive(self, data: bytes) -> None:
        self._wake(outcome.Value(data))

    # -- reading, by the hub

    async def feed(self, sink: Sink) -> None:
        """Sleeps until `rouse`, or until the stream breaks. Meanwhile the hub calls sink with received bytes, until the
        end of the stream or an error of sink, which `feed` raises."""
        self._most = self._chunk
        self._feeding = sink
        try:
            await self._sleep(sink)
        finally:
            self._feeding = None

    def hold(self) -> None:
        """Stops calling the sink of `feed` until `resume`. The other side has to wait once the kernel's buffers are
        full."""
        self._sink = None

    def resume(self) -> None:
        """Undoes `hold`."""
        if self._task is not None:
            self._sink = self._feeding
            if not self.watched:
                self._hub.watch(self)

    def rouse(self, error: Exception | None = None) -> None:
        """Ends `feed`, which raises the error if there is one."""
        self._wake(outcome.Value(None) if error is None else outcome.Error(error))

    def ready(self) -> int:
        """Reads once and calls the sink. The hub calls it when there are bytes to read. Returns their number: with TLS
        that of the ciphertext, as a record of many bytes may have one of plaintext."""
        sink = self._sink
        if sink is None:
            self._hub.drop(self)  # no reads until a reader watches again
            return 0
        try:
            data = self._receive_now(self._most)
        except BlockingIOError:
            return self._encrypted
        except OSError as error:
            broken = trio.BrokenResourceError("connection lost")
            broken.__cause__ = error
            self.rouse(broken)
            return 0
        if not data:
            self._sink = None
        try:
            sink(data)
        except Exception as error:  # raised in the task that reads, not in the hub's
            self.rouse(error)
        return self._encrypted or len(data)

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
        """Ends reading. A subclass calls it before it closes the descriptor."""
        self._hub.drop(self)
        self._wake(outcome.Error(trio.ClosedResourceError("another task has closed the stream")))
