"""Runs the queue server: opens the engines, makes the server's parts and connects them, and serves until a signal stops
the server.

`run_server` starts the parts in the order clock, history, storage, remote engines, listeners, and stops them in the
reverse order. `QueueServer` runs in between: one hub and one committer for all connections, and the background tasks.
"""

import gc
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial

from qs_schemas.extras import NotInstalledError

try:
    import trio
except ModuleNotFoundError as error:
    raise NotInstalledError("server", error) from None

from qs_payloads import Checker
from qs_schemas import Figure, Peer
from qs_serving.acceptor import Acceptor, Adopt
from qs_serving.access.access import Access
from qs_serving.access.caller import Caller
from qs_serving.command import guards_of
from qs_serving.connection import Connection
from qs_serving.errors import StopError
from qs_serving.figures import Histogram
from qs_serving.hub import Hub
from qs_serving.listening import Announce, check_port, fit_descriptors, open_listeners
from qs_serving.service_manager import ServiceManager, inherited_sockets
from qs_serving.socket_transport import SocketTransport
from qs_serving.stopping import serve_until_signalled
from qs_serving.tls import ServerTls
from qs_storage.door import Refusal
from qs_storage.engine import Clock, Engine, UnfinishedError, wall_clock
from qs_storage.shared import DEAD, REJECTED, Lifecycle, totals_of

from ..broker.background import Changes, ExpiryLoop, Turns, UpkeepLoop
from ..broker.committer import Committer
from ..broker.fetcher import FetchedSource, Fetcher
from ..broker.jobs import Job, Waiters
from ..broker.remotes import Remotes
from ..broker.room import DiskRoom
from ..broker.subscriptions import Subscriptions
from ..history.history import History, running_history
from ..operations.door import Door
from ..session.session import Session
from .opening import open_clock, open_remotes, open_storage, read_schemas
from .options import ServerOptions

_logger = logging.getLogger(__name__)
_REASONS = {DEAD: "receives", REJECTED: "rejected"}
"""Figures of the engine that are one figure to clients, with these values of its label `reason`."""
_LEAST_DESCRIPTORS = 128
"""Open files of a server whose queues are in the journal, beside those of its connections: 64 segments that are read,
those that are written, locks, the event loop, and what requests open for a moment."""
_MOST_DESCRIPTORS = 1536
"""With queues of files too: a list of messages has a file for each until all are synced, 1,300 at most. And with queues
on other servers: 100 connections to each."""


class QueueServer:
    """Accepts clients, and runs the broker's tasks on one engine.

    Ensures:
    1. All connections share one hub, one committer and one engine. So the requests that come in one poll cycle are one
       batch, with one sync.
    2. `serve` returns when every request that has begun is answered, and everything that subscribers held is visible.
    3. The background tasks outlive the connections, whose last requests need them.

    Assumes that the engine and the remote engines are open, and that their owner closes them after `serve` has
    returned.

    The server object must never know what a request means, and never open or close storage: `run_server` does that."""

    def __init__(
        self,
        storage: Engine,
        options: ServerOptions,
        clock: Clock = wall_clock,
        history: History | None = None,
        remotes: Remotes | None = None,
        *,
        tls: ServerTls | None = None,
        access: Access | None = None,
        syncs: Histogram | None = None,
        door: Door | None = None,
        hub: Hub | None = None,
        adopt: Adopt = SocketTransport.adopt,
    ) -> None:
        """Makes the parts and connects them. history, tls, access: None for a server without; syncs: the durations of
        the journal's syncs; door: checks payloads by the schemas of queues; hub, adopt: see Acceptor."""
        self._limits = options.limits
        self._wire = options.wire
        self._syncs = syncs or Histogram()
        self._early = options.early
        self._storage = storage
        self._clock = clock
        self._waiters = Waiters()
        self._remotes = remotes or Remotes()
        source = FetchedSource(storage, self._remotes)
        self._subscriptions = Subscriptions(source, clock, history)
        self._committer = Committer(storage, options.durability, self._waiters, self._subscriptions, history)
        # Without remote queues the fetcher sleeps.
        self._fetcher = Fetcher(source, self._remotes, self._committer, self._subscriptions)
        self._room = DiskRoom(options.root, clock)
        self._door = door or Door()
        self.acceptor = Acceptor(
            self, options.limits, tls, access, hub=hub, adopt=adopt, on_count=self._committer.note_clients
        )
        """Accepts the clients and knows their connections."""
        self.acceptor.hub.on_poll_end = self._committer.on_poll_end

    def own_figures(self) -> list[Figure]:
        """Returns the server's figures. Call this in a batch."""
        found = self._storage.figures()
        for counts in (self._remotes.counts, self._remotes.counts_in_loop):
            remote = totals_of(counts)
            found = {name: value + remote.get(name, 0) for name, value in found.items()}
        # The engine counts a rejected message in both figures; clients see it in one.
        found[DEAD] -= found[REJECTED]
        return [
            *(
                Figure(DEAD, value, {"reason": _REASONS[name]}) if name in _REASONS else Figure(name, value)
                for name, value in found.items()
            ),
            *(Figure(name, value) for name, value in self._remotes.figures().items()),
            *self._syncs.figures("journal_sync_seconds"),
            Figure("messages_refused_total", sum(self._door.refused.values())),
            Figure("subscriptions", self._subscriptions.total),
            Figure("waiting_receives", self._waiters.total),
        ]

    async def serve(self, listeners: list[trio.SocketListener]) -> None:
        """Serves until `stop`, and finishes requests that have begun. Closes the listeners, not the engine."""
        turns = Turns()  # one for both loops: only one slice of either runs at a time
        async with trio.open_nursery() as background:
            background.start_soon(self._committer.serve)
            background.start_soon(self._committer.sync_at_intervals)
            background.start_soon(ExpiryLoop(self._storage, self._committer, turns, self._clock).serve)
            background.start_soon(UpkeepLoop(self._storage, self._committer, turns, self._clock).serve)
            background.start_soon(self._room.serve)
            background.start_soon(self._fetcher.serve)
            if (descriptor := self._storage.fileno()) is not None:
                Changes(descriptor, self.acceptor.hub, self._committer)
            self._committer.gatherer.open(self.acceptor.hub)
            try:
                # Messages that the connections held are to be visible at the next start, not when a window ends.
                await self.acceptor.accept(listeners, self._committer.give_back)
            finally:
                self._committer.gatherer.close()
            background.cancel_scope.cancel()

    def reload(self) -> None:
        """Begins to read the schemas of payloads again, in a thread. Called in the loop."""
        loop = trio.lowlevel.current_trio_token()
        threading.Thread(target=self._read_schemas, args=[loop], name="schemas", daemon=True).start()

    def _read_schemas(self, loop: trio.lowlevel.TrioToken) -> None:
        """Reads the schemas again, and has the files looked at again that they had refused."""
        self._door.read_again()
        with suppress(trio.RunFinishedError):  # the server has ended meanwhile
            loop.run_sync_soon(lambda: self._committer.post(Job(self._storage.check_again)))

    def stop(self) -> None:
        """Begins the gentle stop, as `Acceptor.stop` describes."""
        self._subscriptions.stop()  # before connections leave: messages that they give back must not back off
        self.acceptor.stop()

    def cut_off(self) -> None:
        """Disconnects all clients. Call it after `stop`."""
        self.acceptor.cut_off()

    async def probe(self) -> None:
        """Commits an empty batch, and returns when it is done. If the loop or a commit hangs, this method hangs too,
        and the service manager's watchdog restarts the server."""
        done = trio.Event()
        job = Job()
        job.on_batch_end = done.set
        self._committer.post(job)
        await done.wait()

    def new_peer(self) -> Peer:
        return Peer(self._wire, serving=True, early=self._early)

    def new_session(
        self, connection: Connection[Session], peer: Peer, caller: Caller | None, tasks: trio.Nursery
    ) -> Session:
        return Session(
            connection,
            peer,
            limits=self._limits,
            counts=self.acceptor.counts,
            timers=self.acceptor.timers,
            tasks=tasks,
            document_limits=self._wire,
            storage=self._storage,
            subscriptions=self._subscriptions,
            committer=self._committer,
            waiters=self._waiters,
            remotes=self._remotes,
            caller=caller,
            figures=self.acceptor.figures,
            room=self._room,
            door=self._door,
        )

    def client_gone(self, session: Session) -> None:
        session.leave()


