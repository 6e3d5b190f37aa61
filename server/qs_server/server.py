"""The queue server: the parts put together, from the listening socket to the last answer."""

import errno
import logging
import os
import resource
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import trio

from qs_schemas import Peer
from qs_schemas import errors as table

from .committer import Committer
from .connection import Connection
from .group import Chore
from .handlers import Service
from .options import ServerOptions
from .storage.disk import Disk
from .storage.engine import SECOND, Clock, Durability, Engine, StorageError
from .storage.files import FilesEngine
from .transport import SocketTransport, Transport
from .waiting import Waiters

_logger = logging.getLogger(__name__)
_EXPIRE_SLICE = 500
"""Leases that one batch ends, so that many at once do not keep requests waiting."""
_TRY_AGAIN = 1
"""Seconds after which leases that could not be ended are tried again."""

ENGINES = ("files",)
"""The storages that a queue can have."""


class StartError(Exception):
    """The server cannot start. The text says why, and what to do, in one line."""


def wall_clock() -> int:
    """Microseconds since the Epoch."""
    return time.time_ns() // 1000


def open_storage(options: ServerOptions, clock: Clock) -> Engine:
    """The default engine on the root directory. StartError when that cannot be used."""
    root = os.path.abspath(options.root)
    try:
        Disk().make_directories(root, sync=options.durability is not Durability.NONE)
        if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), root)
        return FilesEngine(root, clock=clock, durability=options.durability)
    except OSError as error:
        reason = error.strerror or str(error)
        where = f" ({error.filename})" if error.filename not in (None, root) else ""
        raise StartError(f"cannot use root {root}: {reason}{where}; name another with --root") from None
    except StorageError as error:
        raise StartError(f"cannot use root {root}: {error}") from None


class Server:
    """Serves the queues of one engine."""

    def __init__(self, storage: Engine, options: ServerOptions, clock: Clock = wall_clock) -> None:
        self._options = options
        self._storage = storage
        self._clock = clock
        self._waiters = Waiters()
        self._committer = Committer(storage, options.durability, self._waiters)
        self._service = Service(storage, options.wire.list_length, options.wire.document)
        self._connections: set[Connection] = set()
        self._stopping = False
        self._listening: trio.CancelScope | None = None
        self._clients: trio.CancelScope | None = None

    async def serve(self, listeners: list[trio.SocketListener]) -> None:
        """Until `stop` has been called and what was begun is finished. Closes the listeners, not the engine."""
        async with trio.open_nursery() as background:
            background.start_soon(self._committer.serve)
            background.start_soon(self._committer.sync_at_intervals)
            background.start_soon(self._keep_time)
            background.start_soon(self._notice_others)
            async with trio.open_nursery() as clients:
                self._clients = clients.cancel_scope
                with trio.CancelScope() as self._listening:
                    await trio.serve_listeners(self._serve_socket, listeners, handler_nursery=clients)
                clients.cancel_scope.deadline = trio.current_time() + self._options.limits.grace
            if clients.cancel_scope.cancelled_caught:
                _logger.warning("clients that did not read their answers in time were cut off")
            background.cancel_scope.cancel()

    def stop(self) -> None:
        """Takes no more connections or requests. What is begun is finished and answered."""
        self._stopping = True
        if self._listening is not None:
            self._listening.cancel()
        for connection in list(self._connections):
            connection.stop()

    def cut_off(self) -> None:
        """After `stop`: clients get no more time. A batch that is running is still finished."""
        if self._clients is not None:
            self._clients.cancel()

    async def _serve_socket(self, stream: trio.SocketStream) -> None:
        await self.serve_connection(SocketTransport.adopt(stream))

    async def serve_connection(self, stream: Transport) -> None:
        """Serves one client, until it has gone or the server stops."""
        connection = Connection(
            stream,
            Peer(self._options.wire),
            service=self._service,
            committer=self._committer,
            waiters=self._waiters,
            limits=self._options.limits,
        )
        most = self._options.limits.connections
        if len(self._connections) >= most:
            with suppress(trio.BrokenResourceError):
                await connection.refuse(table.TOO_MANY, f"there are {most} connections already; try again later")
            await stream.aclose()
            return
        self._connections.add(connection)
        self._committer.clients += 1
        if self._stopping:
            connection.stop()
        try:
            await connection.serve()
        finally:
            self._committer.clients -= 1
            self._connections.discard(connection)

    async def _keep_time(self) -> None:
        """Makes messages visible when their time has come. Sleeps until then."""
        committer = self._committer
        await self._expire()
        while True:
            committer.expiry_changed = trio.Event()
            due = committer.next_expiry
            wait = float("inf") if due is None else max(due - self._clock(), 0) / SECOND
            with trio.move_on_after(wait) as timer:
                await committer.expiry_changed.wait()
            if timer.cancelled_caught:
                await self._expire()

    async def _expire(self) -> None:
        chore = Chore(lambda: self._storage.expire(_EXPIRE_SLICE))
        await self._committer.run(chore)
        if chore.failed:
            await trio.sleep(_TRY_AGAIN)  # it is still due

    async def _notice_others(self) -> None:
        """Lets the engine look when other processes have changed its files."""
        descriptor = self._storage.fileno()
        while descriptor is not None:
            await trio.lowlevel.wait_readable(descriptor)
            if self._committer.busy:
                # The reports may be of the batch that is running; it clears them away at its end.
                await self._committer.batch_done()
            else:
                await self._committer.run(Chore())


async def run_server(options: ServerOptions, announce: Callable[[str, int], None]) -> None:
    """Serves until SIGTERM or SIGINT. announce: called with host and port once clients can connect. StartError."""
    _raise_descriptor_limit(options.limits.connections)
    storage = open_storage(options, wall_clock)
    try:
        try:
            listeners = await trio.open_tcp_listeners(options.port, host=options.host)
        except (OSError, UnicodeError) as error:
            raise StartError(_cannot_listen(options, error)) from None
        if options.port == 0:
            # Each address of a name would get a port of its own, and one is announced.
            for other in listeners[1:]:
                await other.aclose()
            del listeners[1:]
        server = Server(storage, options)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_stop_on_signal, signals, server)
                host, port = listeners[0].socket.getsockname()[:2]
                announce(host, port)
                await server.serve(listeners)
                nursery.cancel_scope.cancel()
    finally:
        try:
            storage.close()
        except OSError as error:
            _logger.error("the last changes may not survive a power loss: %s", error)


async def _stop_on_signal(signals: AsyncIterator[int], server: Server) -> None:
    stopping = False
    async for _ in signals:
        if stopping:
            server.cut_off()
        else:
            _logger.info("stopping")
            stopping = True
            server.stop()


def _cannot_listen(options: ServerOptions, error: OSError | UnicodeError) -> str:
    where = f"{options.host}:{options.port}"
    inner = error.__cause__ if isinstance(error.__cause__, OSError) else error
    code = getattr(inner, "errno", None)
    if code == errno.EADDRINUSE:
        return f"cannot listen on {where}: the port is in use, maybe by another server; choose one with --port"
    if code == errno.EACCES:
        return f"cannot listen on {where}: not allowed; ports below 1024 need privileges, choose one with --port"
    reason = getattr(inner, "strerror", None) or inner
    return f"cannot listen on {where}: {reason}; choose an address with --host and --port"


def _raise_descriptor_limit(connections: int) -> None:
    """A connection is a descriptor; the usual soft limit of 1024 is for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 256
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
