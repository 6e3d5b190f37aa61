"""Implements the bus, which passes messages of one queue server to subscribers.

`Bus` accepts the connections of clients, and implements their `Broker`.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice

from qs_schemas.extras import NotInstalledError

try:
    import trio
except ModuleNotFoundError as error:
    raise NotInstalledError("server", error) from None

from qs_client.security import PLAIN, Security
from qs_schemas import ErrorCode, Fault, Figure, Message, Peer, errors
from qs_serving.acceptor import Acceptor, Adopt
from qs_serving.access.access import Access
from qs_serving.access.caller import Caller
from qs_serving.command import guards_of
from qs_serving.connection import Connection
from qs_serving.figures import RequestCounts
from qs_serving.hub import Hub
from qs_serving.listening import Announce, fit_descriptors, open_listeners
from qs_serving.service_manager import ServiceManager, inherited_sockets
from qs_serving.socket_transport import SocketTransport
from qs_serving.stopping import serve_until_signalled
from qs_serving.strangers import Strangers
from qs_serving.timers import Timers
from qs_serving.tls import ServerTls

from .fanout import FanOut
from .feeds import DurableName, Feed
from .filtering import FilterCounts
from .monitor import Monitor
from .options import BusOptions, ServerSecurity
from .queue_names import NamePattern
from .rights import RefusedError, Rights, may_read
from .session import BusSession
from .share import Share
from .subscription import DeliveryCounts, Subscription

_logger = logging.getLogger(__name__)
_FLUSH_TIME = 2
"""Seconds for deleting handled messages on the server after the clients have used up `grace`."""
_DESCRIPTORS = 64
"""Open files of the bus beside its clients: some 20 for the event loop, the log, listening sockets, the connections to
the queue server, and files that are read again."""
_CONDITIONS = 100
"""Conditions that have figures of their own: clients choose how many there are."""
_TAKEN = "this connection is already subscribed to {!r}; use another connection for another subscription"


class Bus:
    """Serves subscribers with the messages of one queue server.

    Ensures:
    1. A client gets the answer to its subscription before the first message, and no message of a queue that it may not
       read.
    2. When rights change or a queue is deleted, the affected subscriptions end with an error that says why.
    3. A stop tells the server which messages were handled, within `grace` and 2 s.

    Assumes one server, and that no other bus monitors the same queues: two would share the messages. The bus keeps
    nothing on disk: all that must survive its end is on the server.
    """

    def __init__(
        self,
        options: BusOptions,
        tls: ServerTls | None = None,
        access: Access | None = None,
        *,
        security: Callable[[], Security] = lambda: PLAIN,
        hub: Hub | None = None,
        adopt: Adopt = SocketTransport.adopt,
    ) -> None:
        """tls: the TLS towards clients, None for none; access: None without an access file; security: returns the TLS
        context and the token for the queue server; hub, adopt: see Acceptor."""
        self.acceptor = Acceptor(self, options.limits, tls, access, hub=hub, adopt=adopt)
        """Accepts the clients and knows their connections."""
        self.options = options
        self.delivery_counts = DeliveryCounts()
        self._flushing = trio.CancelScope()  # around the last deletions on the server
        self._monitor = Monitor(
            options,
            self._opened,
            self._ended,
            partial(may_read, access),
            hub=self.acceptor.hub,
            timers=self.acceptor.timers,
            security=security,
        )

    @property
    def server_name(self) -> str:
        return self._monitor.server_name

    @property
    def counts(self) -> RequestCounts:
        return self.acceptor.counts

    @property
    def strangers(self) -> Strangers:
        return self.acceptor.strangers

    @property
    def timers(self) -> Timers:
        return self.acceptor.timers

    def figures(self, connections: bool) -> list[Figure]:
        return self.acceptor.figures(connections)

    def own_figures(self) -> list[Figure]:
        subscriptions = [each for client in self.acceptor.connections for each in client.session.subscriptions]
        counts = self.delivery_counts
        return [
            Figure("server_connected", int(self._monitor.upstream.connected.is_set())),
            Figure("subscribers", sum(bool(client.session.subscriptions) for client in self.acceptor.connections)),
            Figure("subscriptions", len(subscriptions)),
            Figure("deliveries_total", counts.deliveries),
            Figure("unacknowledged", sum(len(each.pending) for each in subscriptions)),
            Figure("held", sum(len(each.waiting or ()) for each in subscriptions)),
            *(Figure("disconnected_total", n, {"reason": bound}) for bound, n in counts.disconnected.items()),
            *_figures_of(self._monitor.filter_counts, "deliveries", {}),
            *(
                figure
                for qid, where, of_one in islice(self._monitor.conditions(), _CONDITIONS)
                for figure in _figures_of(of_one, "condition", {"queue": qid, "where": where})
            ),
        ]

    async def serve(self, listeners: list[trio.SocketListener]) -> None:
        """Serves clients until `stop` is called. After `stop`, clients may read for up to `grace` seconds, and the bus
        deletes the messages that they have handled within `grace` plus 2 s."""
        async with trio.open_nursery() as background:
            background.start_soon(self._monitor.run, listeners[0].socket.getsockname()[1])
            await self.acceptor.accept(listeners, self._flush)
            background.cancel_scope.cancel()

    async def _flush(self) -> None:
        """Waits until the server has deleted the messages that clients have handled."""
        # Only now: clients may acknowledge messages until the last one has gone.
        self._monitor.stop_feeds()
        with self._flushing:
            await self._monitor.upstream.emptied()
        if self._flushing.cancelled_caught:
            _logger.warning(
                "not all handled messages could be deleted on the server in time: the rest will be delivered again"
            )

    def stop(self) -> None:
        """Stops accepting connections and requests. Requests that have begun are answered."""
        self._monitor.stop()
        self._flushing.deadline = trio.current_time() + self.options.limits.grace + _FLUSH_TIME
        self.acceptor.stop()

    def cut_off(self) -> None:
        """Shortens the time after `stop`: disconnects clients at once, and leaves 2 s for deletions and releases on the
        server."""
        self._flushing.deadline = min(self._flushing.deadline, trio.current_time() + _FLUSH_TIME)
        self.acceptor.cut_off()

    # -- clients --------------------------------------------------------------------------------------------------

    def new_peer(self) -> Peer:
        return Peer(self.options.wire, serving=True, early=self.options.early)

    def new_session(
        self, connection: Connection[BusSession], peer: Peer, caller: Caller | None, tasks: trio.Nursery
    ) -> BusSession:
        return BusSession(connection, peer, self, limits=self.options.limits, tasks=tasks, caller=caller)

    def client_gone(self, session: BusSession) -> None:
        if not self.acceptor.is_stopping:  # at a stop, the end of the server's connection releases unhandled messages
            self.leave(session)

    def leave(self, session: BusSession) -> None:
        left = [feed for subscription in session.subscriptions for feed in subscription.feeds]
        for subscription in session.subscriptions:
            self._unwatch(subscription)
        session.leave()
        self._have_left(left)

    def log_slow(self, text: str) -> None:
        _logger.warning("a subscriber is disconnected: %s", text)

    def subscribe_silent(self, session: BusSession, subscription: Subscription) -> None:
        session.begin(subscription, None)
        self._join_readable(session, subscription)

    def _join_readable(self, session: BusSession, subscription: Subscription) -> None:
        """Adds every monitored queue that a silent client may read to the client's subscription."""
        for feed in self._monitor.monitored():
            if feed not in subscription.feeds and session.rights.may_read(feed.qid):
                feed.join(subscription)

    async def subscribe(
        self, session: BusSession, subscription: Subscription, qids: list[str], answer: Message
    ) -> None:
        if subscription.patterns is not None:
            await self._subscribe_to_patterns(session, subscription, qids, answer)
            return
        for qid in qids:
            if qid in _taken(session, subscription):
                raise RefusedError(errors.BAD_REQUEST, _TAKEN.format(qid))
            await self._monitor.check(qid, session.rights)
        await self._monitor.watch.make_names(qids)
        with self._monitor.joining(qids) as queues:
            feeds: list[Feed] = list(queues)
            if subscription.name is not None:
                names, where = self._monitor.names, subscription.where
                feeds = [await names.share(feed, subscription.name, session.rights, where) for feed in queues]
            elif subscription.ack:
                await self._monitor.note_coming(queues)
            # Every step that may fail or wait is done: from the answer on, the client has all of its queues.
            session.begin(subscription, answer)
            for each in feeds:
                self._join(subscription, each)
        self.review(session)  # the access file may have been read again meanwhile

    async def _subscribe_to_patterns(
        self, session: BusSession, subscription: Subscription, patterns: list[str], answer: Message
    ) -> None:
        """Subscribes a client to the queues that match patterns. Those that appear later follow by `_opened`."""
        assert subscription.patterns is not None  # noqa: S101 - the caller has looked
        if subscription.name is not None:
            session.rights.check_pattern(subscription.name)
            for pattern in patterns:
                kept = NamePattern(pattern, subscription.name, subscription.owner)
                await self._monitor.watch.names.keep(kept, subscription.where)
        qids = await self._monitor.watch.matching(subscription.patterns, session.rights)
        await self._monitor.watch.make_names(qids)
        with self._monitor.joining(qids) as queues:
            if subscription.name is not None:
                for qid in qids:
                    name = partial(DurableName, qid, subscription.name, subscription.owner)
                    await self._monitor.names.ensure(name, subscription.where)
            elif subscription.ack:
                await self._monitor.note_coming(queues)
            session.begin(subscription, answer)
            self._monitor.watch.add(subscription.patterns)
            self._join_matching(session, subscription)
        self.review(session)

    def _join(self, subscription: Subscription, feed: Feed) -> None:
        feed.join(subscription)
        self._monitor.changed(feed if isinstance(feed, FanOut) else None)

    def _join_matching(self, session: BusSession, subscription: Subscription) -> None:
        """Adds to a subscription by patterns every feed that belongs to it and that the client may have now."""
        for queue in list(self._monitor.feeds.values()):
            for feed in (queue, *queue.names.values()):
                if _belongs(session, subscription, feed):
                    self._join(subscription, feed)

    def _unwatch(self, subscription: Subscription) -> None:
        if subscription.patterns is not None:
            self._monitor.watch.remove(subscription.patterns)

    # -- rights that change ---------------------------------------------------------------------------------------

    def review(self, session: BusSession) -> None:
        """Ends the subscriptions that a client may no longer have, because its principal or the rights have changed.
        Adds to a silent client the queues that it may read now."""
        rights = session.rights
        for subscription in list(session.subscriptions):
            denied = [feed for feed in subscription.feeds if not _allowed(rights, feed)]
            if subscription.patterns is not None:
                self._review_patterns(session, subscription, denied)
            elif not subscription.asked:
                for feed in denied:
                    subscription.leave(feed, denied=True)
                self._join_readable(session, subscription)
            elif denied:
                self._end(session, subscription, _refusal(rights, denied[0]))

    def _review_patterns(self, session: BusSession, subscription: Subscription, denied: list[Feed]) -> None:
        """Removes queues that a client may no longer read from a subscription by patterns, and adds those that it may
        read now. Ends the subscription if its durable name belongs to somebody else now."""
        name = subscription.name
        if name is not None and not session.rights.may_use(subscription.owner):
            self._end(session, subscription, session.rights.refused_name(None, name))
            return
        for feed in denied:
            subscription.leave(feed, denied=True)
        self._have_left(denied)
        self._join_matching(session, subscription)
        self._monitor.watch.look_again()  # for queues that nobody has subscribed to so far

    # -- feeds that come and go -----------------------------------------------------------------------------------

    def _opened(self, feed: Feed) -> None:
        """Adds a new feed to the subscriptions that it belongs to: those of silent clients, which get every queue that
        they may read, and those by patterns."""
        for connection in self.acceptor.connections:
            session = connection.session
            for subscription in session.subscriptions:
                if _belongs(session, subscription, feed):
                    self._join(subscription, feed)

    def _ended(self, feed: Feed, error: ErrorCode, text: str) -> None:
        """Removes a feed whose queue is gone from all subscriptions, and ends the subscriptions that have no other
        feed. If the bus may not read the queue, ends all subscriptions that named the queue. A subscription by patterns
        does not end: the queue may come back."""
        forbidden = error is errors.FORBIDDEN
        for connection in self.acceptor.connections:
            session = connection.session
            for subscription in [each for each in session.subscriptions if feed in each.feeds]:
                by_pattern = subscription.patterns is not None
                if by_pattern or not forbidden:
                    subscription.leave(feed)
                if subscription.asked and not by_pattern and (forbidden or not subscription.feeds):
                    self._end(session, subscription, RefusedError(error, text))

    def _end(self, session: BusSession, subscription: Subscription, error: RefusedError) -> None:
        """Ends a subscription that was asked for, and tells the client why."""
        left = list(subscription.feeds)
        self._unwatch(subscription)
        subscription.leave(denied=True)
        session.end(subscription, Fault(error.error, str(error), subscription.req))
        self._have_left(left)

    def _have_left(self, feeds: list[Feed]) -> None:
        """Drops the unused ones among these feeds."""
        for feed in feeds:
            if isinstance(feed, FanOut):
                self._monitor.drop_unused(feed)
        self._monitor.changed()


