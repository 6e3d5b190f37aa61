"""The server without sockets: memory streams, a clock that tests move, an engine on a real directory.

Durability `none` does everything in the loop, without threads, so that time can jump; commits in the thread are tested
in real time. The server's end of a memory stream has the calls of a ready socket, which never wait; the client's end
has the interface of trio's streams.
"""

import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio
import trio.testing

from qs_schemas import Limits
from qs_schemas.tls import TlsChannel
from qs_server.broker.fetcher import FetchedSource
from qs_server.broker.remotes import Remotes
from qs_server.history.history import History
from qs_server.main.opening import ENGINES
from qs_server.main.options import ServerLimits, ServerOptions
from qs_server.main.server import QueueServer
from qs_serving.access.access import Access
from qs_serving.hub import Hub, Reader
from qs_serving.transport import Transport
from qs_storage.directories import FilesEngine
from qs_storage.disk import Disk
from qs_storage.engine import Durability, Engine, wall_clock
from qs_storage.remote_engine import RemoteEngine
from support.clients.documents import NS, new_queue


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
        """Raises trio.BrokenResourceError when nobody reads any more, trio.ClosedResourceError after the end."""
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
        """Returns at least one byte, or none at the end. Raises BlockingIOError when no byte has come."""
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
        """Marks that nobody reads the pipe any more."""
        self._forgotten = True
        self._held.clear()
        self._note()


class Stream(trio.abc.HalfCloseableStream):
    """One end of a connection in memory."""

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
    """Returns the two sides of a connection."""
    one, other = Pipe(lockstep=lockstep), Pipe(lockstep=lockstep)
    return Stream(one, other), Stream(other, one)


Clock = trio.testing.MockClock  # pytest-trio runs a test on the clock that the test itself asks for
EPOCH = 1_760_000_000_000_000
"""The time of the tests' clock at its start, in microseconds."""


class MemoryListener(trio.abc.Listener[Stream]):
    """Gives the server the connections that `connect` has made."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[Stream](float("inf"))

    def connect(self, *, lockstep: bool = False) -> Stream:
        """Returns the client's end of a new connection. lockstep: each sender waits until its bytes have been read."""
        ours, theirs = stream_pair(lockstep=lockstep)
        self._send.send_nowait(theirs)
        return ours

    async def accept(self) -> Stream:
        return await self._receive.receive()

    async def aclose(self) -> None:
        await self._receive.aclose()


class MemoryHub(Hub):
    """A hub whose connections are ready when their pipes say so. Other readers are read as the hub's base does."""

    def __init__(self) -> None:
        super().__init__()
        self._noted: dict[MemoryTransport, None] = {}
        self._changed = trio.Event()

    def note(self, reader: "MemoryTransport") -> None:
        """Notes that bytes have come for a connection. Connections are read from in the order in which bytes came."""
        self._noted[reader] = None
        self._changed.set()

    async def _wait(self) -> None:
        async with trio.open_nursery() as nursery:

            async def wait_for_descriptors() -> None:
                await super(MemoryHub, self)._wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(wait_for_descriptors)
            await self._changed.wait()
            nursery.cancel_scope.cancel()

    def _poll(self, linger_until: float) -> list[Reader]:
        self._changed = trio.Event()
        noted, self._noted = self._noted, {}
        return [
            *super()._poll(0 if noted else linger_until),
            *(reader for reader in noted if reader.watched and reader.is_ready),
        ]

    def watch(self, reader: Reader) -> None:
        if isinstance(reader, MemoryTransport):
            assert not reader.watched
            reader.watched = True
            self.note(reader)
        else:
            super().watch(reader)

    def drop(self, reader: Reader) -> None:
        if isinstance(reader, MemoryTransport):
            reader.watched = False
        else:
            super().drop(reader)


