"""The feeds of the bus: which queues it takes messages from, which durable names they have, and which subscribers it
waits for after a crash."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from qs_client import calls
from qs_client.errors import BadRequest, ServerError, ServerUnavailable
from qs_client.place import endpoint
from qs_schemas import errors as table
from qs_schemas.limits import QID
from qs_serving.patience import within

from .fanout import FanOut
from .feeds import Feed
from .names import is_of_bus, name_in, queue_of
from .options import BusOptions
from .refused import RefusedError
from .share import Share
from .subscriber_counts import SubscriberCounts
from .upstream import Upstream

_logger = logging.getLogger(__name__)
_RECREATE_AFTER = 0.5
"""Seconds before a deleted queue of -q is created again, in case somebody keeps deleting it."""
_NOTE_TIME = 3
"""Seconds that a new subscriber waits at most until the server has noted it."""
_NAME_GONE = "the queue of the name {!r} has been deleted and this subscription has ended; subscribe again"


class Monitor:
    """Makes, finds and drops the feeds of one bus."""

    def __init__(
        self, options: BusOptions, opened: Callable[[FanOut], None], ended: Callable[[Feed, str], None]
    ) -> None:
        """opened: is called with each new feed; ended: with a feed whose queue is gone, and the reason."""
        self.server_name = endpoint(*options.server)
        self._options = options
        self._opened = opened
        self._ended = ended
        self.upstream = Upstream(options.server, self._prepare, self._gone)
        self.feeds: dict[str, FanOut] = {}
        self._invalid: set[str] = set()  # queues that the server refuses to make
        self._counts: SubscriberCounts | None = None
        self._expected = False
        self._naming = trio.Lock()  # or a name whose queue is just being made would be taken for deleted
        self._background: trio.Nursery | None = None

    async def run(self, port: int) -> None:
        """Keeps the feeds. Never returns. port: the port of the bus, by which it finds its own notes on the server."""
        for qid in self._options.queues:
            self.feed(qid)
        self._counts = SubscriberCounts(self.upstream, self._options.host, port, self._count)
        async with trio.open_nursery() as self._background:
            self._background.start_soon(self.upstream.run)
            self._background.start_soon(self._counts.run)

    def stop(self) -> None:
        """Stops noting subscribers that leave: those that leave now are expected back after the next start."""
        if self._counts is not None:
            self._counts.close()

    # -- for subscribers ------------------------------------------------------------------------------------------

    async def check(self, qid: str) -> None:
        """Raises RefusedError if a queue may not be subscribed to. May wait for the queue server."""
        options = self._options
        if qid in options.queues or (qid in self.feeds and self.feeds[qid].members):
            return
        if options.queues:
            known = ", ".join(options.queues)
            raise RefusedError(table.NOT_FOUND, f"the bus does not monitor {qid!r}; it monitors {known}")
        if is_of_bus(qid):
            raise RefusedError(
                table.BAD_REQUEST,
                f"{qid!r} is a queue of the bus itself; subscribe to the original, with op/@name",
            )
        existing = await self._ask_for_queues()
        if qid not in existing:
            raise RefusedError(
                table.NOT_FOUND, f"there is no queue {qid!r}; create it on the queue server at {self.server_name} first"
            )
        for label, name in filter(None, map(name_in, existing)):
            if label == qid:  # a queue that was deleted and created again has kept its names
                self._add_name(self.feed(qid), name)

    async def _ask_for_queues(self) -> list[str]:
        while True:
            await self.upstream.connected.wait()
            try:
                return await self.upstream.call(calls.queues())
            except ServerUnavailable:
                await trio.lowlevel.checkpoint()

    def feed(self, qid: str) -> FanOut:
        """Returns the feed of a queue, and makes it if there is none."""
        feed = self.feeds.get(qid)
        if feed is None:
            feed = FanOut(qid, self.upstream, self._options.limits.outbox, self._options.hold)
            self.feeds[qid] = feed
            self._opened(feed)
        return feed

    @contextmanager
    def joining(self, qids: list[str]) -> Iterator[list[FanOut]]:
        """Yields the feeds of queues for a subscriber that joins. None of them is dropped inside the block."""
        feeds = [self.feed(qid) for qid in qids]
        for feed in feeds:
            feed.joining += 1
        try:
            yield feeds
        finally:
            for feed in feeds:
                feed.joining -= 1
                self.drop_unused(feed)

    def monitored(self) -> list[FanOut]:
        """Returns the feeds whose messages silent clients get. Drops unused ones."""
        for feed in list(self.feeds.values()):
            self.drop_unused(feed)
        return [feed for feed in self.feeds.values() if feed.asked_for or feed.qid in self._options.queues]

    def drop_unused(self, feed: FanOut) -> None:
        """Drops a feed if it is unused and -q does not name its queue."""
        if feed.qid not in self._options.queues and feed.unused and self.feeds.get(feed.qid) is feed:
            del self.feeds[feed.qid]

    async def share(self, feed: FanOut, name: str) -> Feed:
        """Returns the feed of a durable name. The queue of the name exists then, so no message is missed. Raises
        RefusedError."""
        qid = queue_of(feed.label, name)
        if len(qid) > QID:
            raise RefusedError(
                table.BAD_REQUEST, f"the name is too long: {qid!r} has more than {QID} characters; use a shorter one"
            )
        while True:
            await self.upstream.connected.wait()
            try:
                async with self._naming:
                    # Also for a known name: while it had no members, the bus was not told if its queue was deleted.
                    await self.upstream.call(calls.new_queue(qid, exist_ok=True))
                    return self._add_name(feed, name)
            except ServerUnavailable:
                await trio.lowlevel.checkpoint()
            except ServerError as error:
                kind = table.BAD_REQUEST if isinstance(error, BadRequest) else table.INTERNAL
                raise RefusedError(kind, f"the queue for the name cannot be created: {error}") from None

    def _add_name(self, feed: FanOut, name: str) -> Feed:
        if name not in feed.names:
            qid = queue_of(feed.label, name)
            feed.names[name] = Share(qid, feed.label, name, self.upstream, self._options.limits.outbox)
            self.upstream.sync(feed)
        return feed.names[name]

    # -- who is back after the bus was killed ---------------------------------------------------------------------

    def _count(self) -> dict[str, int]:
        return {qid: max(feed.acknowledging + feed.coming, feed.expected) for qid, feed in self.feeds.items()}

    async def note_coming(self, feeds: list[FanOut]) -> None:
        """Notes on the server that a subscriber joins these feeds, before the subscriber is answered: a bus that is
        killed right then waits for it. Gives up after 3 s without a server."""
        if self._counts is None:
            return
        for feed in feeds:
            feed.coming += 1
        try:
            self._counts.changed()
            await within(_NOTE_TIME, self._counts.noted)
        finally:
            for feed in feeds:
                feed.coming -= 1

    def changed(self, joined: FanOut | None = None) -> None:
        """Notes that a subscriber has come or gone. joined: the fan-out that it has joined, if any."""
        if joined is not None and joined.expected and joined.acknowledging >= joined.expected:
            self._go_on(joined)
        if self._counts is not None:
            self._counts.changed()

    async def _expect_subscribers(self, counts: SubscriberCounts) -> None:
        """Makes the feeds wait for the subscribers from before the bus was started again."""
        waited_for: list[FanOut] = []
        for qid, number in (await counts.read()).items():
            if self._options.settle and number and (not self._options.queues or qid in self._options.queues):
                feed = self.feed(qid)
                if feed.acknowledging < number:
                    feed.expected = number
                    waited_for.append(feed)
        if waited_for and self._background is not None:
            self._background.start_soon(self._settle, waited_for)

    async def _settle(self, waited_for: list[FanOut]) -> None:
        await within(self._options.settle, trio.sleep_forever)
        for feed in waited_for:
            if feed.expected:
                _logger.info("%r: %d of %d subscribers are back", feed.qid, feed.acknowledging, feed.expected)
                self._go_on(feed)
                self.drop_unused(feed)

    def _go_on(self, feed: FanOut) -> None:
        feed.expected = 0
        self.upstream.sync(feed)
        self.changed()

    # -- the server -----------------------------------------------------------------------------------------------

    async def _prepare(self, upstream: Upstream) -> None:
        """Prepares a new connection: makes the queues to monitor, and finds the durable names that the server keeps."""
        async with self._naming:
            await self._make_queues()
            named = {(label, name) for label, feed in self.feeds.items() for name in feed.names}
            existing = set(await upstream.call(calls.queues()))
            found = [entry for entry in map(name_in, existing) if entry is not None]
            if self._counts is not None and not self._expected:
                await self._expect_subscribers(self._counts)
                self._expected = True
            for label, name in found:
                if label in (self._options.queues or existing):
                    self._add_name(self.feed(label), name)
            for label, name in named.difference(found):
                self._drop_name(label, name)
        upstream.connected.set()
        for feed in self.feeds.values():
            for each in (feed, *feed.names.values()):
                upstream.sync(each)

    def _drop_name(self, label: str, name: str) -> None:
        share = self.feeds[label].names.pop(name, None) if label in self.feeds else None
        if share is not None:
            _logger.warning("the name %r of the queue %r has ended: its own queue has been deleted", name, label)
            self._ended(share, _NAME_GONE.format(name))

    async def _make_queues(self) -> None:
        for qid in self._options.queues:
            try:
                await self.upstream.call(calls.new_queue(qid, exist_ok=True))
            except BadRequest as error:
                if qid not in self._invalid:
                    _logger.error("queue %r cannot be monitored: %s", qid, error)
                self._invalid.add(qid)

    def _gone(self, feed: Feed) -> None:
        """Ends a feed whose queue has been deleted on the server, or makes the queue again if -q names it."""
        if isinstance(feed, Share):
            names = self.feeds[feed.label].names if feed.label in self.feeds else {}
            if names.get(feed.name) is feed:
                del names[feed.name]
            self._ended(feed, _NAME_GONE.format(feed.name))
        elif feed.label not in self._options.queues:
            if self.feeds.get(feed.label) is feed:
                del self.feeds[feed.label]
            shares = self._forget_names(feed) if isinstance(feed, FanOut) else []
            for each in (feed, *shares):
                self._ended(each, f"the queue {feed.label!r} has been deleted; this subscription has ended")
        elif self._background is not None and feed.label not in self._invalid:
            self._background.start_soon(self._recreate_queues)

    def _forget_names(self, feed: FanOut) -> list[Feed]:
        """Removes the names of a queue that is gone, and returns their feeds. The names are found again by their own
        queues when a client subscribes to a new queue of that name."""
        shares = list(feed.names.values())
        feed.names.clear()
        feed.not_copied(self.upstream.copies.discard(feed))
        return shares

    async def _recreate_queues(self) -> None:
        """Makes a deleted queue of -q again, and subscribes to it."""
        while True:
            await trio.sleep(_RECREATE_AFTER)
            try:
                await self._prepare(self.upstream)
            except ServerUnavailable:
                return  # done on the next connection
            except ServerError as error:
                _logger.warning("a deleted queue could not be created again; the bus keeps trying: %s", error)
            else:
                return