def _figures_of(counts: FilterCounts, of: str, labels: dict[str, str]) -> list[Figure]:
    return [
        Figure(f"{of}_let_through_total", counts.let_through, labels),
        Figure(f"{of}_kept_back_total", counts.kept_back, labels),
    ]


def _taken(session: BusSession, subscription: Subscription) -> set[str]:
    """Returns the queues that other subscriptions of a client have. By label: two names of one queue would be two
    deliveries that the client cannot tell apart by queue and id."""
    others = (other for other in session.subscriptions if other.asked and other is not subscription)
    return {feed.label for other in others for feed in other.feeds}


def _belongs(session: BusSession, subscription: Subscription, feed: Feed) -> bool:
    """Tells whether a feed belongs to a subscription that does not name it: that of a silent client, or one by
    patterns; and is not part of it yet. Of two subscriptions of a client, the first has the queue."""
    if feed in subscription.feeds or not _allowed(session.rights, feed):
        return False
    if subscription.patterns is None:
        return not subscription.asked and isinstance(feed, FanOut)
    if not subscription.patterns.fullmatch(feed.label):
        return False
    if isinstance(feed, Share):
        _, name, owner = feed.name
        mine = (name, owner, feed.where) == (subscription.name, subscription.owner, subscription.where)
        if not mine or feed.fault:
            return False
    elif subscription.name is not None or feed.forbidden:
        return False
    return feed.label not in _taken(session, subscription)


