"""The bus: passes messages of one queue server to subscribers.

`Bus` accepts the connections of clients and is their `Broker`.
"""

import logging
from functools import partial

import trio

from qs_schemas import Fault, Message, Peer
from qs_schemas import errors as table
from qs_serving.acceptor import Acceptor
from qs_serving.listening import Announce, open_listeners, raise_descriptor_limit
from qs_serving.stopping import serve_until_signalled
from qs_serving.tls import ServerTls
from qs_serving.transport import Transport

from .connection import BusConnection
from .fanout import FanOut
from .feeds import Feed
from .monitor import Monitor
from .options import BusOptions
from .refused import RefusedError
from .subscription import Subscription
from .timers import Timers

_logger = logging.getLogger(__name__)
_FLUSH_TIME = 2
"""Seconds for deleting handled messages on the server after the clients have used up `grace`."""
_TAKEN = "this connection is already subscribed to {!r}; use another connection for another subscription"


class Bus(Acceptor[BusConnection]):
    """Serves subscribers with the messages of one queue server."""

    def __init__(self, options: BusOptions, tls: ServerTls | None = None) -> None:
        """tls: towards clients, None to speak no TLS."""
        super().__init__(options.limits, tls)
        self.options = options
        self.timers = Timers()
        self._flushing = trio.CancelScope()  # around the deletions on the server at the end
        self._monitor = Monitor(options, self._opened, self._ended)

    @property
    def server_name(self) -> str:
        return self._monitor.server_name

    async def serve(self, listeners: list[trio.SocketListener]) -> None:
        """Serves clients until `stop` is called. Then clients may read for up to `grace` seconds, and the bus deletes
        what they have handled within `grace` plus 2 s."""
        async with trio.open_nursery() as background:
            background.start_soon(self._monitor.run, listeners[0].socket.getsockname()[1])
            background.start_soon(self.timers.run)
            await self.accept(listeners)
            with self._flushing:
                await self._monitor.upstream.emptied()
            if self._flushing.cancelled_caught:
                _logger.warning(
                    "not all handled messages could be deleted on the queue server in time: the rest will be delivered "
                    "again"
                )
            background.cancel_scope.cancel()

    def stop(self) -> None:
        """Stops accepting connections and requests. Requests that have begun are answered."""
        self._monitor.stop()
        self._flushing.deadline = trio.current_time() + self._limits.grace + _FLUSH_TIME
        super().stop()

    def cut_off(self) -> None:
        """Shortens the time after `stop`: clients get none, the deletions on the server 2 s."""
        self._flushing.deadline = min(self._flushing.deadline, trio.current_time() + _FLUSH_TIME)
        super().cut_off()

    # -- clients --------------------------------------------------------------------------------------------------

    def _converse_with(self, stream: Transport, writers: trio.Nursery) -> BusConnection:
        peer = Peer(self.options.wire, serving=True, early=self.options.early)
        return BusConnection(stream, peer, self._limits, writers, self)

    async def _left(self, conversation: BusConnection) -> None:
        if not self._stopping:  # at a stop, the end of the server's connection releases unhandled messages
            self.leave(conversation)

    def leave(self, conversation: BusConnection) -> None:
        left = [feed for subscription in conversation.subscriptions for feed in subscription.feeds]
        conversation.leave()
        for feed in left:
            if isinstance(feed, FanOut):
                self._monitor.drop_unused(feed)
        self._monitor.changed()

    def log_slow(self, text: str) -> None:
        _logger.warning("a subscriber is disconnected: %s", text)

    def subscribe_silent(self, conversation: BusConnection, subscription: Subscription) -> None:
        conversation.begin(subscription, None)
        for feed in self._monitor.monitored():
            feed.join(subscription)

    async def subscribe(
        self, conversation: BusConnection, subscription: Subscription, qids: list[str], answer: Message
    ) -> None:
        taken = {feed.label for other in conversation.subscriptions if other.asked for feed in other.feeds}
        for qid in qids:
            if qid in taken:
                raise RefusedError(table.BAD_REQUEST, _TAKEN.format(qid))
            await self._monitor.check(qid)
        with self._monitor.joining(qids) as queues:
            feeds: list[Feed] = list(queues)
            if subscription.name is not None:
                feeds = [await self._monitor.share(feed, subscription.name) for feed in queues]
            elif subscription.ack:
                await self._monitor.note_coming(queues)
            conversation.begin(subscription, answer)
            for each in feeds:
                each.join(subscription)
                self._monitor.changed(each if isinstance(each, FanOut) else None)

    # -- feeds that come and go -----------------------------------------------------------------------------------

    def _opened(self, feed: FanOut) -> None:
        """Adds a new feed to the subscriptions of silent clients, which get every queue."""
        for conversation in self._connections:
            for subscription in conversation.subscriptions:
                if not subscription.asked:
                    feed.join(subscription)

    def _ended(self, feed: Feed, text: str) -> None:
        """Removes a feed whose queue is gone from all subscriptions, and ends those that have no other feed."""
        for conversation in self._connections:
            for subscription in [each for each in conversation.subscriptions if feed in each.feeds]:
                subscription.leave(feed)
                if not subscription.feeds and subscription.asked:
                    conversation.end(subscription, Fault(table.NOT_FOUND, text, subscription.req))


async def run_bus(options: BusOptions, announce: Announce) -> None:
    """Runs a bus until SIGTERM or SIGINT. Raises StartError when it cannot listen, or has no certificate to
    show."""
    raise_descriptor_limit(options.limits)
    tls = None if options.tls is None else ServerTls(options.tls)
    listeners = await open_listeners(options.host, options.port)
    bus = Bus(options, tls)
    serve, reloads = partial(bus.serve, listeners), [] if tls is None else [tls]
    await serve_until_signalled(bus, serve, listeners, announce, options.limits.grace, reloads=reloads)
