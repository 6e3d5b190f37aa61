"""The queue server: the parts put together, from the listening socket to the last answer."""

import errno
import logging
import os
import time
from functools import partial

import trio

from qs_schemas import Peer
from qs_serving.acceptor import Acceptor
from qs_serving.listening import (
    Announce,
    StartError,
    open_listeners,
    raise_descriptor_limit,
    serve_until_signalled,
)
from qs_serving.transport import Transport

from .changes import Changes
from .committer import Committer
from .connection import Connection
from .group import Chore
from .history import History, recording
from .options import ServerOptions
from .spilling import Spiller
from .storage.directories import DirectoriesEngine
from .storage.disk import Disk
from .storage.engine import SECOND, Clock, Durability, Engine, StorageError
from .storage.files import FilesEngine
from .storage.journal.engine import JournalEngine
from .subscriptions import Subscriptions
from .waiting import Waiters

_logger = logging.getLogger(__name__)
_EXPIRE_SLICE = 500
"""Leases that one batch ends, so that many at once do not keep requests waiting."""
_TRY_AGAIN = 1
"""Seconds after which leases that could not be ended are tried again."""

ENGINES: dict[str, type[DirectoriesEngine]] = {"journal": JournalEngine, "files": FilesEngine}
"""The storages that a queue can have; the first is the default."""


def wall_clock() -> int:
    """Microseconds since the Epoch."""
    return time.time_ns() // 1000


def open_storage(options: ServerOptions, clock: Clock, history: History | None = None) -> Engine:
    """The default engine on the root directory. history: is told of what happens to messages. StartError when the root
    cannot be used."""
    root = os.path.abspath(options.root)
    try:
        Disk().make_directories(root, sync=options.durability is not Durability.NONE)
        if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), root)
        engine = ENGINES[options.storage]
        return engine(root, clock=clock, durability=options.durability, limits=options.spill, lifecycle=history)
    except OSError as error:
        reason = error.strerror or str(error)
        where = f" ({error.filename})" if error.filename not in (None, root) else ""
        raise StartError(f"cannot use root {root}: {reason}{where}; name another with --root") from None
    except StorageError as error:
        raise StartError(f"cannot use root {root}: {error}") from None


class Server(Acceptor[Connection]):
    """Serves the queues of one engine."""

    def __init__(
        self, storage: Engine, options: ServerOptions, clock: Clock = wall_clock, history: History | None = None
    ) -> None:
        """history: what the engine tells of its messages, None for no record."""
        super().__init__(options.limits)
        self._wire = options.wire
        self._storage = storage
        self._clock = clock
        self._waiters = Waiters()
        self._subscriptions = Subscriptions(storage, clock, history)
        self._committer = Committer(storage, options.durability, self._waiters, self._subscriptions)
        self._committer.record = history
        self._hub.swept = self._committer.swept

    async def serve(self, listeners: list[trio.SocketListener]) -> None:
        """Until `stop` has been called and what was begun is finished. Closes the listeners, not the engine."""
        async with trio.open_nursery() as background:
            background.start_soon(self._committer.serve)
            background.start_soon(self._committer.sync_at_intervals)
            background.start_soon(self._keep_time)
            background.start_soon(Spiller(self._storage, self._committer, self._clock).serve)
            if (descriptor := self._storage.fileno()) is not None:
                self._committer.batch_done = Changes(descriptor, self._hub, self._committer).watch
            await self.accept(listeners)
            await self._committer.give_back()
            background.cancel_scope.cancel()

    def _converse_with(self, stream: Transport, writers: trio.Nursery) -> Connection:
        return Connection(
            stream,
            Peer(self._wire),
            self._limits,
            writers,
            wire=self._wire,
            storage=self._storage,
            subscriptions=self._subscriptions,
            committer=self._committer,
            waiters=self._waiters,
        )

    def _joined(self, conversation: Connection) -> None:
        self._committer.clients += 1

    async def _left(self, conversation: Connection) -> None:
        await conversation.leave()
        self._committer.clients -= 1

    async def _keep_time(self) -> None:
        """Makes messages visible when their time has come. Sleeps until then."""
        committer = self._committer
        await self._expire()
        while True:
            due, too_late = committer.expiry()
            wait = float("inf") if due is None else max(due - self._clock(), 0) / SECOND
            with trio.move_on_after(wait) as timer:
                await too_late.wait()
            if timer.cancelled_caught:
                await self._expire()

    async def _expire(self) -> None:
        chore = Chore(lambda: self._storage.expire(_EXPIRE_SLICE))
        await self._committer.run(chore)
        if chore.failed:
            await trio.sleep(_TRY_AGAIN)  # it is still due


async def run_server(options: ServerOptions, announce: Announce) -> None:
    """Serves until SIGTERM or SIGINT. StartError."""
    raise_descriptor_limit(options.limits.connections)
    with recording(options.history, options.root, wall_clock) as history:
        storage = open_storage(options, wall_clock, history)
        try:
            listeners = await open_listeners(options.host, options.port)
            server = Server(storage, options, history=history)
            await serve_until_signalled(server, partial(server.serve, listeners), listeners, announce)
        finally:
            try:
                storage.close()
            except OSError as error:
                _logger.error("the last changes may not survive a power loss: %s", error)
