"""The connection of the bus to the queue server.

It stays connected, subscribes to the queues that the feeds need, and sends the requests that they have collected.
Requests that a lost connection has interrupted are sent again on the next one.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import trio

from qs_client import (
    Error,
    GetMessage,
    Message,
    NotFound,
    Receipt,
    ServerError,
    ServerUnavailable,
    ShuttingDown,
    Stale,
    Subscribe,
    Unsubscribe,
    calls,
)
from qs_client.asking import Call
from qs_client.async_connection import AsyncConnection
from qs_client.async_opening import open_async_connection
from qs_client.backoff import delays
from qs_client.errors import closes
from qs_client.place import Place, endpoint
from qs_schemas import errors as table

from .fanout import FanOut
from .feeds import Feed
from .records import Record
from .retry_queue import RetryQueue

F = TypeVar("F", bound=Feed)
T = TypeVar("T")
_logger = logging.getLogger(__name__)
_CONNECT = 10
"""Seconds for connecting."""
_TIMEOUT = 60
"""Seconds for an answer before the connection is given up."""
_UNREACHABLE = 30
"""Seconds after which a server is given up that acknowledges nothing, as when the network is cut. A working server
always does, as the bus reads all that it sends."""
_VISIBILITY = 3600
"""Seconds that the server keeps a message in flight for the bus. The end of the connection ends that too."""
_LIST = 1000
_RETRY_AFTER = 1
"""Seconds before the bus asks again for what the server could not give."""
_CONCURRENT = 64


class Upstream:
    """Keeps one connection to the server, over which it serves the feeds: see `ServerRequests` and `CopyRequests`."""

    def __init__(
        self,
        server: tuple[str, int],
        prepare: Callable[["Upstream"], Awaitable[None]],
        gone: Callable[[Feed], None],
    ) -> None:
        """prepare: is run first on each new connection; gone: is called with a feed whose queue has been deleted."""
        self.server = server
        self.connected = trio.Event()
        self.deletes: RetryQueue[Feed, int] = RetryQueue("deleting messages", _LIST)
        self.releases: RetryQueue[Feed, tuple[int, int | None]] = RetryQueue("releasing messages", _CONCURRENT)
        self.copies: RetryQueue[FanOut, int] = RetryQueue("storing messages for durable names", _LIST)
        self.fetches: RetryQueue[Feed, Record] = RetryQueue("fetching messages", _CONCURRENT)
        self._prepare = prepare
        self._gone = gone
        self._connection: AsyncConnection | None = None
        self._lost = trio.Event()  # set when the connection ends
        self._feeds: dict[str, Feed] = {}
        self._reqs: dict[Feed, tuple[str, int]] = {}
        self._number = 0
        self._nursery: trio.Nursery

    # -- the connection -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Connects, and connects again whenever the connection ends. Never returns."""
        backoff = delays()
        trouble = ""
        while True:
            try:
                connection = await self._open()
            except ServerUnavailable as error:
                if not trouble:
                    _logger.warning("%s; trying again until it answers", error)
                trouble = str(error)
                await trio.sleep(next(backoff))
                continue
            _logger.log(logging.WARNING if trouble else logging.INFO, "connected to %s", endpoint(*self.server))
            started = trio.current_time()
            try:
                trouble = await self._use(connection)
            finally:
                self._forget(connection)
            _logger.warning("%s; connecting again", trouble)
            if trio.current_time() - started > 1:
                backoff = delays()
            await trio.sleep(next(backoff))

    async def _open(self) -> AsyncConnection:
        host, port = self.server
        connection = await open_async_connection(host, port, Place(endpoint(host, port)), _CONNECT)
        connection.give_up_after(_UNREACHABLE)
        return connection

    async def _use(self, connection: AsyncConnection) -> str:
        """Works until the connection ends. Returns the reason for the end."""
        self._connection = connection
        self._lost = trio.Event()
        reasons: list[str] = []
        async with trio.open_nursery() as nursery:

            async def until_lost(work: Callable[[], Awaitable[None]]) -> None:
                try:
                    await work()
                except ServerUnavailable as error:
                    reasons.append(str(error))
                    nursery.cancel_scope.cancel()

            nursery.start_soon(until_lost, self._pump)
            nursery.start_soon(until_lost, self._work)
        return reasons[0]

    async def _pump(self) -> None:
        assert self._connection is not None  # noqa: S101
        await self._connection.pump(self._take)

    async def _work(self) -> None:
        try:
            await self._prepare(self)
        except ServerError as error:
            raise ServerUnavailable(f"{endpoint(*self.server)} says {error}") from error
        self.connected.set()
        failure: list[ServerUnavailable] = []
        async with trio.open_nursery() as nursery:
            self._nursery = nursery

            async def serve(requests: RetryQueue[F, T], do: Callable[[F, list[T]], Awaitable[None]]) -> None:
                try:
                    await requests.serve(do)
                except ServerUnavailable as error:
                    failure.append(error)
                    nursery.cancel_scope.cancel()

            nursery.start_soon(serve, self.deletes, self._delete)
            nursery.start_soon(serve, self.releases, self._release)
            nursery.start_soon(serve, self.copies, self._copy)
            nursery.start_soon(serve, self.fetches, self._fetch)
        raise failure[0]

    def _forget(self, connection: AsyncConnection) -> None:
        if self.connected.is_set():  # whoever waits for a connection goes on waiting for the next one
            self.connected = trio.Event()
        self._lost.set()
        self._connection = None
        self._feeds.clear()
        self._reqs.clear()
        connection.close()

    async def call(self, call: Call[T]) -> T:
        """Makes a call and returns its result, or raises its error. Raises ServerUnavailable when there is no
        connection or it ends, also when a stopping server refuses the call."""
        if self._connection is None:
            raise ServerUnavailable(f"no connection to {endpoint(*self.server)}")
        lost = self._lost
        try:
            return await self._connection.call(call, _TIMEOUT)
        except ShuttingDown as error:
            await lost.wait()
            raise ServerUnavailable(f"{endpoint(*self.server)} says {error}") from error

    # -- subscriptions --------------------------------------------------------------------------------------------

    def sync(self, feed: Feed) -> None:
        """Subscribes, unsubscribes or changes the prefetch, as the feed needs it now. Does nothing without a
        connection."""
        if not self.connected.is_set() or self._connection is None:
            return
        req, prefetch = self._reqs.get(feed, ("", 0))
        if feed.wanted and prefetch != feed.prefetch:
            if not req:
                self._number += 1
                req = f"feed-{self._number}"
                self._feeds[req] = feed
            self._reqs[feed] = req, feed.prefetch
            self._connection.post(Subscribe(feed.qid, prefetch=feed.prefetch, visibility=_VISIBILITY, req=req))
        elif not feed.wanted and req:
            del self._reqs[feed]
            self._connection.post(Unsubscribe(req, req=req))

    def _take(self, message: Message) -> None:
        """Takes a message that answers no call: a delivery, or the answer to a subscription."""
        feed = self._feeds.get(message.req or "")
        if feed is None:
            _logger.debug("%s belongs to no subscription", message)
        elif isinstance(message, GetMessage):
            feed.take(message)
        elif isinstance(message, Unsubscribe):
            del self._feeds[message.req or ""]
        elif isinstance(message, Error) and not closes(message):  # otherwise the connection ends anyway
            self._refused(feed, message)

    def _refused(self, feed: Feed, error: Error) -> None:
        """Removes a subscription that the server has refused or ended. Subscribes again later, unless the queue is
        gone."""
        del self._feeds[error.req or ""]
        if self._reqs.get(feed, ("", 0))[0] != error.req:
            return  # a newer subscription has replaced it
        del self._reqs[feed]
        _logger.warning("the server has ended the subscription to %r: %s", feed.qid, error.text)
        if error.code == table.NOT_FOUND.code:
            self._gone(feed)
        else:
            self._nursery.start_soon(self._sync_later, feed)

    async def _sync_later(self, feed: Feed) -> None:
        await trio.sleep(_RETRY_AFTER)
        self.sync(feed)

    # -- the requests of the feeds --------------------------------------------------------------------------------

    async def _delete(self, feed: Feed, mids: list[int]) -> None:
        with suppress(NotFound):  # the queue itself has been deleted
            deleted = await self.call(calls.delete_many(feed.qid, mids))
            for mid in set(mids).difference(deleted):
                with suppress(NotFound):  # another consumer has deleted it; any other error says why it is not deleted
                    await self.call(calls.delete(feed.qid, mid))
        feed.deleted(mids)

    async def _release(self, feed: Feed, messages: list[tuple[int, int | None]]) -> None:
        async def release(mid: int, receives: int | None) -> None:
            with suppress(NotFound, Stale):  # the bus no longer holds it
                await self.call(calls.release(feed.qid, mid if receives is None else Receipt(mid, receives)))

        await run_concurrently(release, messages)

    async def _copy(self, feed: FanOut, mids: list[int]) -> None:
        while targets := [share.qid for share in feed.names.values()]:
            try:
                await self.call(calls.copy(feed.qid, mids, targets))  # skips messages that no longer exist
            except NotFound:
                await self._prepare(self)  # the queue of a name has been deleted, which ends the name
                if targets == [share.qid for share in feed.names.values()]:
                    raise
            except ServerError:
                await self._copy_one_by_one(feed, mids, targets)
                return
            else:
                feed.copied(mids)
                return
        feed.not_copied(mids)  # no name is left

    async def _copy_one_by_one(self, feed: FanOut, mids: list[int], targets: list[str]) -> None:
        """Copies the messages of a failed list one at a time: the failure does not say how far the list came, and no
        message is to be copied twice."""
        while mids:
            await self.call(calls.copy(feed.qid, mids[0], targets))
            feed.copied([mids.pop(0)])

    async def _fetch(self, feed: Feed, records: list[Record]) -> None:
        async def fetch(record: Record) -> None:
            try:
                message = await self.call(calls.peek(feed.qid, record.mid))
            except NotFound:
                feed.fetched(record, None)
                return
            payload = message.payload
            if payload is None and not record.done:
                # In flight elsewhere: perhaps on an earlier connection of the bus that the server believes alive.
                self._nursery.start_soon(self._fetch_later, feed, record)
            else:
                feed.fetched(record, payload.encode() if isinstance(payload, str) else payload)

        await run_concurrently(fetch, [(record,) for record in records])

    async def _fetch_later(self, feed: Feed, record: Record) -> None:
        """Fetches a payload in a second, without holding up other requests."""
        try:
            await trio.sleep(_RETRY_AFTER)
        finally:
            self.fetches.add(feed, record)  # also when the connection ends meanwhile

    async def emptied(self) -> None:
        """Waits until every handled message is deleted on the server. Returns at once when there is no connection or it
        is lost."""
        if not self.connected.is_set():
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_after, self._lost, nursery.cancel_scope)
            await self.deletes.emptied()
            nursery.cancel_scope.cancel()


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


async def run_concurrently(do: Callable[..., Awaitable[None]], each: Sequence[tuple[object, ...]]) -> None:
    """Calls `do` with each tuple of arguments, all at the same time. Then raises the first error of any call."""
    failures: list[ServerError | ServerUnavailable] = []

    async def one(arguments: tuple[object, ...]) -> None:
        try:
            await do(*arguments)
        except (ServerError, ServerUnavailable) as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        for arguments in each:
            nursery.start_soon(one, arguments)
    if failures:
        raise failures[0]
