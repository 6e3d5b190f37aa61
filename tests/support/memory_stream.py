"""A connection in memory: two pipes, of which each side has one to read from and one to write to.

One side can do without waiting what a socket that is ready does at once; the other has the interface of trio's streams.
"""

from collections.abc import Callable

import trio


class Pipe:
    """Bytes on their way in one direction. lockstep: a sender waits until everything has been read."""

    def __init__(self, *, lockstep: bool) -> None:
        self.lockstep = lockstep
        self.on_change: Callable[[], None] = lambda: None
        self._held = bytearray()
        self._ended = False
        self._forgotten = False
        self._changed = trio.Event()

    def _note(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
        self.on_change()

    # -- the one that writes

    def check(self) -> None:
        """trio.BrokenResourceError when nobody reads any more, trio.ClosedResourceError after the end."""
        if self._ended:
            raise trio.ClosedResourceError
        if self._forgotten:
            raise trio.BrokenResourceError

    def put(self, data: bytes | memoryview) -> None:
        self.check()
        self._held += data
        self._note()

    async def send(self, data: bytes | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self.put(data)
        while self.lockstep and self._held:
            await self._changed.wait()
            self.check()

    def end(self) -> None:
        self._ended = True
        self._note()

    # -- the one that reads

    @property
    def is_ready(self) -> bool:
        return bool(self._held) or self._ended

    def take(self, most: int) -> bytes:
        """At least one byte, or none at the end. BlockingIOError when there is nothing yet."""
        if not self.is_ready:
            raise BlockingIOError
        data = bytes(self._held[:most])
        del self._held[:most]
        self._note()
        return data

    async def receive(self, most: int) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self.is_ready and not self._forgotten:
            await self._changed.wait()
        if self._forgotten:
            raise trio.ClosedResourceError
        return self.take(most)

    def forget(self) -> None:
        """Marks that nobody reads any more."""
        self._forgotten = True
        self._held.clear()
        self._note()


class Stream(trio.abc.HalfCloseableStream):
    """One side."""

    def __init__(self, coming: Pipe, going: Pipe) -> None:
        self.coming = coming
        self.going = going

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.going.send(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        raise NotImplementedError

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self.coming.receive(max_bytes or 65536)

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        self.going.end()

    async def aclose(self) -> None:
        self.going.end()
        self.coming.forget()
        await trio.lowlevel.checkpoint()


def stream_pair(*, lockstep: bool) -> tuple[Stream, Stream]:
    """The two sides of a connection."""
    one, other = Pipe(lockstep=lockstep), Pipe(lockstep=lockstep)
    return Stream(one, other), Stream(other, one)
