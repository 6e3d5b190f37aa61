"""The queue server: the parts put together, from the listening socket to the last answer."""

import trio

from qs_schemas import Peer
from qs_serving.acceptor import Acceptor
from qs_serving.transport import Transport

from ..broker.changes import Changes
from ..broker.committer import Committer
from ..broker.jobs import Job
from ..broker.remotes import Remotes
from ..broker.stock import Fetching
from ..broker.subscriptions import Subscriptions
from ..broker.upkeep import UpkeepLoop
from ..broker.waiting import Waiters
from ..history.record import History
from ..session.connection import Connection
from ..storage.engine import SECOND, Clock, Engine, wall_clock
from .options import ServerOptions

_EXPIRE_SLICE = 500
"""Leases that one batch ends, so that many at once do not keep requests waiting."""
_TRY_AGAIN = 1
"""Seconds after which leases that could not be ended are tried again."""


class Server(Acceptor[Connection]):
    """Serves the queues of one engine."""

    def __init__(
        self,
        storage: Engine,
        options: ServerOptions,
        clock: Clock = wall_clock,
        history: History | None = None,
        remotes: Remotes | None = None,
    ) -> None:
        """history: what the engine tells of its messages, None for no record; remotes: queues that others keep."""
        super().__init__(options.limits)
        self._wire = options.wire
        self._early = options.early
        self._storage = storage
        self._clock = clock
        self._waiters = Waiters()
        self._remotes = remotes or Remotes()
        self._fetching = Fetching(storage, self._remotes)
        self._subscriptions = Subscriptions(self._fetching.stock, clock, history)
        self._committer = Committer(storage, options.durability, self._waiters, self._subscriptions)
        self._committer.record = history
        self._hub.on_poll_end = self._committer.on_poll_end

    async def serve(self, listeners: list[trio.SocketListener]) -> None:
        """Until `stop` has been called and what was begun is finished. Closes the listeners, not the engine."""
        async with trio.open_nursery() as background:
            background.start_soon(self._committer.serve)
            background.start_soon(self._committer.sync_at_intervals)
            background.start_soon(self._keep_time)
            background.start_soon(UpkeepLoop(self._storage, self._committer, self._clock).serve)
            background.start_soon(self._fetching.serve, self._committer, self._subscriptions)
            if (descriptor := self._storage.fileno()) is not None:
                Changes(descriptor, self._hub, self._committer)
            await self.accept(listeners)
            await self._committer.give_back()
            background.cancel_scope.cancel()

    def _converse_with(self, stream: Transport, writers: trio.Nursery) -> Connection:
        return Connection(
            stream,
            Peer(self._wire, serving=True, early=self._early),
            self._limits,
            writers,
            wire=self._wire,
            storage=self._storage,
            subscriptions=self._subscriptions,
            committer=self._committer,
            waiters=self._waiters,
            remotes=self._remotes,
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
        chore = Job(lambda: self._storage.expire(_EXPIRE_SLICE))
        await self._committer.run(chore)
        if chore.failed:
            await trio.sleep(_TRY_AGAIN)  # it is still due