async def run_server(options: ServerOptions, announce: Announce, manager: ServiceManager) -> None:
    """Serves until SIGTERM or SIGINT. Raises StartError, or StopError if the end was not clean."""
    options = replace(options, limits=fit_descriptors(options.limits, _LEAST_DESCRIPTORS, _MOST_DESCRIPTORS))
    inherited = inherited_sockets(manager.environ, manager.pid)
    guards, syncs = guards_of(options, inherited), Histogram()
    await check_port(options.host, options.port, inherited)  # before anything is made in the root
    with (
        closing(open_door(options)) as door,
        open_clock(options) as clock,
        running_history(options.history, options.root, clock) as history,
        _storage_of(options, clock, history, syncs.observe, door.refusal) as storage,
    ):
        # The objects of thousands of queues stay until the end: the garbage collector need not go over them again, and
        # would hold up all clients. A queue that is removed later costs some 4 KB until the server ends.
        gc.collect()
        gc.freeze()
        remotes = open_remotes(options, clock, history, storage.queues)
        try:
            listeners = await open_listeners(options.host, options.port, inherited)
            server = QueueServer(
                storage,
                options,
                clock,
                history=history,
                remotes=remotes,
                tls=guards.tls,
                access=guards.access,
                syncs=syncs,
                door=door,
            )
            serve, grace = partial(server.serve, listeners), options.limits.grace
            await serve_until_signalled(
                server,
                serve,
                listeners,
                announce,
                grace,
                reloads=[*guards.reloads, *([server] if options.schemas else [])],
                manager=manager,
                probe=server.probe,
            )
        finally:
            remotes.close()


def open_door(options: ServerOptions) -> Door:
    """Reads the schemas of payloads. Logs the files that cannot be used. Raises StartError if there is no such
    directory."""
    if options.schemas is None:
        return Door()
    schemas, faults = read_schemas(options.schemas)
    for fault in faults:
        _logger.error("%s", fault)
    return Door(schemas, Checker())


@contextmanager
def _storage_of(
    options: ServerOptions,
    clock: Clock,
    lifecycle: Lifecycle | None,
    on_sync: Callable[[float], object],
    refusal: Refusal,
) -> Iterator[Engine]:
    """Opens the engine for a with block, and closes it. Raises StartError if it cannot be opened, and StopError if
    closing fails, unless the with block failed."""
    storage = open_storage(options, clock, lifecycle, on_sync, refusal)
    try:
        yield storage
    except BaseException:
        with suppress(OSError, UnfinishedError):  # the first error says more
            storage.close()
        raise
    try:
        storage.close()
    except UnfinishedError as error:
        raise StopError(str(error)) from None
    except OSError as error:
        raise StopError(f"the last changes may not survive a power loss: {error}") from None
