"""Keeps the connection of the bus to the queue server.

The upstream subscribes to the queues that the feeds need, and sends the requests that the feeds have collected.
Requests that a lost connection has interrupted are sent again on the next one.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import trio

from qs_client import (
    Error,
    Forbidden,
    GetMessage,
    GetQueue,
    Message,
    NotKnown,
    QueueOptions,
    ServerError,
    ServerUnavailable,
    ShuttingDown,
    Subscribe,
    Unauthorized,
    Unavailable,
    Unsubscribe,
    calls,
)
from qs_client.asking import Call
from qs_client.async_connection import AsyncConnection
from qs_client.async_opening import open_async_connection
from qs_client.backoff import delays
from qs_client.errors import UNREADABLE, closes
from qs_client.place import Place, endpoint
from qs_client.security import PLAIN, Security
from qs_schemas import errors
from qs_serving.hub import Hub
from qs_serving.timers import Timers

from .feed_requests import FeedRequests
from .feeds import Feed
from .retry_queue import RETRY_AFTER, TIMEOUT, ServerCalls

T = TypeVar("T")
_logger = logging.getLogger(__name__)
_CONNECT = 10
"""Seconds for connecting, to each address of the server."""
_UNREACHABLE = 30
"""Seconds after which a server is given up that acknowledges nothing, as when the network is cut. A working server
always does, as the bus reads all that it sends."""
_VISIBILITY = 3600
"""Seconds that the server keeps a message in flight for the bus. The end of the connection ends that too."""
_FORBIDDEN_AFTER = 10
"""Seconds before the bus asks again for a queue that the server does not let it read: a person changes rights, and
subscribers that cannot wait subscribe again, which asks at once."""
_NO_MESSAGE = 1
"""The id of a message of 1970, which no queue has: a request for it tells whether the bus may read the queue."""
_FORBIDDEN = "the bus may not read {!r} on the queue server: {}"


class Upstream:
    """Keeps one connection to the server, for the requests of the feeds. Implements `ServerRequests` and
    `CopyRequests`.

    Ensures:
    1. There is one connection at a time, and after an outage the next one is tried within 2 s.
    2. `connected` is set only after the connection has been prepared: the queues and the durable names exist.
    3. Requests of the feeds that are not answered when a connection ends are made again on the next one.
    4. The log says once in an outage what is wrong, and once that it is over.

    Assumes that the end of a connection releases on the server all messages that were sent over it, so that nothing is
    lost. The upstream must never give up, whatever the server says: somebody may repair the server, its rights or the
    token.
    """

    def __init__(
        self,
        server: tuple[str, int],
        prepare: Callable[["Upstream"], Awaitable[None]],
        gone: Callable[[Feed], None],
        forbidden: Callable[[Feed], None],
        *,
        hub: Hub,
        timers: Timers,
        security: Callable[[], Security] = lambda: PLAIN,
    ) -> None:
        """prepare: called first on each new connection; gone: called with a feed whose queue has been deleted;
        forbidden: called with a feed whose queue the server does not let the bus read, see `Feed.forbidden`; hub: reads
        from the connection; security: returns the TLS context and the token for the next connection."""
        self.server = server
        self._place = Place(endpoint(*server))
        self._security = security
        self.connected = trio.Event()
        self._calls = ServerCalls(hub, self._place)
        requests = FeedRequests(self._calls, timers, lambda: self._prepare(self))
        self.deletes, self.releases = requests.deletes, requests.releases
        self.copies, self.fetches = requests.copies, requests.fetches
        self._prepare = prepare
        self._gone = gone
        self._forbidden = forbidden
        self._connection: AsyncConnection | None = None
        self._lost = trio.Event()  # set when the connection ends
        self._turned_away = ""  # the reason for which this side ends the connection
        self._said: set[str] = set()  # what the log says about the present outage
        self._feeds: dict[str, Feed] = {}  # the feeds that the server knows of, by the req of their subscription
        self._reqs: dict[Feed, tuple[str, int]] = {}  # the req of a feed's subscription, and the prefetch asked for
        self._policies: dict[str, Feed] = {}  # the feeds whose options were requested, by the req of the request
        self._arrived: dict[Feed, list[GetMessage]] = {}  # what the present read has brought
        self._number = 0
        self._nursery: trio.Nursery

    # -- the connection -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Connects, and connects again whenever the connection ends. Never returns."""
        backoff = delays()
        while True:
            try:
                connection = await self._open()
            except ServerError as error:  # the answer to the token
                self._complain(f"{self._says(error)}; trying again")
            except ServerUnavailable as error:
                refused = isinstance(error.__cause__, ConnectionRefusedError)
                if not (refused and self._said):  # in an outage that is nothing new
                    self._complain(f"{error}; trying again until it answers")
            else:
                started = trio.current_time()
                try:
                    self._complain(f"{await self._use(connection)}; connecting again")
                finally:
                    self._forget(connection)
                # A server that ends each connection at once is not asked more often than one that refuses it.
                if trio.current_time() - started > 1:
                    backoff = delays()
            await trio.sleep(next(backoff))

    def _complain(self, text: str) -> None:
        """Logs what is wrong with the connection, once in an outage."""
        if text not in self._said:
            self._said.add(text)
            _logger.warning("%s", text)

    def _says(self, error: ServerError) -> str:
        """Returns a text with an error of the server, and what to do about it."""
        what = f"{endpoint(*self.server)} says {error}"
        return f"{what} (--server-token-file says who the bus is)" if isinstance(error, Unauthorized) else what

    async def _open(self) -> AsyncConnection:
        host, port = self.server
        connection = await open_async_connection(host, port, self._place, _CONNECT, security=self._security())
        connection.give_up_after(_UNREACHABLE)
        return connection

    async def _use(self, connection: AsyncConnection) -> str:
        """Works until the connection ends. Returns the reason for the end."""
        self._connection = connection
        self._lost = trio.Event()
        self._turned_away = ""
        reasons: list[str] = []

        async def until_lost(work: Callable[[], Awaitable[None]]) -> None:
            try:
                await work()
            except ServerUnavailable as error:
                reasons.append(str(error))
                nursery.cancel_scope.cancel()

        # The hub reads before the first call is made: a call would otherwise read by itself.
        with self._calls.use(connection, self._take, self._hand_over):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(until_lost, connection.broken)
                nursery.start_soon(until_lost, self._work)
        return self._turned_away or reasons[0]

    async def _work(self) -> None:
        try:
            await self._prepare(self)
        except ServerError as error:  # without the preparation, a name would miss messages
            raise ServerUnavailable(self._says(error)) from error
        # A log of warnings alone that reports an outage must report its end too.
        _logger.log(logging.WARNING if self._said else logging.INFO, "connected to %s", endpoint(*self.server))
        self._said.clear()
        self.connected.set()
        failure: list[ServerUnavailable] = []
        async with trio.open_nursery() as self._nursery:
            try:
                await self._calls.serve()
            except ServerUnavailable as error:
                failure.append(error)
            self._nursery.cancel_scope.cancel()
        raise failure[0]

    def _forget(self, connection: AsyncConnection) -> None:
        if self.connected.is_set():  # tasks that wait for a connection go on waiting for the next one
            self.connected = trio.Event()
        self._lost.set()
        self._connection = None
        self._feeds.clear()
        self._reqs.clear()
        self._policies.clear()
        self._arrived.clear()  # none, unless the end has come in the middle of a read
        connection.close()

    async def call(self, call: Call[T]) -> T:
        """Makes a call and returns its result, or raises its error. Raises ServerUnavailable if there is no connection,
        if the connection ends, or if a stopping server refuses the call."""
        if self._connection is None:
            raise ServerUnavailable(f"no connection to {endpoint(*self.server)}")
        lost = self._lost
        try:
            return await self._connection.call(call, TIMEOUT)
        except ShuttingDown as error:
            # Not an error of this call: the caller waits for the next connection, which does not come before this one
            # has ended.
            await lost.wait()
            raise ServerUnavailable(f"{endpoint(*self.server)} says {error}") from error
        except (Unavailable, NotKnown) as error:
            # The connection lives on, and its requests about other queues too: for the bus, an error like any other.
            raise ServerError(error.code, error.type, error.text, error.resp) from error

    async def queues(self) -> list[str]:
        """Returns the queues that the server shows to the bus. Raises ServerError or ServerUnavailable, as `call` does.

        A server that refuses even this request does not know the bus's principal, or does not any more: then the
        connection ends, and the bus authenticates again on the next one.
        """
        try:
            return await self.call(calls.queues())
        except Unauthorized as error:
            self._turned_away = self._says(error)
            if self._connection is not None:
                self._connection.close()
            raise ServerUnavailable(self._turned_away) from error

    async def why_unreadable(self, qid: str) -> str:
        """Asks the server whether the bus may read a queue. Returns the reason if not, otherwise "". Raises
        ServerUnavailable."""
        with suppress(ServerError):  # other errors do not matter here
            try:
                await self.call(calls.peek(qid, _NO_MESSAGE))
            except (Unauthorized, Forbidden) as error:
                return _FORBIDDEN.format(qid, error)
        return ""

    # -- subscriptions --------------------------------------------------------------------------------------------

    def sync(self, feed: Feed) -> None:
        """Subscribes, unsubscribes or changes the prefetch, as the feed needs now. Does nothing without a
        connection."""
        if not self.connected.is_set() or self._connection is None:
            return
        req, prefetch = self._reqs.get(feed, ("", 0))
        if feed.wanted and prefetch != feed.prefetch:
            if not req:
                self.ask_policy(feed)  # first, so that the answer comes before the first message
                req = f"feed-{self._number}"
                self._feeds[req] = feed
            self._reqs[feed] = req, feed.prefetch
            self._connection.post(Subscribe(feed.qid, prefetch=feed.prefetch, visibility=_VISIBILITY, req=req))
        elif not feed.wanted and req:
            # `_feeds` keeps the feed until the answer: messages that the server has sent before still come.
            del self._reqs[feed]
            self._connection.post(Unsubscribe(req, req=req))

    def ask_policy(self, feed: Feed) -> None:
        """Asks whether the server counts the receives of the feed's queue, see `Feed.counted`. Does nothing without a
        connection."""
        if self.connected.is_set() and self._connection is not None:
            self._number += 1
            req = f"policy-{self._number}"
            self._policies[req] = feed
            self._connection.post(GetQueue(feed.qid, req=req))

    def _take_policy(self, feed: Feed, answer: Message) -> None:
        if isinstance(answer, GetQueue):
            options = answer.options or QueueOptions()
            feed.counted = options.max_receives is not None or options.backoff is not None
        elif isinstance(answer, Error) and not closes(answer):
            feed.counted = False
            _logger.info("%r: receives are not counted: the bus may not see its options: %s", feed.qid, answer.text)

    def _take(self, message: Message) -> None:
        """Takes a message that does not answer a call: a delivery, or the answer to a subscription. Deliveries that
        come in one read go to their feeds together."""
        if type(message) is GetMessage and (feed := self._feeds.get(message.req or "")) is not None:
            self._arrived.setdefault(feed, []).append(message)
            return
        self._hand_over()  # what came before it
        if message.req in self._policies:
            self._take_policy(self._policies.pop(message.req), message)
            return
        feed = self._feeds.get(message.req or "")
        if feed is None:
            _logger.debug("%s belongs to no subscription", message)
        elif isinstance(message, Subscribe):
            feed.forbidden = ""
        elif isinstance(message, Unsubscribe):
            del self._feeds[message.req or ""]
        elif isinstance(message, Error) and message.kind == UNREADABLE:
            self._unreadable(feed, message)
        elif isinstance(message, Error) and not closes(message):  # otherwise the connection ends anyway
            self._refused(feed, message)

    def _hand_over(self) -> None:
        """Gives the feeds the deliveries that have come."""
        if self._arrived:
            arrived, self._arrived = self._arrived, {}
            for feed, deliveries in arrived.items():
                feed.take(deliveries)

    def _unreadable(self, feed: Feed, error: Error) -> None:
        """Ignores a delivery that cannot be read. The server keeps the message in flight as long as the connection
        lasts, and the feed's other messages come. Logs the first such message of each feed."""
        if not feed.skipped:
            feed.skipped = True
            _logger.warning(
                "a message of %r cannot be read and stays on the queue server; others of this queue like it are not "
                "reported: %s",
                feed.qid,
                error.text,
            )

    def _refused(self, feed: Feed, error: Error) -> None:
        """Removes a subscription that the server has refused or ended. Subscribes to the feed's queue again later,
        unless the queue is gone."""
        del self._feeds[error.req or ""]
        if self._reqs.get(feed, ("", 0))[0] != error.req:
            return  # a newer subscription has replaced it
        del self._reqs[feed]
        if error.code in (errors.UNAUTHORIZED.code, errors.FORBIDDEN.code):
            self._nursery.start_soon(self._not_allowed, feed, error)
            return
        _logger.warning("the server has ended the subscription to %r: %s", feed.qid, error.text)
        if error.code == errors.NOT_FOUND.code:
            self._gone(feed)
        else:
            self._nursery.start_soon(self._sync_later, feed, RETRY_AFTER)

    async def _not_allowed(self, feed: Feed, error: Error) -> None:
        """Tells the feed that the server does not let the bus read the queue, and asks again later."""
        if error.code == errors.UNAUTHORIZED.code:
            try:
                await self.queues()
            except (ServerError, ServerUnavailable):
                return  # no request is allowed, or the connection has ended: the next one subscribes again
        if not feed.forbidden:
            feed.forbidden = _FORBIDDEN.format(feed.qid, f"{error.code} {error.kind}: {error.text}")
            _logger.warning("%s; trying again every %d s", feed.forbidden, _FORBIDDEN_AFTER)
        self._forbidden(feed)
        await self._sync_later(feed, _FORBIDDEN_AFTER)

    async def _sync_later(self, feed: Feed, seconds: float) -> None:
        await trio.sleep(seconds)
        self.sync(feed)

    async def emptied(self) -> None:
        """Waits until every handled message is deleted on the server, and every other settled message is released.
        Returns at once if there is no connection, or when the connection is lost."""
        if not self.connected.is_set():
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_after, self._lost, nursery.cancel_scope)
            # Copies need no wait: a message whose copy may not be stored is still in flight, and comes again.
            await self.deletes.emptied()
            await self.releases.emptied()
            nursery.cancel_scope.cancel()


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
