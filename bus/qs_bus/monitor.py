"""Knows which queues the bus takes messages from, which durable names they have, and which subscribers the bus waits
for after a crash."""

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
_MAKE_AGAIN = 0.5
"""Seconds after which a queue that somebody has deleted is made again, should somebody delete it all the time."""
_TO_NOTE = 3
"""Seconds that a subscriber waits at most until the server has it noted that it is one."""
_NAME_GONE = "the queue of the name {!r} has been deleted; this subscription is over, subscribe again for a new one"


class Monitor:
    """Makes, finds and drops the feeds of one bus."""

    def __init__(
        self, options: BusOptions, opened: Callable[[FanOut], None], ended: Callable[[Feed, str], None]
    ) -> None:
        """opened: is told of every feed that is new; ended: of one whose queue is gone, and why it is over."""
        self.server_name = endpoint(*options.server)
        self._options = options
        self._opened = opened
        self._ended = ended
        self.upstream = Upstream(options.server, self._prepare, self._gone)
        self.feeds: dict[str, FanOut] = {}
        self._unfit: set[str] = set()  # what the server refuses to make
        self._counts: SubscriberCounts | None = None
        self._expected = False
        self._naming = trio.Lock()  # a name whose queue is being made is not one whose queue is gone
        self._background: trio.Nursery | None = None

    async def run(self, port: int) -> None:
        """Works for ever. port: the one that the bus listens at, by which it knows its own notes on the server."""
        for qid in self._options.queues:
            self.feed(qid)
        self._counts = SubscriberCounts(self.upstream, self._options.host, port, self._count)
        async with trio.open_nursery() as self._background:
            self._background.start_soon(self.upstream.run)
            self._background.start_soon(self._counts.keep)

    def stop(self) -> None:
        """Stops noting subscribers that go: those that have to go from now on are to come back."""
        if self._counts is not None:
            self._counts.close()

    # -- for subscribers ------------------------------------------------------------------------------------------

    async def check(self, qid: str) -> None:
        """Raises RefusedError if a queue may not be subscribed to. Waits for the server if it has to be asked."""
        options = self._options
        if qid in options.queues or (qid in self.feeds and self.feeds[qid].members):
            return
        if options.queues:
            known = ", ".join(options.queues)
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
        """Returns the feeds of some queues. None of them is dropped until the block ends, for a subscriber that
        joins."""
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
        """Returns the feeds whose messages silent clients get. Drops those that are unused by now."""
        for feed in list(self.feeds.values()):
            self.drop_unused(feed)
        return [feed for feed in self.feeds.values() if feed.asked_for or feed.qid in self._options.queues]

    def drop_unused(self, feed: FanOut) -> None:
        """Drops a feed if it is unused and the options do not name its queue."""
        if feed.qid not in self._options.queues and feed.unused and self.feeds.get(feed.qid) is feed:
            del self.feeds[feed.qid]

    async def share(self, feed: FanOut, name: str) -> Share:
        """Returns the feed of a durable name. The queue of the name exists by then, so that no message is missed from
        then on. Raises RefusedError."""
        qid = queue_of(feed.label, name)
        if len(qid) > QID:
            raise RefusedError(
                table.BAD_REQUEST, f"the name is too long: {qid!r} has more than {QID} characters; take a shorter one"
            )
        while True:
            await self.upstream.connected.wait()
            try:
                async with self._naming:
                    # Also for a name that is known: without members, nobody has told the bus if its queue is gone.
                    await self.upstream.call(calls.new_queue(qid, exist_ok=True))
                    return self._add_name(feed, name)
            except ServerUnavailable:
                await trio.lowlevel.checkpoint()
            except ServerError as error:
                kind = table.BAD_REQUEST if isinstance(error, BadRequest) else table.INTERNAL
                raise RefusedError(kind, f"the queue of the name cannot be made: {error}") from None

    def _add_name(self, feed: FanOut, name: str) -> Share:
        if name not in feed.names:
            qid = queue_of(feed.label, name)
            feed.names[name] = Share(qid, feed.label, name, self.upstream, self._options.limits.outbox)
            self.upstream.sync(feed)
        return feed.names[name]

    # -- who is back after the bus was killed ---------------------------------------------------------------------

    def _count(self) -> dict[str, int]:
        return {qid: max(feed.acknowledging + feed.coming, feed.expected) for qid, feed in self.feeds.items()}

    async def note_coming(self, feeds: list[FanOut]) -> None:
        """Notes on the server that a subscriber joins these feeds, before the subscriber is told that it is one: then
        the bus waits for it even if it is killed in this moment. Gives up after 3 s without a server."""
        if self._counts is None:
            return
        for feed in feeds:
            feed.coming += 1
        try:
            self._counts.changed()
            await within(_TO_NOTE, self._counts.noted)
        finally:
            for feed in feeds:
                feed.coming -= 1

    def changed(self, joined: FanOut | None = None) -> None:
        """Takes note that a subscriber has come or gone. joined: the feed that one has come to, if it is a fan-out."""
        if joined is not None and joined.expected and joined.acknowledging >= joined.expected:
            self._go_on(joined)
        if self._counts is not None:
            self._counts.changed()

    async def _expect_subscribers(self, counts: SubscriberCounts) -> None:
        """Makes the feeds wait for the subscribers that were here before the bus was started again."""
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
                _logger.info("%r: %d of %d are back", feed.qid, feed.acknowledging, feed.expected)
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
            there = set(await upstream.call(calls.queues()))
            found = [entry for entry in map(name_in, there) if entry is not None]
            if self._counts is not None and not self._expected:
                await self._expect_subscribers(self._counts)
                self._expected = True
            for label, name in found:
                if label in (self._options.queues or there):
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
            _logger.warning("nothing of %r is stored for the name %r any more: its queue has been deleted", label, name)
            self._ended(share, _NAME_GONE.format(name))

    async def _make_queues(self) -> None:
        for qid in self._options.queues:
            try:
                await self.upstream.call(calls.new_queue(qid, exist_ok=True))
            except BadRequest as error:
                if qid not in self._unfit:
                    _logger.error("queue %r cannot be monitored: %s", qid, error)
                self._unfit.add(qid)

    def _gone(self, feed: Feed) -> None:
        """Ends a feed whose queue has been deleted on the server, or makes the queue again if the options name it."""
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
                self._ended(each, f"there is no queue {feed.label!r} any more; this subscription is over")
        elif self._background is not None and feed.label not in self._unfit:
            self._background.start_soon(self._make_again)

    def _forget_names(self, feed: FanOut) -> list[Share]:
        """Forgets the names of a queue that is gone, and returns their feeds. The names are found again by their own
        queues when a client subscribes to a new queue of that name."""
        shares = list(feed.names.values())
        feed.names.clear()
        feed.not_copied(self.upstream.copies.discard(feed))
        return shares

    async def _make_again(self) -> None:
        """Makes a monitored queue again that has been deleted, and subscribes to it."""
        while True:
            await trio.sleep(_MAKE_AGAIN)
            try:
                await self._prepare(self.upstream)
            except ServerUnavailable:
                return  # the next connection does it
            except ServerError as error:
                _logger.warning("a queue could not be made again, and will be tried: %s", error)
            else:
                return
