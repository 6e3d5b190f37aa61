"""Collects the requests of the feeds to the queue server: to delete, release, copy and fetch messages.

Requests are sent whenever there is a connection. Requests that a lost connection has interrupted are sent again on the
next one.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from qs_client import (
    Forbidden,
    NotFound,
    NotImplementedByServer,
    Receipt,
    ServerError,
    Stale,
    Unauthorized,
    calls,
)
from qs_client.asking import ask
from qs_client.batches import in_batches
from qs_schemas import CopyMessage, DeleteMessage
from qs_schemas.limits import COPIES
from qs_serving.timers import Timers

from .fanout import Copies, FanOut
from .feeds import Feed, HeldMessage, Release
from .retry_queue import RETRY_AFTER, RetryQueue, ServerCalls, Steps

_LONGEST_LOOK = 60
"""Seconds between looks at a message that is still hidden after the delay that it was released with."""
_LIST = 1000
"""Ids of one request: the most that the protocol takes in a list."""
_AT_ONCE = 64
"""Requests about one message each that are under way for a feed: they are sent
one behind the other, so that a feed's answers take one round trip and not 64."""


class FeedRequests:
    """Collects the requests of all feeds. Implements `ServerRequests` and `CopyRequests`, except for subscriptions.

    Ensures that each request is repeated until it succeeds or its message or queue is gone, and that no feed waits for
    another. Assumes that a request may be made twice, because its answer may be lost with the connection: to delete,
    release or copy again changes nothing more. This class must not take an error for success unless the error says that
    the message or the queue is gone.
    """

    def __init__(self, calls: ServerCalls, timers: Timers, look_again: Callable[[], Awaitable[None]]) -> None:
        """look_again: finds out which durable names exist; called when the queue of a name is missing."""
        self._timers = timers
        self._look_again = look_again
        self.deletes: RetryQueue[Feed, int] = RetryQueue("deleting messages", self._delete, calls, timers, most=_LIST)
        self.copies: RetryQueue[FanOut, int] = RetryQueue(
            "storing messages for durable names", self._copy, calls, timers, most=_LIST
        )
        self.releases: RetryQueue[Feed, Release] = RetryQueue(
            "releasing messages", self._release, calls, timers, at_once=_AT_ONCE
        )
        self._looks: RetryQueue[Feed, tuple[int, float]] = RetryQueue(
            "looking for released messages", self._look, calls, timers, at_once=_AT_ONCE
        )
        self.fetches: RetryQueue[Feed, HeldMessage] = RetryQueue(
            "fetching messages", self._fetch, calls, timers, at_once=_AT_ONCE
        )

    def _delete(self, feed: Feed, mids: list[int]) -> Steps:
        with suppress(NotFound):  # the queue itself has been deleted
            answer = yield from ask(DeleteMessage(feed.qid, mids=list(mids)))
            for mid in set(mids).difference(answer.mids):
                with suppress(NotFound):  # another consumer has deleted it; any other error is a failure
                    yield from ask(DeleteMessage(feed.qid, mid))
        feed.deleted(mids)

    def _release(self, feed: Feed, releases: list[Release]) -> Steps:
        ((mid, receives, delay, counts, awaited, reason),) = releases
        receipt = mid if receives is None else Receipt(mid, receives)
        with suppress(NotFound, Stale, Unauthorized, Forbidden):  # the bus no longer holds it
            try:
                yield from calls.release(feed.qid, receipt, delay=delay, count=counts, reason=reason)
            except NotImplementedByServer:
                if reason is None:
                    raise
                # The storage of the queue keeps no reasons: the release matters more than its reason.
                yield from calls.release(feed.qid, receipt, delay=delay, count=counts)
        if awaited:
            # The release may have made the message a dead letter, without a notice: members would wait for it for ever.
            self._looks.add(feed, (mid, delay or 0))

    def _look(self, feed: Feed, looks: list[tuple[int, float]]) -> Steps:
        """Finds out whether a message that members wait for will come again: not if it is a dead letter now, or
        deleted. looks: the message, and the seconds until the next look if the message still exists (a duration,
        because the server's clock may differ from this one's)."""
        ((mid, seconds),) = looks
        if not feed.awaits(mid):
            return
        try:
            yield from calls.peek(feed.qid, mid)
        except NotFound:
            feed.missing(mid)
            return
        if feed.awaits(mid):
            seconds = max(seconds, RETRY_AFTER)
            again = mid, min(2 * seconds, _LONGEST_LOOK)
            self._timers.add(seconds, partial(self._looks.add, feed, again))

    def _copy(self, feed: FanOut, mids: list[int]) -> Steps:
        while copies := feed.uncopied(mids):
            failure: ServerError | None = None
            try:
                for each in copies:
                    try:
                        yield from self._copy_to(feed, each)
                    except NotFound:
                        raise
                    except ServerError as error:  # a queue that is full, perhaps: the others are not
                        failure = failure or error
            except NotFound:
                yield self._look_again  # the queue of a name has been deleted, which ends the name
                if copies == feed.uncopied(mids):
                    raise
            else:
                if failure is not None:
                    raise failure
        feed.not_copied(mids)  # what is left is for names that have ended, so nobody but the members has to handle it

    def _copy_to(self, feed: FanOut, copies: Copies) -> Steps:
        """Copies messages to the queues of some names."""
        names, queues, mids = copies
        for batch in in_batches(mids, max(COPIES // len(queues), 1)):
            try:
                yield from ask(CopyMessage(feed.qid, mids=list(batch), queues=queues))  # skips what is gone
            except NotFound:
                raise
            except ServerError:
                # One at a time: the failure does not say how far the list came, and no message is to be copied twice.
                for mid in batch:
                    yield from ask(CopyMessage(feed.qid, mid, queues=queues))
                    feed.copied([mid], names)
            else:
                feed.copied(batch, names)

    def _fetch(self, feed: Feed, messages: list[HeldMessage]) -> Steps:
        (message,) = messages
        try:
            found = yield from calls.peek(feed.qid, message.mid)
        except NotFound:
            feed.fetched(message, None)
            return
        payload = found.payload
        if payload is None and not message.done:
            # In flight elsewhere: perhaps on an earlier connection of the bus that the server believes alive.
            self._timers.add(RETRY_AFTER, partial(self.fetches.add, feed, message))
        else:
            feed.fetched(message, payload.encode() if isinstance(payload, str) else payload, found.headers)
