"""The bus: clients on one side, the queue server on the other, and between them a feed for each queue.

`Bus` is the `Broker` of its connections.
"""

import logging
from functools import partial

import trio

from qs_schemas import Fault, Message, Peer
from qs_schemas import errors as table
from qs_serving.acceptor import Acceptor
from qs_serving.listening import Announce, open_listeners, raise_descriptor_limit
from qs_serving.stopping import serve_until_signalled
from qs_serving.transport import Transport

from .connection import BusConnection
from .fanout import FanOut
from .feeds import Feed
from .later import Later
from .monitor import Monitor
from .options import BusOptions
from .refused import RefusedError
from .subscription import Subscription

_logger = logging.getLogger(__name__)
_TO_TELL = 2
"""Seconds that are left for telling the server what was handled, when the clients have used up `grace`."""
_TAKEN = "this connection is subscribed to {!r} already; use another connection for another subscription"


class Bus(Acceptor[BusConnection]):
    """Serves subscribers with what comes from one queue server."""

    def __init__(self, options: BusOptions) -> None:
        super().__init__(options.limits)
        self.options = options
        self.later = Later()
        self._telling = trio.CancelScope()  # around telling the server what was handled
        self._monitor = Monitor(options, self._opened, self._ended)

    @property
    def server_name(self) -> str:
        """HOST:PORT of the queue server."""
        return self._monitor.server_name

    async def serve(self, listeners: list[trio.SocketListener]) -> None:
        """Serves until `stop` has been called. Then clients get some time to read, and the server is told what they
        have handled: `grace` for both, and 2 s more for the server."""
        async with trio.open_nursery() as background:
            background.start_soon(self._monitor.run, listeners[0].socket.getsockname()[1])
            background.start_soon(self.later.run)
            await self.accept(listeners)
            with self._telling:
                await self._monitor.upstream.emptied()
            if self._telling.cancelled_caught:
                _logger.warning("the queue server did not take all that was handled in time: that is delivered again")
            background.cancel_scope.cancel()

    def stop(self) -> None:
        """Takes no more connections or requests. Requests that have begun are finished and answered."""
        self._monitor.stop()
        self._telling.deadline = trio.current_time() + self._limits.grace + _TO_TELL
        super().stop()

    def cut_off(self) -> None:
        """Cuts the time short that clients and server have after `stop`: to none for clients, to 2 s for the server."""
        self._telling.deadline = min(self._telling.deadline, trio.current_time() + _TO_TELL)
        super().cut_off()

    # -- clients --------------------------------------------------------------------------------------------------

    def _converse_with(self, stream: Transport, writers: trio.Nursery) -> BusConnection:
        peer = Peer(self.options.wire, serving=True, early=self.options.early)
        return BusConnection(stream, peer, self._limits, writers, self)

    async def _left(self, conversation: BusConnection) -> None:
        if not self._stopping:  # else the end of the connection to the server gives back what is not handled
            self.leave(conversation)

    def leave(self, conversation: BusConnection) -> None:
        """Ends all subscriptions of a client. Messages that are on their way to the client, or in its hands, are not
        for it any more."""
        left = [feed for subscription in conversation.subscriptions for feed in subscription.feeds]
        conversation.leave()
        for feed in left:
            if isinstance(feed, FanOut):
                self._monitor.drop_unused(feed)
        self._monitor.changed()

    def note_slow(self, text: str) -> None:
        """Logs why a client that is too slow is disconnected."""
        _logger.warning("a subscriber is disconnected: %s", text)

    def subscribe_silent(self, conversation: BusConnection, subscription: Subscription) -> None:
        """Subscribes a client that has sent nothing to every queue that is monitored, now or while it is connected."""
        conversation.begin(subscription, None)
        for feed in self._monitor.monitored():
            feed.join(subscription)

    async def subscribe(
        self, conversation: BusConnection, subscription: Subscription, qids: list[str], answer: Message
    ) -> None:
        """Begins a subscription to some queues. May wait for the server. Raises RefusedError.

        answer: is sent before any message.
        """
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
        """Adds a new feed to the subscriptions of clients that sent nothing: they get every queue."""
        for conversation in self._connections:
            for subscription in conversation.subscriptions:
                if not subscription.asked:
                    feed.join(subscription)

    def _ended(self, feed: Feed, text: str) -> None:
        """Takes a feed whose queue is gone out of all subscriptions, and ends those that have no other."""
        for conversation in self._connections:
            for subscription in [each for each in conversation.subscriptions if feed in each.feeds]:
                subscription.leave(feed)
                if not subscription.feeds and subscription.asked:
                    conversation.end(subscription, Fault(table.NOT_FOUND, text, subscription.req))


async def run_bus(options: BusOptions, announce: Announce) -> None:
    """Serves until SIGTERM or SIGINT. Raises StartError when it cannot listen."""
    raise_descriptor_limit(options.limits.connections)
    listeners = await open_listeners(options.host, options.port)
    bus = Bus(options)
    await serve_until_signalled(bus, partial(bus.serve, listeners), listeners, announce, options.limits.grace)
