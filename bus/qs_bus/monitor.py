"""Keeps the feeds of the bus: the queues that it takes messages from, their durable names, and the subscribers that the
bus waits for after a crash.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

import trio

from qs_client import calls
from qs_client.errors import BadRequest, Forbidden, NotFound, ServerError, ServerUnavailable, Unauthorized
from qs_client.place import endpoint
from qs_client.security import PLAIN, Security
from qs_schemas import ErrorCode, errors
from qs_serving.hub import Hub
from qs_serving.timers import Timers, within

from .durable_names import DurableNames
from .fanout import FanOut
from .feeds import DurableName, Feed
from .filtering import Evaluator, FilterCounts
from .options import BusOptions
from .patterns import NamePatterns
from .queue_names import counts_queue_of, is_of_bus, names_in
from .queue_watch import QueueWatch
from .rights import RefusedError, Rights
from .share import Share
from .upstream import Upstream

_logger = logging.getLogger(__name__)
_RECREATE_AFTER = 0.5
"""Seconds before a deleted queue of -q is created again, in case somebody keeps deleting it."""
_LOOK_AFTER = 10
"""Seconds before the bus looks again for a missing queue of -q that only others may make: each look is a
list of all queues."""
_ANSWER_TIME = 3
"""Seconds that a subscriber to a queue of -q waits at most until the server has said whether the bus may read it."""
_NOTE_TIME = 3
"""Seconds that a new subscriber waits at most until the server has noted it."""
_DEBOUNCE = 0.02
"""Seconds in which further changes are awaited before the counts are written, as many come at once."""
_DELETED = "the queue {!r} has been deleted; this subscription has ended"


class SubscriberCounts:
    """Stores the counts of one bus's acknowledging subscribers, in a queue that is named after the address of the bus.

    Subscribers of a bus that was killed come back one by one. The bus waits for as many as before, so that waiting
    messages do not all go to the first subscriber.

    Ensures that the old counts stay until the new ones are stored: the new message is pushed first. Assumes that one
    bus at a time has the address. Must not count the subscribers that leave because the bus stops: these are expected
    back.
    """

    def __init__(self, upstream: Upstream, host: str, port: int, count: Callable[[], Mapping[str, int]]) -> None:
        """count: returns the current counts: queue -> subscribers."""
        self.qid = counts_queue_of(host, port)
        self._upstream = upstream
        self._count = count
        self._written = ""
        self._changed = trio.Event()
        self._saved = trio.Event()
        self._changes = self._noted = 0
        self._closed = False
        self._failing = False  # True if the log says so

    def changed(self) -> None:
        """Notes that a subscriber has come or gone."""
        if not self._closed:
            self._changes += 1
            self._changed.set()

    async def noted(self) -> None:
        """Waits until the changes so far are written, or until `close` has given them up."""
        # Only the changes up to now: more subscribers must not hold up this one.
        change = self._changes
        while self._noted < change and not self._closed:
            await self._saved.wait()

    def close(self) -> None:
        """Stops writing. Call this when the bus stops: subscribers that leave from now on are expected back."""
        self._closed = True
        self._saved.set()

    async def read(self) -> dict[str, int]:
        """Reads the counts from before the bus's last end: queue -> subscribers. Raises ServerUnavailable."""
        mids = await self._messages()
        if not mids:
            return {}
        message = await self._upstream.call(calls.peek(self.qid, mids[-1]))
        self._written = message.text
        found: dict[str, int] = {}
        for line in self._written.splitlines():
            number, _, qid = line.partition(" ")
            if number.isdigit():
                found[qid] = int(number)
        return found

    async def _messages(self) -> list[int]:
        try:
            # More than one message is left only if the bus was killed between the push and the delete of `_write`.
            return await self._upstream.call(next(calls.list_messages(self.qid, state="all")))  # one page has them all
        except (NotFound, Unauthorized, Forbidden):  # `_write` logs what the server says
            return []

    async def run(self) -> None:
        """Writes the counts whenever they have changed. Never returns."""
        while True:
            await self._changed.wait()
            await trio.sleep(_DEBOUNCE)
            await self._upstream.connected.wait()
            # Before counting, so that what changes during the write is written next.
            self._changed = trio.Event()
            change = self._changes
            text = "".join(f"{number} {qid}\n" for qid, number in sorted(self._count().items()) if number)
            try:
                if not self._closed and text != self._written:
                    await self._write(text)
                    self._failing = False
            except ServerUnavailable:
                # `_saved` is not set: tasks in `noted` have a time-out of their own.
                self._changed.set()
                await trio.lowlevel.checkpoint()
                continue
            except ServerError as error:
                if not self._failing:
                    _logger.warning("the number of subscribers could not be stored on the queue server: %s", error)
                self._failing = True
            self._noted = change
            self._saved.set()
            self._saved = trio.Event()

    async def _write(self, text: str) -> None:
        # Made here and not at the start: a bus without acknowledging subscribers needs no queue.
        await self._upstream.call(calls.new_queue(self.qid, exist_ok=True))
        before = await self._messages()
        await self._upstream.call(calls.push(self.qid, text))
        await self._upstream.call(calls.delete_many(self.qid, before))
        self._written = text


