"""The durable names of one bus: whose each is, the queue that keeps its messages, and the feed of its members."""

import contextlib
import logging
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Protocol, TypeVar

import trio

from qs_client import calls, policy_calls
from qs_client.asking import Call
from qs_client.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    NotFound,
    NotImplementedByServer,
    ServerError,
    ServerUnavailable,
    Unauthorized,
)
from qs_schemas import ErrorCode
from qs_schemas import errors as table
from qs_schemas.limits import QID

from .fanout import FanOut
from .feeds import Feed
from .names import DurableName, name_in, queue_of
from .refused import RefusedError
from .retry_queue import RetryQueue
from .rights import Rights
from .share import Share

T = TypeVar("T")
_logger = logging.getLogger(__name__)
_GONE = "the queue of the name {!r} has been deleted and this subscription has ended; subscribe again"


class NameRequests(Protocol):
    """The requests of the names to the queue server. `Upstream` implements it."""

    @property
    def copies(self) -> RetryQueue[FanOut, int]:
        """Ids of messages to copy to the queues of names."""

    @property
    def connected(self) -> trio.Event:
        """The event that is set while calls can be made."""

    async def call(self, call: Call[T]) -> T:
        """Makes a call and returns its result. Raises ServerError, or ServerUnavailable when the connection ends."""

    def sync(self, feed: Feed) -> None:
        """Subscribes, unsubscribes or changes the prefetch, as the feed needs it now."""


class DurableNames:
    """Makes, finds and ends durable names. The server keeps them: as names of queues, see `names`."""

    def __init__(
        self,
        upstream: NameRequests,
        feeds: Mapping[str, FanOut],
        feed_of: Callable[[str], FanOut],
        new_share: Callable[[DurableName], Share],
        ended: Callable[[Feed, ErrorCode, str], None],
    ) -> None:
        """feeds: by queue; feed_of: returns the feed of a queue, and makes it if there is none; new_share: makes the
        feed of a name; ended: is called with the feed of a name that has ended, the error, and its text."""
        self._upstream = upstream
        self._feeds = feeds
        self._feed_of = feed_of
        self._ended = ended
        self._new_share = new_share
        self.lock = trio.Lock()
        """Held while a name is made, and while names are compared with the queues that are there: a name whose queue is
        just being made must not be taken for one whose queue has been deleted."""

    async def share(self, feed: FanOut, name: str, rights: Rights) -> Feed:
        """Returns the feed of a name, and makes the name if there is none. Its queue exists then, so no message is
        missed. Waits for the server. Raises RefusedError.

        rights: of the client that subscribes. Another principal's name is another one, unless the client may use it.
        """
        while True:
            await self._upstream.connected.wait()
            try:
                async with self.lock:
                    found = _find(feed, name, rights)
                    # Also for a known name: while it had no members, the bus was not told if its queue was deleted.
                    await self._make(_checked(found), feed.qid)
                    return self.add(found)
            except ServerUnavailable:
                await trio.lowlevel.checkpoint()
            except ServerError as error:
                raise RefusedError(_kind(error), f"the queue for the name cannot be created: {error}") from None

    async def _make(self, qid: str, of: str) -> None:
        """Makes the queue of a name if there is none. It takes over what the queue `of` says now about messages that
        nobody handles. Raises ServerError, ServerUnavailable."""
        try:
            await self._upstream.call(policy_calls.queue_options(qid))
        except NotFound:
            policy = await self._policy_of(of)
            with contextlib.suppress(Conflict):  # somebody has just made it
                await self._upstream.call(calls.new_queue(qid, **policy))

    async def _policy_of(self, qid: str) -> dict[str, Any]:
        """Returns the options that a name takes over from its queue; none if the bus may not see them."""
        try:
            options = await self._upstream.call(policy_calls.queue_options(qid))
        except (NotFound, Unauthorized, Forbidden, NotImplementedByServer) as error:
            _logger.info("names of %r take over no options: the bus may not see them: %s", qid, error)
            return {}
        return {
            "visibility": options.visibility,
            "retention": options.retention,
            "dead_letter": options.dead_letter,
            "max_receives": options.max_receives,
            "backoff": options.backoff,
            "backoff_max": options.backoff_max,
            # A dead-letter queue has the storage of its queue, and not every storage has a back-off.
            "storage": options.storage if options.dead_letter or options.backoff else None,
        }

    def add(self, name: DurableName) -> Feed:
        """Returns the feed of a name that has a queue on the server."""
        feed = self._feed_of(name.qid)
        if name not in feed.names:
            feed.names[name] = self._new_share(name)
            self._upstream.sync(feed)
        return feed.names[name]

    def known(self) -> set[DurableName]:
        """Returns all names that have a feed."""
        return {name for feed in self._feeds.values() for name in feed.names}

    def compare(self, known: set[DurableName], existing: Iterable[str], monitored: Container[str]) -> None:
        """Adds the names whose queues exist, and ends those whose queues do not. Call it with the lock held.

        known: the names from before `existing` was asked for; monitored: the queues whose names are added.
        """
        found = names_in(existing)
        for name in found:
            if name.qid in monitored:
                self.add(name)
        for name in known.difference(found):
            self._drop(name)

    def _drop(self, name: DurableName) -> None:
        share = self._feeds[name.qid].names.pop(name, None) if name.qid in self._feeds else None
        if share is not None:
            _logger.warning(
                "the name %r of the queue %r has ended: its own queue has been deleted", name.name, name.qid
            )
            self._ended(share, table.NOT_FOUND, _GONE.format(name.name))

    def end(self, share: Share) -> None:
        """Ends a name whose queue the server says is gone."""
        names = self._feeds[share.label].names if share.label in self._feeds else {}
        if names.get(share.name) is share:
            del names[share.name]
        self._ended(share, table.NOT_FOUND, _GONE.format(share.name.name))

    def forget(self, feed: FanOut) -> list[Feed]:
        """Removes the names of a queue that is gone, and returns their feeds. The names are found again by their own
        queues when a client subscribes to a new queue of that name."""
        shares = list(feed.names.values())
        feed.names.clear()
        feed.not_copied(self._upstream.copies.discard(feed))
        return shares


def names_in(existing: Iterable[str]) -> list[DurableName]:
    """Returns the durable names whose queues are among the existing ones."""
    return [name for name in map(name_in, existing) if name is not None]


def _find(feed: FanOut, name: str, rights: Rights) -> DurableName:
    """Returns the client's own name, else one of others that the client may use, else a new one of its own."""
    own = DurableName(feed.label, name, rights.owner)
    usable = [each for each in feed.names if each.name == name and rights.may_use(each.owner)]
    return own if own in usable or not usable else min(usable, key=lambda each: each.owner or "")


def _checked(name: DurableName) -> str:
    """Returns the queue of a name. RefusedError if it is too long for the name of a queue."""
    qid = queue_of(name)
    if len(qid) > QID:
        raise RefusedError(
            table.BAD_REQUEST, f"the name is too long: {qid!r} has more than {QID} characters; use a shorter one"
        )
    return qid


def _kind(error: ServerError) -> ErrorCode:
    if isinstance(error, BadRequest):
        return table.BAD_REQUEST
    return table.FORBIDDEN if isinstance(error, (Unauthorized, Forbidden)) else table.INTERNAL
