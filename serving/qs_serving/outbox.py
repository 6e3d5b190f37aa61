"""What waits to be read by one client.

Whoever puts something in never waits; what the socket does not take is sent by a task that exists only as long as
something is left.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import trio

from .transport import Transport


class Outbox:
    """Documents in the order in which they were put. Once the stream is broken, it takes everything and sends nothing:
    whoever reads from the stream finds out by himself."""

    __slots__ = ("_broken", "_drained", "_nursery", "_transport", "_waiting", "_written", "unsent", "used")

    def __init__(
        self, transport: Transport, nursery: trio.Nursery, written: Callable[[Any], None] = lambda token: None
    ) -> None:
        """nursery: where the task runs; written: is told the token of what was sent later, when it was."""
        self._transport = transport
        self._nursery = nursery
        self._written = written
        self._waiting: deque[tuple[bytes | memoryview, Any]] | None = None
        self._drained: trio.Event | None = None
        self._broken = False
        self.unsent = 0
        """Bytes that the socket has not taken."""
        self.used = False
        """Whether anything has been put in."""

    def put(self, data: bytes, token: Any = None) -> bool:
        """Sends bytes. True: the socket has taken them all. False: `written(token)` says when it has, if it ever does;
        a token of None is not told."""
        sent = 0
        self.used = True
        if not self._waiting:
            if self._broken:
                return False
            try:
                sent = self._transport.send_now(data)
            except trio.BrokenResourceError:
                self.close()
                return False
            if sent == len(data):
                return True
            self._waiting = deque()
            self._nursery.start_soon(self._flush)
        rest = memoryview(data)[sent:] if sent else data
        self._waiting.append((rest, token))
        self.unsent += len(rest)
        return False

    async def send(self, data: bytes) -> None:
        """Sends bytes and waits until the socket has taken everything. trio.BrokenResourceError."""
        if not self.put(data):
            await self.drained()

    async def drained(self) -> None:
        """Waits until the socket has taken everything. trio.BrokenResourceError."""
        while self._waiting:
            if self._drained is None:
                self._drained = trio.Event()
            await self._drained.wait()
        if self._broken:
            raise trio.BrokenResourceError("connection lost")

    async def _flush(self) -> None:
        waiting = self._waiting
        try:
            while waiting:
                data, token = waiting[0]
                await self._transport.send_all(data)
                if not waiting:
                    break  # it was closed meanwhile
                waiting.popleft()
                self.unsent -= len(data)
                if token is not None:
                    self._written(token)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.close()
        except trio.Cancelled:
            self.close()  # in the middle of a line, which nothing may be put behind
            raise
        finally:
            if self._waiting is waiting:
                self._waiting = None
            self._wake()

    def withdraw(self, unwanted: Callable[[Any], bool]) -> None:
        """Takes out what is not to be sent any more. unwanted: says so, by the token. What has no token stays, and what
        the socket may have begun to take, as that is sent to its end."""
        waiting = self._waiting
        if waiting:
            begun, *rest = waiting
            kept = [entry for entry in rest if entry[1] is None or not unwanted(entry[1])]
            self.unsent -= sum(len(data) for data, _ in rest) - sum(len(data) for data, _ in kept)
            waiting.clear()
            waiting.extend([begun, *kept])

    def close(self) -> None:
        """What is left will not be sent."""
        self._broken = True
        if self._waiting:
            self._waiting.clear()
        self.unsent = 0
        self._wake()

    def _wake(self) -> None:
        if self._drained is not None:
            self._drained.set()
            self._drained = None