class Monitor:
    """Makes, finds and drops the feeds of one bus.

    Ensures:
    1. A queue has one feed as long as a client wants messages of the queue, a message is held, or -q names the queue.
    2. After each new connection, the queues of -q and the durable names that the server keeps are restored before the
       feeds subscribe, so that no name misses a message.
    3. After a start, a feed waits at most `settle` seconds for as many subscribers as the queue had before.

    Assumes that the server's list of queues is complete: a name whose queue is missing from the list has ended. The
    monitor must not hold up a client of one queue because of another queue.
    """

    def __init__(
        self,
        options: BusOptions,
        opened: Callable[[Feed], None],
        ended: Callable[[Feed, ErrorCode, str], None],
        may_read: Callable[[str | None, str], bool] = lambda owner, qid: True,
        *,
        hub: Hub,
        timers: Timers,
        security: Callable[[], Security] = lambda: PLAIN,
    ) -> None:
        """opened: called with each new feed, and again with one that clients may have missed; ended: called with a feed
        whose queue is gone or may not be read, the error, and its text; may_read: tells whether the owner of a durable
        name may read a queue now; hub: reads from the server; security: returns the TLS context and the token for the
        queue server."""
        self.server_name = endpoint(*options.server)
        self._options = options
        self._opened = opened
        self._ended = ended
        self.upstream = Upstream(
            options.server, self._prepare, self._gone, self._forbidden, hub=hub, timers=timers, security=security
        )
        self._evaluator = Evaluator()
        self.feeds: dict[str, FanOut] = {}
        self._invalid: set[str] = set()  # queues whose names are not valid
        self._not_made: set[str] = set()  # queues that the server does not let the bus make
        self._counts: SubscriberCounts | None = None
        self._expected = False  # True once the counts have been read: later ones are this bus's own
        self.names = DurableNames(self.upstream, self.feeds, self.feed, self._new_share, opened=opened, ended=ended)
        patterns = NamePatterns(self.upstream, self.names, may_read)
        self.watch = QueueWatch(options.queues, self.upstream, self.feeds, self._open, names=patterns, timers=timers)
        self._background: trio.Nursery | None = None

    async def run(self, port: int) -> None:
        """Keeps the feeds. Never returns. port: the port of the bus, which is part of the name of its queue of
        counts."""
        for qid in self._options.queues:
            self.feed(qid)
        self._counts = SubscriberCounts(self.upstream, self._options.host, port, self._count)
        async with trio.open_nursery() as self._background:
            self._evaluator.nursery = self._background
            self._background.start_soon(self.upstream.run)
            self._background.start_soon(self._counts.run)
            self._background.start_soon(self.watch.run)

    def stop(self) -> None:
        """Stops counting subscribers: those that leave from now on are expected back after the next start."""
        if self._counts is not None:
            self._counts.close()

    def stop_feeds(self) -> None:
        """Ends all subscriptions on the server, and releases the messages that no client has got if their queues count
        receives."""
        for feed in self.feeds.values():
            for each in (feed, *feed.names.values()):
                each.stop()

    # -- for subscribers ------------------------------------------------------------------------------------------

    async def check(self, qid: str, rights: Rights) -> None:
        """Checks that clients can subscribe to a queue. May wait for the queue server. Raises RefusedError.

        rights: the rights of the client, which may read the queue; the error names other queues only if the client may
        read them.
        """
        feed = self.feeds.get(qid)
        if feed is not None and feed.members and not feed.forbidden:
            return  # other clients get its messages: if that changes, the server says so
        monitored = self._options.queues
        # The bus first decides what it can without the server, which may be down.
        if monitored and qid not in monitored:
            known = ", ".join(filter(rights.may_read, monitored)) or "none that this client may read"
            raise RefusedError(errors.NOT_FOUND, f"the bus does not monitor {qid!r}; it monitors {known}")
        if is_of_bus(qid):
            raise RefusedError(
                errors.BAD_REQUEST,
                f"{qid!r} is a queue of the bus itself; subscribe to the original, with op/@name",
            )
        if monitored:  # the queue exists, or is made: do not wait for a server that does not answer
            await within(_ANSWER_TIME, partial(self._check_readable, qid))
        else:
            await self._check_existing(qid)

    async def _check_readable(self, qid: str) -> None:
        """Checks that the server lets the bus read a queue, if there is a connection. Raises RefusedError."""
        if self.upstream.connected.is_set():
            with suppress(ServerUnavailable):
                reason = await self.upstream.why_unreadable(qid)
                if reason:
                    raise RefusedError(errors.FORBIDDEN, reason)

    async def _check_existing(self, qid: str) -> None:
        """Checks that the server has a queue and lets the bus read it. Waits for the server. Raises RefusedError."""
        while True:
            await self.upstream.connected.wait()
            await self._check_readable(qid)  # first: the list has only queues that the bus may see
            try:
                existing = await self.upstream.queues()
                # A queue that was deleted and created again has kept its names.
                await self.names.find(names_in(existing), {qid})
                break
            except ServerUnavailable:
                await trio.lowlevel.checkpoint()
        if qid not in existing:
            raise RefusedError(
                errors.NOT_FOUND,
                f"there is no queue {qid!r}; create it on the queue server at {self.server_name} first",
            )

    def feed(self, qid: str) -> FanOut:
        """Returns the feed of a queue, and makes one if there is none."""
        feed = self.feeds.get(qid)
        if feed is None:
            limits = self._options.limits
            feed = FanOut(qid, self.upstream, limits.outbox, self._options.hold, self._evaluator)
            # Silent clients join first: they get the messages that come for the first subscriber too.
            self.feeds[qid] = feed
            self._opened(feed)
        return feed

    @property
    def filter_counts(self) -> FilterCounts:
        """The counts of what all conditions have decided since the bus was started."""
        return self._evaluator.counts

    def conditions(self) -> Iterator[tuple[str, str, FilterCounts]]:
        """Yields the conditions that subscribers or names have now: the queue, the text, and what it has decided."""
        for feed in self.feeds.values():
            for condition, group in feed.groups.items():
                if condition is not None:
                    yield feed.qid, condition.text, group.counts

    def _new_share(self, name: DurableName) -> Share:
        return Share(name, self.upstream, self._options.limits.outbox)

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

    def _open(self, qids: list[str]) -> None:
        """Lets clients join queues that match their patterns."""
        with self.joining(qids) as feeds:
            for feed in feeds:
                for each in (feed, *feed.names.values()):
                    self._opened(each)

    def drop_unused(self, feed: FanOut) -> None:
        """Drops a feed if it is unused and -q does not name its queue."""
        if feed.qid not in self._options.queues and feed.unused and self.feeds.get(feed.qid) is feed:
            del self.feeds[feed.qid]

    # -- who is back after the bus was killed ---------------------------------------------------------------------

    def _count(self) -> dict[str, int]:
        # Those that are expected count until the wait is over: a bus that is killed again waits for as many again.
        return {qid: max(feed.acknowledging + feed.coming, feed.expected) for qid, feed in self.feeds.items()}

    async def note_coming(self, feeds: list[FanOut]) -> None:
        """Notes on the server that a subscriber joins these feeds. Call this before the answer to the subscriber: a bus
        that is killed right then will wait for the subscriber to come back. Gives up after 3 s without a server."""
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
        """Notes that a subscriber has come or gone. joined: the fan-out that the subscriber has joined, if any."""
        if joined is not None and joined.expected and joined.acknowledging >= joined.expected:
            self._stop_waiting(joined)
        if self._counts is not None:
            self._counts.changed()

    async def _expect_subscribers(self, counts: SubscriberCounts) -> None:
        """Makes the feeds wait for the subscribers from before the bus was started again."""
        waited_for: list[FanOut] = []
        for qid, number in (await counts.read()).items():
            # Nobody can come back to queues that are not monitored any more.
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
                self._stop_waiting(feed)
                self.drop_unused(feed)

    def _stop_waiting(self, feed: FanOut) -> None:
        feed.expected = 0
        self.upstream.sync(feed)
        self.changed()

    # -- the server -----------------------------------------------------------------------------------------------

    async def _prepare(self, upstream: Upstream) -> None:
        """Prepares a new connection: makes the queues of -q, and finds the durable names that the server keeps."""
        async with self.names.lock:
            await self._make_queues()
            # Before the list is requested: a name that is made later is not in the list, and has not ended.
            known = self.names.known()
            existing = set(await upstream.queues())
            if self._counts is not None and not self._expected:
                await self._expect_subscribers(self._counts)
                self._expected = True
            monitored = self._options.queues or existing
            await self.names.compare(known, existing, monitored)
            await self.watch.names.find(existing)
            await self.watch.names.make(monitored)
        upstream.connected.set()
        self.watch.look_again()
        for feed in self.feeds.values():
            for each in (feed, *feed.names.values()):
                upstream.sync(each)

    async def _make_queues(self) -> None:
        for qid in self._options.queues:
            try:
                await self.upstream.call(calls.new_queue(qid, exist_ok=True))
            except BadRequest as error:
                if qid not in self._invalid:
                    _logger.error("queue %r cannot be monitored: %s", qid, error)
                self._invalid.add(qid)
            except (Unauthorized, Forbidden) as error:
                if qid not in self._not_made:
                    _logger.warning("queue %r cannot be made by the bus, if it is missing: %s", qid, error)
                self._not_made.add(qid)

    def _gone(self, feed: Feed) -> None:
        """Ends a feed whose queue has been deleted on the server, or makes the queue again if -q names it."""
        if isinstance(feed, Share):  # the name's own queue is gone; the queue that it was copied from has another feed
            self.names.end(feed)
        elif feed.label not in self._options.queues:
            if self.feeds.get(feed.label) is feed:
                del self.feeds[feed.label]
            self.watch.gone(feed.label)
            shares = self.names.forget(feed) if isinstance(feed, FanOut) else []
            for each in (feed, *shares):
                self._ended(each, errors.NOT_FOUND, _DELETED.format(feed.label))
        elif self._background is not None and feed.label not in self._invalid:
            # Subscribers of a queue of -q stay: for them it is an outage.
            seconds = _LOOK_AFTER if feed.label in self._not_made else _RECREATE_AFTER
            self._background.start_soon(self._recreate_queues, seconds)

    def _forbidden(self, feed: Feed) -> None:
        """Ends the subscriptions to a queue that the server does not let the bus read."""
        self._ended(feed, errors.FORBIDDEN, feed.forbidden)
        if isinstance(feed, FanOut):
            self.drop_unused(feed)
        self.watch.look_later(feed.label)  # for subscriptions by patterns, which do not end

    async def _recreate_queues(self, seconds: float) -> None:
        """Makes deleted queues of -q again after so many seconds, and subscribes to them."""
        while True:
            await trio.sleep(seconds)
            try:
                await self._prepare(self.upstream)
            except ServerUnavailable:
                return  # done on the next connection
            except ServerError as error:
                _logger.warning("a deleted queue could not be created again; the bus keeps trying: %s", error)
            else:
                return