class MemoryTransport(Transport):
    """A transport over a stream in memory, read by a hub. Bytes for a pipe in lockstep wait until they have been
    read."""

    def __init__(self, stream: Stream, hub: MemoryHub) -> None:
        super().__init__(hub, "memory")
        self._in, self._out = stream.coming, stream.going
        self._in.on_change = partial(hub.note, self)

    def fileno(self) -> int:
        raise AssertionError("it has none")

    @property
    def is_ready(self) -> bool:
        return self._in.is_ready

    def ready(self) -> int:
        count = super().ready()
        if self.watched and self.is_ready:
            assert isinstance(self._hub, MemoryHub)
            self._hub.note(self)  # there is more, or nobody has taken it
        return count

    def _receive_now(self, max_bytes: int) -> bytes:
        return self._in.take(max_bytes)

    def send_now(self, data: bytes | memoryview) -> int:
        if not self._out.lockstep:
            self._out.put(data)
            return len(data)
        self._out.check()
        return 0

    async def send_all(self, data: bytes | memoryview) -> None:
        await self._out.send(data)

    def backlog(self) -> int:
        return 0

    async def send_eof(self) -> None:
        self._out.end()

    def close(self) -> None:
        self._hub.drop(self)
        self._in.forget()
        self._out.end()


def adopt(stream: Stream, hub: Hub, channel: TlsChannel | None = None) -> Transport:
    """Makes the transport of a stream in memory."""
    assert isinstance(hub, MemoryHub)
    return MemoryTransport(stream, hub)


class Client:
    """A client's end of a stream, read line by line."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._held = bytearray()

    async def send(self, *documents: str) -> None:
        await self.stream.send_all("".join(documents).encode())

    async def line(self) -> str:
        """Returns the next answer; empty at the end of the stream."""
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
        """Sends the documents. Returns the answer to the last one."""
        await self.send(*documents)
        return (await self.lines(len(documents)))[-1]

    async def rest(self) -> list[str]:
        """Returns everything that comes until the server closes."""
        lines = []
        while line := await self.line():
            lines.append(line)
        return lines

    async def nothing_yet(self) -> bool:
        """Waits until nobody has anything left to do. Tells whether no answer has come by then."""
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
    """A running server. `connect` returns a client; `root` is the directory of the queues."""

    def __init__(self, server: QueueServer, listener: MemoryListener, root: Path, storage: FilesEngine) -> None:
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
    wire: Limits | None = None,
    queues: tuple[str, ...] = ("q",),
    access: Access | None = None,
    engines: tuple[RemoteEngine, ...] = (),
    history: History | None = None,
) -> AsyncIterator[Serving]:
    """Runs a server for the length of a with block, with these limits of connections and of documents (`wire`), and
    these queues, which anonymous clients may make if there is an access file. engines: of queues that others keep. At
    its end the server is stopped as by a signal."""
    root.mkdir(exist_ok=True)
    options = ServerOptions(str(root), durability=durability, limits=limits or ServerLimits(), wire=wire or Limits())
    storage = FilesEngine(str(root), clock=clock, durability=durability, disk=disk)
    listener = MemoryListener()
    by_name = {engine.name: engine for engine in engines}
    remotes = Remotes(by_name.get, ENGINES, lifecycle=history, here=storage.queues)
    for name in by_name:
        remotes.open(name)
    server = QueueServer(
        storage,
        options,
        clock,
        history,
        remotes,
        access=access,
        hub=MemoryHub(),
        adopt=adopt,  # type: ignore[arg-type]
    )
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
    """Returns the server's clock, which trio's clock moves. (trio.current_time() cannot be asked from a thread.)"""
    return lambda: EPOCH + round(mock.current_time() * 1_000_000)


class FillableDisk(Disk):
    """A disk that can be full."""

    full = False

    def write(self, fd: int, data: bytes) -> None:
        if self.full:
            raise OSError(28, os.strerror(28))
        super().write(fd, data)


def response(op: str, body: str, req: str = "") -> str:
    """Returns an answer byte for byte, except for its resp."""
    correlation = f' req="{req}"' if req else ""
    return f'<qs xmlns="{NS}" type="response"{correlation} resp="…"><op><{op}/></op>{body}</qs>\r\n'


def plain(line: str) -> str:
    """Returns the line without the parts that differ each time."""
    return re.sub(' resp="[0-9a-f]{64}"', ' resp="…"', line)


async def exactly(client: Client, document: str, op: str, body: str) -> None:
    assert plain(await client.ask(document)) == response(op, body)


def source(storage: Engine) -> FetchedSource:
    """Returns the source of messages that subscriptions take from an engine."""
    return FetchedSource(storage, Remotes())
