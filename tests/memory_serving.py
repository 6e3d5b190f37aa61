"""The server without sockets: memory streams, a clock that tests move, an engine on a real directory.

Durability `none` does everything in the loop, without threads, so that time can jump; what is about commits in the
thread is tested in real time.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio
import trio.testing
from documents import new_queue

from qs_server.options import ServerLimits, ServerOptions
from qs_server.server import Server, wall_clock
from qs_server.storage.disk import Disk
from qs_server.storage.engine import Durability
from qs_server.storage.files import FilesEngine

Stream = trio.StapledStream
Clock = trio.testing.MockClock  # pytest-trio runs a test on the clock that the test itself asks for
EPOCH = 1_760_000_000_000_000
"""What the tests' clock says at its start: microseconds."""


class MemoryListener(trio.abc.Listener[Stream]):
    """Gives the server what `connect` made."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[Stream](float("inf"))

    def connect(self, *, lockstep: bool = False) -> Stream:
        """The client's side. lockstep: whatever is sent is waited for until it has been read."""
        make = trio.testing.lockstep_stream_pair if lockstep else trio.testing.memory_stream_pair
        ours, theirs = make()
        self._send.send_nowait(theirs)
        return ours

    async def accept(self) -> Stream:
        return await self._receive.receive()

    async def aclose(self) -> None:
        await self._receive.aclose()


class MemoryTransport:
    """A memory stream as a transport: it takes nothing without waiting, so everything is sent by the outbox's task."""

    def __init__(self, stream: Stream) -> None:
        self.receive_some = stream.receive_some
        self.send_all = stream.send_all
        self.send_eof = stream.send_eof
        self.aclose = stream.aclose

    def send_now(self, data: bytes | memoryview) -> int:
        return 0


class MemoryServer(Server):
    """Takes memory streams."""

    async def _serve_socket(self, stream: Stream) -> None:
        await self.serve_connection(MemoryTransport(stream))


class Client:
    """One side of a stream, line by line."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._held = bytearray()

    async def send(self, *documents: str) -> None:
        await self.stream.send_all("".join(documents).encode())

    async def line(self) -> str:
        """The next answer; empty at the end of the stream."""
        while b"\n" not in self._held:
            data = await self.stream.receive_some(65536)
            if not data:
                break
            self._held += data
        line, end, rest = bytes(self._held).partition(b"\n")
        self._held = bytearray(rest)
        return (line + end).decode()

    async def lines(self, count: int) -> list[str]:
        return [await self.line() for _ in range(count)]

    async def ask(self, *documents: str) -> str:
        """The answer to the last of the documents."""
        await self.send(*documents)
        return (await self.lines(len(documents)))[-1]

    async def rest(self) -> list[str]:
        """What comes until the server closes."""
        lines = []
        while line := await self.line():
            lines.append(line)
        return lines

    async def nothing_yet(self) -> bool:
        """Whether no answer has come, once nobody has anything left to do."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        return not self._held

    async def _look(self) -> None:
        self._held += await self.stream.receive_some(65536)

    async def hang_up(self) -> None:
        await self.stream.aclose()


class Serving:
    """A running server. `connect` gives a client; `root` is the directory of the queues."""

    def __init__(self, server: Server, listener: MemoryListener, root: Path, storage: FilesEngine) -> None:
        self.server = server
        self.root = root
        self.storage = storage
        self._listener = listener

    def connect(self, *, lockstep: bool = False) -> Client:
        return Client(self._listener.connect(lockstep=lockstep))


@asynccontextmanager
async def serving(
    root: Path,
    clock: Callable[[], int] = wall_clock,
    *,
    durability: Durability = Durability.NONE,
    disk: Disk | None = None,
    limits: ServerLimits | None = None,
    queues: tuple[str, ...] = ("q",),
) -> AsyncIterator[Serving]:
    """A server for the length of a with block, with these queues. At its end it is stopped as a signal would."""
    root.mkdir(exist_ok=True)
    options = ServerOptions(str(root), durability=durability, limits=limits or ServerLimits())
    storage = FilesEngine(str(root), clock=clock, durability=durability, disk=disk)
    listener = MemoryListener()
    server = MemoryServer(storage, options, clock)
    done = trio.Event()

    async def run() -> None:
        await server.serve([listener])  # type: ignore[list-item]
        done.set()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            running = Serving(server, listener, root, storage)
            client = running.connect()
            for qid in queues:
                await client.ask(new_queue(qid))
            await client.hang_up()
            await trio.testing.wait_all_tasks_blocked()
            yield running
            server.stop()
            await done.wait()
    finally:
        storage.close()


def clock_of(mock: trio.testing.MockClock) -> Callable[[], int]:
    """The server's clock, moved by trio's. (trio.current_time() cannot be asked from a thread.)"""
    return lambda: EPOCH + round(mock.current_time() * 1_000_000)
