"""The bus: clients on one side, the queue server on the other, and between them a feed for each queue."""

import logging
from functools import partial

import trio

from qs_client import calls
from qs_client.errors import BadRequest, ServerError, ServerUnavailable
from qs_client.place import endpoint
from qs_schemas import Fault, Peer
from qs_schemas import errors as table
from qs_schemas.limits import QID
from qs_serving.acceptor import Acceptor
from qs_serving.listening import Announce, open_listeners, raise_descriptor_limit, serve_until_signalled
from qs_serving.transport import Transport

from .connection import BusConnection, RefusedError
from .feeds import FanOut, Feed, Share
from .names import is_of_bus, name_in, queue_of
from .options import BusOptions
from .roll import Roll
from .subscription import Subscription
from .upstream import Upstream

_logger = logging.getLogger(__name__)
_MAKE_AGAIN = 0.5
"""Seconds after which a queue that somebody has deleted is made again, should somebody delete it all the time."""
_NAME_GONE = "the queue of the name {!r} has been deleted; this subscription is over, subscribe again for a new one"
_TAKEN = "this connection is subscribed to {!r} already; use another connection for another subscription"


class Bus(Acceptor[BusConnection]):
    """Serves subscribers with what comes from one queue server."""

    def __init__(self, options: BusOptions) -> None:
        super().__init__(options.limits)
        self.options = options
        self.server_name = endpoint(*options.server)
        self._upstream = Upstream(options.server, self._prepare, self._gone)
        self._feeds: dict[str, FanOut] = {}
        for qid in options.queues:
            self._feed(qid)
        self._roll: Roll | None = None
        self._called = False
        self._unfit: set[str] = set()  # what the server refuses to make
        self._background: trio.Nursery | None = None

    async def serve(self, listeners: list[trio.SocketListener]) -> None:
        """Until `stop` has been called and clients have had some time to read."""
        port = listeners[0].socket.getsockname()[1] if isinstance(listeners[0], trio.SocketListener) else 0
        roll = self._roll = Roll(self._upstream, self.options.host, port, self._count)
        async with trio.open_nursery() as background:
            self._background = background
            background.start_soon(self._upstream.run)
            background.start_soon(roll.keep)
            await self.accept(listeners)
            if self._upstream.connected.is_set():
                with trio.move_on_after(self.options.limits.grace):
                    await self._upstream.emptied()
            background.cancel_scope.cancel()

    def stop(self) -> None:
        """Takes no more connections or requests. What is begun is finished and answered."""
        if self._roll is not None:
            self._roll.close()
        super().stop()

    # -- clients --------------------------------------------------------------------------------------------------

    def _converse_with(self, stream: Transport, writers: trio.Nursery) -> BusConnection:
        return BusConnection(stream, Peer(self.options.wire), self._limits, writers, self)

    async def _left(self, conversation: BusConnection) -> None:
        if self._stopping:
            return  # it was sent away: what it has not handled is not over, and goes back with the connection's end
        left = [feed for subscription in conversation.subscriptions for feed in subscription.feeds]
        conversation.leave()
        for feed in left:
            self._drop_unused(feed.label)
        self._noted()

    def _drop_unused(self, qid: str) -> None:
        feed = self._feeds.get(qid)
        if feed is not None and qid not in self.options.queues and feed.unused:
            del self._feeds[qid]

    def note_slow(self, conversation: BusConnection, text: str) -> None:
        """A client is sent away."""
        _logger.warning("a subscriber is disconnected: %s", text)

    async def subscribe(
        self,
        conversation: BusConnection,
        subscription: Subscription,
        qids: list[str] | None = None,
        answer: bytes | None = None,
    ) -> None:
        """Takes a subscription up. qids: None for every queue that is monitored; answer: is sent before any message.
        RefusedError."""
        taken = {feed.label for other in conversation.subscriptions if other.asked for feed in other.feeds}
        if qids is None:
            qids = [qid for qid in self._feeds if qid not in taken]
        for qid in qids:
            await self._check(qid)
            if qid in taken:
                raise RefusedError(table.BAD_REQUEST, _TAKEN.format(qid))
        feeds: list[Feed] = []
        for qid in qids:
            feed = self._feed(qid)
            feeds.append(feed if subscription.name is None else await self._share(feed, subscription.name))
        if subscription.ack:
            await self._note_coming([feed for feed in feeds if isinstance(feed, FanOut)])
        conversation.begin(subscription, answer)
        for each in feeds:
            each.join(subscription)
            if isinstance(each, FanOut) and each.expected and each.acknowledging >= each.expected:
                self._go_on(each)
        self._noted()

    async def _check(self, qid: str) -> None:
        """Whether the queue may be subscribed to."""
        if qid in self.options.queues or (qid in self._feeds and self._feeds[qid].members):
            return
        if self.options.queues:
            known = ", ".join(self.options.queues)
            raise RefusedError(table.NOT_FOUND, f"the bus does not monitor {qid!r}; it monitors {known}")
        if is_of_bus(qid):
            raise RefusedError(
                table.BAD_REQUEST, f"{qid!r} is a queue of the bus itself; subscribe to the queue, with op/@name"
            )
        there = await self._ask_for_queues()
        if qid not in there:
            raise RefusedError(
                table.NOT_FOUND, f"there is no queue {qid!r}; make it on the queue server at {self.server_name} first"
            )
        for label, name in filter(None, map(name_in, there)):
            if label == qid:  # it was there before, and has been made again
                self._add_name(self._feed(qid), name)

    async def _ask_for_queues(self) -> list[str]:
        while True:
            await self._upstream.connected.wait()
            try:
                return await self._upstream.call(calls.queues())
            except ServerUnavailable:
                await trio.lowlevel.checkpoint()

    def _feed(self, qid: str) -> FanOut:
        feed = self._feeds.get(qid)
        if feed is None:
            limits = self.options.limits
            feed = self._feeds[qid] = FanOut(qid, self._upstream, limits.outbox, self.options.hold)
        return feed

    async def _share(self, feed: FanOut, name: str) -> Share:
        """The feed of a durable name. Its queue exists when this returns, so that nothing is missed from then on."""
        qid = queue_of(feed.label, name)
        if len(qid) > QID:
            raise RefusedError(
                table.BAD_REQUEST, f"the name is too long: {qid!r} has more than {QID} characters; take a shorter one"
            )
        while name not in feed.names:
            await self._upstream.connected.wait()
            try:
                await self._upstream.call(calls.new_queue(qid, exist_ok=True))
            except ServerUnavailable:
                await trio.lowlevel.checkpoint()
            except ServerError as error:
                kind = table.BAD_REQUEST if isinstance(error, BadRequest) else table.INTERNAL
                raise RefusedError(kind, f"the queue of the name cannot be made: {error}") from None
            else:
                self._add_name(feed, name)
        return feed.names[name]

    def _add_name(self, feed: FanOut, name: str) -> None:
        if name not in feed.names:
            qid = queue_of(feed.label, name)
            feed.names[name] = Share(qid, feed.label, name, self._upstream, self.options.limits.outbox)
            self._upstream.sync(feed)

    # -- who is back after the bus was killed ---------------------------------------------------------------------

    def _count(self) -> dict[str, int]:
        return {qid: max(feed.acknowledging + feed.coming, feed.expected) for qid, feed in self._feeds.items()}

    async def _note_coming(self, feeds: list[FanOut]) -> None:
        """Once a subscriber knows that it is one, it is waited for, even if the bus is killed in this moment."""
        if self._roll is None or not feeds:
            return
        for feed in feeds:
            feed.coming += 1
        try:
            self._roll.changed()
            await self._roll.noted()
        finally:
            for feed in feeds:
                feed.coming -= 1

    def _noted(self) -> None:
        if self._roll is not None:
            self._roll.changed()

    async def _call_roll(self, roll: Roll) -> None:
        """Has the feeds wait for those who were here."""
        waited_for: list[FanOut] = []
        for qid, number in (await roll.read()).items():
            if self.options.settle and number and (not self.options.queues or qid in self.options.queues):
                feed = self._feed(qid)
                if feed.acknowledging < number:
                    feed.expected = number
                    waited_for.append(feed)
        if waited_for and self._background is not None:
            self._background.start_soon(self._settle, waited_for)

    async def _settle(self, waited_for: list[FanOut]) -> None:
        await trio.sleep(self.options.settle)
        for feed in waited_for:
            if feed.expected:
                _logger.info("%r: %d of %d are back", feed.qid, feed.acknowledging, feed.expected)
                self._go_on(feed)

    def _go_on(self, feed: FanOut) -> None:
        feed.expected = 0
        self._upstream.sync(feed)
        self._noted()

    # -- the server -----------------------------------------------------------------------------------------------

    async def _prepare(self, upstream: Upstream) -> None:
        """On a new connection: the queues to monitor exist, and the names that are kept there are known."""
        for qid in self.options.queues:
            try:
                await upstream.call(calls.new_queue(qid, exist_ok=True))
            except BadRequest as error:
                _logger.error("queue %r cannot be monitored: %s", qid, error)
                self._unfit.add(qid)
        named = {(label, name) for label, feed in self._feeds.items() for name in feed.names}
        known = await upstream.call(calls.queues())
        found = [entry for entry in map(name_in, known) if entry is not None]
        if self._roll is not None and not self._called:
            await self._call_roll(self._roll)
            self._called = True
        for label, name in found:
            if not self.options.queues or label in self.options.queues:
                self._add_name(self._feed(label), name)
        for label, name in named.difference(found):  # none that has been made meanwhile
            share = self._feeds[label].names.pop(name, None) if label in self._feeds else None
            if share is not None:
                self._end(share, _NAME_GONE.format(name))
        upstream.connected.set()
        for feed in self._feeds.values():
            for each in (feed, *feed.names.values()):
                upstream.sync(each)

    def _gone(self, feed: Feed) -> None:
        """The queue of a feed has been deleted on the server."""
        if isinstance(feed, Share):
            if feed.label in self._feeds:
                self._feeds[feed.label].names.pop(feed.name, None)
            self._end(feed, _NAME_GONE.format(feed.name))
        elif isinstance(feed, FanOut) and feed.label not in self.options.queues:
            self._feeds.pop(feed.label, None)
            shares = list(feed.names.values())
            feed.names.clear()
            for each in (feed, *shares):
                self._end(each, f"there is no queue {feed.label!r} any more; this subscription is over")
        elif self._background is not None and feed.label not in self._unfit:
            self._background.start_soon(self._make_again)

    async def _make_again(self) -> None:
        """A queue that is monitored has been deleted: it is made again, and subscribed to."""
        await trio.sleep(_MAKE_AGAIN)
        try:
            await self._prepare(self._upstream)
        except (ServerError, ServerUnavailable) as error:
            _logger.warning("a queue could not be made again: %s", error)

    def _end(self, feed: Feed, text: str) -> None:
        """Takes a feed away from those who have subscribed to it. A subscription to nothing else is over."""
        for conversation in self._connections:
            for subscription in [each for each in conversation.subscriptions if feed in each.feeds]:
                subscription.leave(feed)
                if not subscription.feeds:
                    conversation.end(subscription, Fault(table.NOT_FOUND, text, subscription.req))


async def run_bus(options: BusOptions, announce: Announce) -> None:
    """Serves until SIGTERM or SIGINT. StartError."""
    raise_descriptor_limit(options.limits.connections)
    listeners = await open_listeners(options.host, options.port)
    bus = Bus(options)
    await serve_until_signalled(bus, partial(bus.serve, listeners), listeners, announce)
