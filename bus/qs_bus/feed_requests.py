"""The requests of the feeds to the queue server: deleting, releasing, copying and fetching messages.

They are collected, and sent whenever there is a connection. Those that a lost connection has interrupted are sent again
on the next one.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

import trio

from qs_client import (
    Forbidden,
    NotFound,
    NotImplementedByServer,
    Receipt,
    ServerError,
    ServerUnavailable,
    Stale,
    Unauthorized,
    calls,
)
from qs_client.asking import Call

from .fanout import FanOut
from .feeds import Feed
from .records import Record, Release
from .retry_queue import RetryQueue

F = TypeVar("F", bound=Feed)
T = TypeVar("T")
RETRY_AFTER = 1
"""Seconds before the bus asks again for what the server could not give."""
_LONGEST_LOOK = 60
"""Seconds between looks at a message that is still hidden after the delay that it was released with."""
_LIST = 1000
_CONCURRENT = 64


class Server(Protocol):
    """Makes calls to the queue server. `Upstream` does it."""

    async def call(self, call: Call[T]) -> T:
        """Makes a call and returns its result. Raises ServerError, or ServerUnavailable when the connection ends."""


class FeedRequests:
    """Collects the requests of all feeds: see `ServerRequests` and `CopyRequests`."""

    def __init__(self, server: Server, look_again: Callable[[], Awaitable[None]]) -> None:
        """look_again: finds out which durable names there are; is called when the queue of one is missing."""
        self.deletes: RetryQueue[Feed, int] = RetryQueue("deleting messages", _LIST)
        self.releases: RetryQueue[Feed, Release] = RetryQueue("releasing messages", _CONCURRENT)
        self._looks: RetryQueue[Feed, tuple[int, float]] = RetryQueue("looking for released messages", _CONCURRENT)
        self.copies: RetryQueue[FanOut, int] = RetryQueue("storing messages for durable names", _LIST)
        self.fetches: RetryQueue[Feed, Record] = RetryQueue("fetching messages", _CONCURRENT)
        self._server = server
        self._look_again = look_again
        self._nursery: trio.Nursery

    async def serve(self) -> None:
        """Sends what is collected until the connection ends, which raises ServerUnavailable."""
        failure: list[ServerUnavailable] = []
        async with trio.open_nursery() as self._nursery:
            nursery = self._nursery

            async def serve(requests: RetryQueue[F, T], do: Callable[[F, list[T]], Awaitable[None]]) -> None:
                try:
                    await requests.serve(do)
                except ServerUnavailable as error:
                    failure.append(error)
                    nursery.cancel_scope.cancel()

            nursery.start_soon(serve, self.deletes, self._delete)
            nursery.start_soon(serve, self.releases, self._release)
            nursery.start_soon(serve, self._looks, self._look)
            nursery.start_soon(serve, self.copies, self._copy)
            nursery.start_soon(serve, self.fetches, self._fetch)
        raise failure[0]

    async def _delete(self, feed: Feed, mids: list[int]) -> None:
        with suppress(NotFound):  # the queue itself has been deleted
            deleted = await self._server.call(calls.delete_many(feed.qid, mids))
            for mid in set(mids).difference(deleted):
                with suppress(NotFound):  # another consumer has deleted it; any other error says why it is not deleted
                    await self._server.call(calls.delete(feed.qid, mid))
        feed.deleted(mids)

    async def _release(self, feed: Feed, messages: list[Release]) -> None:
        async def release(message: Release) -> None:
            mid, receives, delay, counts, awaited, reason = message
            receipt = mid if receives is None else Receipt(mid, receives)
            with suppress(NotFound, Stale, Unauthorized, Forbidden):  # the bus no longer holds it
                try:
                    await self._server.call(calls.release(feed.qid, receipt, delay=delay, count=counts, reason=reason))
                except NotImplementedByServer:
                    if reason is None:
                        raise
                    # The storage of the queue keeps no reasons: the message matters more.
                    await self._server.call(calls.release(feed.qid, receipt, delay=delay, count=counts))
            if awaited:
                self._looks.add(feed, (mid, delay or 0))

        await run_concurrently(release, [(message,) for message in messages])

    async def _look(self, feed: Feed, looks: list[tuple[int, float]]) -> None:
        """Finds out which of the messages that members wait for are dead letters now, or deleted: only the others come
        again. looks: each message, and the seconds until the next look if it is still there. These are lengths, as the
        server's clock may differ from ours."""

        async def look(mid: int, seconds: float) -> None:
            if not feed.awaits(mid):
                return
            try:
                await self._server.call(calls.peek(feed.qid, mid))
            except NotFound:
                feed.missing(mid)
                return
            if feed.awaits(mid):
                seconds = max(seconds, RETRY_AFTER)
                again = mid, min(2 * seconds, _LONGEST_LOOK)
                self._nursery.start_soon(self._later, self._looks, feed, again, seconds)

        await run_concurrently(look, looks)

    async def _copy(self, feed: FanOut, mids: list[int]) -> None:
        while targets := [share.qid for share in feed.names.values()]:
            try:
                await self._server.call(calls.copy(feed.qid, mids, targets))  # skips messages that no longer exist
            except NotFound:
                await self._look_again()  # the queue of a name has been deleted, which ends the name
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
            await self._server.call(calls.copy(feed.qid, mids[0], targets))
            feed.copied([mids.pop(0)])

    async def _fetch(self, feed: Feed, records: list[Record]) -> None:
        async def fetch(record: Record) -> None:
            try:
                message = await self._server.call(calls.peek(feed.qid, record.mid))
            except NotFound:
                feed.fetched(record, None)
                return
            payload = message.payload
            if payload is None and not record.done:
                # In flight elsewhere: perhaps on an earlier connection of the bus that the server believes alive.
                self._nursery.start_soon(self._later, self.fetches, feed, record, RETRY_AFTER)
            else:
                feed.fetched(record, payload.encode() if isinstance(payload, str) else payload)

        await run_concurrently(fetch, [(record,) for record in records])

    async def _later(self, requests: RetryQueue[Feed, T], feed: Feed, item: T, seconds: float) -> None:
        """Makes a request later, without holding up others."""
        try:
            await trio.sleep(seconds)
        finally:
            requests.add(feed, item)  # also when the connection ends meanwhile


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