def _refusal(rights: Rights, feed: Feed) -> RefusedError:
    """Returns the error that says why a client may not have a feed."""
    if isinstance(feed, Share) and rights.may_read(feed.label):
        return rights.refused_name(feed.label, feed.name.name)
    return rights.refused_queue(feed.label)


def _allowed(rights: Rights, feed: Feed) -> bool:
    """Tells whether a client may keep a feed that it has."""
    return rights.may_read(feed.label) and (not isinstance(feed, Share) or rights.may_use(feed.name.owner))


async def run_bus(options: BusOptions, announce: Announce, manager: ServiceManager) -> None:
    """Runs a bus until SIGTERM or SIGINT. Raises StartError if the bus cannot listen, or a file cannot be used."""
    # Before the sockets are opened: with fewer descriptors the bus takes fewer clients.
    options = replace(options, limits=fit_descriptors(options.limits, _DESCRIPTORS, _DESCRIPTORS))
    inherited = inherited_sockets(manager.environ, manager.pid)
    guards, security = guards_of(options, inherited), ServerSecurity(options.security)
    listeners = await open_listeners(options.host, options.port, inherited)
    bus = Bus(options, guards.tls, guards.access, security=security)
    reloads = [*guards.reloads, *([security] if security.used else [])]
    serve, grace = partial(bus.serve, listeners), options.limits.grace
    await serve_until_signalled(bus, serve, listeners, announce, grace, reloads=reloads, manager=manager)
