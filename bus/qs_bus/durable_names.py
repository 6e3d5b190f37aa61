"""Makes, finds and ends the durable names of a bus.

The messages for a durable name are copied to a queue of its own. The name of that queue contains the owner, so a
durable name still belongs to its principal after the bus and the server have been started again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import trio

from qs_client import calls, policy_calls
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
from qs_schemas import ErrorCode, errors
from qs_schemas.limits import QID

from .conditions import BadCondition, Condition
from .fanout import FanOut
from .feeds import DurableName, Feed
from .queue_names import names_in, queue_of
from .rights import RefusedError, Rights
from .share import Share

if TYPE_CHECKING:
    from .upstream import Upstream

_logger = logging.getLogger(__name__)
_OF_STORAGE = (
    "dead_letter", "max_receives", "backoff", "backoff_max", "group_in_flight", "fair", "max_in_flight", "rate",
)  # fmt: skip
"""The options that a name copies from its queue and that not every storage has. A name's members do the work of the
queue, so they get messages in its order and at its pace."""
_ANOTHER = (
    "the name {!r} of the queue {!r} has {}; subscribe with what it has, or change it on the queue server: "
    "qs set '{}' --where CONDITION"
)
_UNREADABLE = (
    "the name %r of the queue %r has a condition that is not valid, %r: %s. It gets every message, and its members "
    "are refused, until somebody corrects it: qs set '%s' --where CONDITION"
)
_TOO_LONG = "the name is too long: {!r} has more than {} characters; use a shorter one"
_GONE = "the queue of the name {!r} has been deleted and this subscription has ended; subscribe again"


class DurableNames:
    """Makes, finds and ends durable names.

    Ensures that the queue of a name exists before a member joins, so that the name misses no later message; and that a
    name whose queue is gone ends. Assumes that only the server stores names: the bus finds them again by the names of
    the queues there. This class must never remove the queue of a name: that would lose messages, and only a person can
    tell that nobody needs them any more.
    """

    def __init__(
        self,
        upstream: Upstream,
        feeds: Mapping[str, FanOut],
        feed_of: Callable[[str], FanOut],
        new_share: Callable[[DurableName], Share],
        *,
        opened: Callable[[Feed], None],
        ended: Callable[[Feed, ErrorCode, str], None],
    ) -> None:
        """feeds: queue -> feed; feed_of: returns the feed of a queue, and makes one if there is none; new_share: makes
        the feed of a name; opened: called with the feed of each new name; ended: called with the feed of a name that
        has ended, the error, and its text."""
        self._upstream = upstream
        self._feeds = feeds
        self._feed_of = feed_of
        self._opened = opened
        self._ended = ended
        self._new_share = new_share
        self.lock = trio.Lock()
        """Held while a name is made, and while names are compared with the queues that are there: a name whose queue is
        just being made must not be taken for one whose queue has been deleted."""

    async def share(self, feed: FanOut, name: str, rights: Rights, where: str | None = None) -> Share:
        """Returns the feed of a durable name, and makes the name if it is new. The name's queue exists then, so the
        name misses no later message. Waits for the server. Raises RefusedError.

        rights: the rights of the client that subscribes. The client gets the name of another principal only if it may
        use that name, otherwise its own name. where: the condition that the client asks for, None for every message; a
        name that is there must have the same.
        """
        return await self.ensure(lambda: _find(feed, name, rights), where)

    async def ensure(self, find: Callable[[], DurableName], where: str | None) -> Share:
        """Does what `share` does, for the name that `find` returns."""
        while True:
            await self._upstream.connected.wait()
            try:
                async with self.lock:
                    name = find()
                    # Also for a known name: while it has no members, the bus is not told that its queue was deleted.
                    share = self.add(name, await self.make(queue_of(name), name.qid, where))
            except ServerUnavailable:
                # `connected` may still be set: the upstream has not seen yet that the connection has ended.
                await trio.lowlevel.checkpoint()
            except ServerError as error:
                raise RefusedError(kind_of(error), f"the queue for the name cannot be created: {error}") from None
            else:
                _check_condition(share, where)
                return share

    async def make(self, qid: str, of: str | None, where: str | None) -> str | None:
        """Makes the queue of a name if there is none, or the queue of a pattern. Returns the condition that the queue
        has, which is another one than `where` only if the queue was there. Raises RefusedError if the queue's name
        would be too long, ServerError, ServerUnavailable.

        of: the queue from which a new one copies the options about unhandled messages, order and pace; None for a
        pattern, whose queue has no messages.
        """
        if len(qid) > QID:
            raise RefusedError(errors.BAD_REQUEST, _TOO_LONG.format(qid, QID))
        while True:
            try:
                return (await self._upstream.call(policy_calls.queue_options(qid))).where
            except NotFound:
                policy = {} if of is None else await self._policy_of(of)
                with contextlib.suppress(Conflict):  # somebody has just made it, perhaps with another condition
                    await self._upstream.call(calls.new_queue(qid, where=where, **policy))
                    return where

    async def _policy_of(self, qid: str) -> dict[str, Any]:
        """Returns the options that a name copies from its queue; none if the bus may not see them."""
        try:
            options = await self._upstream.call(policy_calls.queue_options(qid))
        except (NotFound, Unauthorized, Forbidden, NotImplementedByServer) as error:
            _logger.info("names of %r take over no options: the bus may not see them: %s", qid, error)
            return {}
        copied = {name: getattr(options, name) for name in ("visibility", "retention", *_OF_STORAGE)}
        # A dead-letter queue has the storage of its queue, and not every storage has the other options.
        needs_storage = any(copied[name] for name in _OF_STORAGE)
        return {**copied, "storage": options.storage if needs_storage else None}

    def add(self, name: DurableName, where: str | None = None) -> Share:
        """Returns the feed of a name that has a queue on the server, and makes the feed if there is none. where: the
        condition that the queue has."""
        feed = self._feed_of(name.qid)
        share = feed.names.get(name)
        is_new = not isinstance(share, Share)
        if not isinstance(share, Share):
            share = self._new_share(name)
        elif share.where == where:
            return share
        condition, share.where, share.fault = None, where, ""
        if where is not None:
            try:
                condition = Condition(where)
            except BadCondition as error:
                share.fault = str(error)
                _logger.error(_UNREADABLE, name.name, name.qid, where, error, share.qid)
        feed.add_name(name, share, condition)
        self._upstream.sync(feed)
        if is_new:
            self._opened(share)
        return share

    def of(self, qid: str) -> Iterable[DurableName]:
        """Returns the names of a queue."""
        return self._feeds[qid].names if qid in self._feeds else ()

    def known(self) -> set[DurableName]:
        """Returns all names that have a feed."""
        return {name for feed in self._feeds.values() for name in feed.names}

    async def compare(self, known: set[DurableName], existing: Iterable[str], monitored: Container[str]) -> None:
        """Adds the names whose queues exist, and ends the names whose queues do not. Call this with the lock held.
        Raises ServerError, ServerUnavailable.

        known: the names that were known before `existing` was requested; monitored: the queues whose names are added.
        """
        found = names_in(existing)
        await self.find(found, monitored)
        for name in known.difference(found):
            self._drop(name)

    async def find(self, found: Iterable[DurableName], monitored: Container[str]) -> None:
        """Adds names whose queues exist, with the conditions that these have. Raises ServerError, ServerUnavailable.

        found: the names; monitored: the queues whose names are added.
        """
        known = self.known()
        for name in found:
            if name.qid in monitored and name not in known:
                with contextlib.suppress(NotFound):  # it has just been deleted
                    self.add(name, await self.where(queue_of(name)))

    async def where(self, qid: str) -> str | None:
        """Returns the condition that the queue of a name or of a pattern has. Raises NotFound, ServerUnavailable."""
        try:
            return (await self._upstream.call(policy_calls.queue_options(qid))).where
        except NotFound:
            raise
        except ServerError as error:  # rather than lose a message that matches
            _logger.warning("%r gets every message: the bus cannot see its condition: %s", qid, error)
            return None

    def _drop(self, name: DurableName) -> None:
        share = self._feeds[name.qid].remove_name(name) if name.qid in self._feeds else None
        if share is not None:
            _logger.warning(
                "the name %r of the queue %r has ended: its own queue has been deleted", name.name, name.qid
            )
            self._ended(share, errors.NOT_FOUND, _GONE.format(name.name))

    def end(self, share: Share) -> None:
        """Ends a name after the server has said that the name's queue is gone."""
        feed = self._feeds.get(share.label)
        if feed is not None and feed.names.get(share.name) is share:
            feed.remove_name(share.name)
        self._ended(share, errors.NOT_FOUND, _GONE.format(share.name.name))

    def forget(self, feed: FanOut) -> list[Feed]:
        """Removes the names of a queue that is gone, and returns their feeds. If a client later subscribes to a new
        queue of the same name, the durable names are found again by their own queues."""
        shares = [share for name in list(feed.names) if (share := feed.remove_name(name)) is not None]
        feed.not_copied(self._upstream.copies.discard(feed))
        return shares


def _find(feed: FanOut, name: str, rights: Rights) -> DurableName:
    """Finds the durable name that a client means: its own name, otherwise another principal's name that the client may
    use, otherwise a new name of its own."""
    own = DurableName(feed.label, name, rights.owner)
    usable = [each for each in feed.names if each.name == name and rights.may_use(each.owner)]
    return own if own in usable or not usable else min(usable, key=lambda each: each.owner or "")


def _check_condition(share: Share, where: str | None) -> None:
    """Checks that a name has the condition that a client asks for. Raises RefusedError."""
    if share.fault:
        has = f"a condition that is not valid, {share.where!r}: {share.fault}"
    elif share.where != where:
        has = "no condition" if share.where is None else f"the condition {share.where!r}"
    else:
        return
    raise RefusedError(errors.CONFLICT, _ANOTHER.format(share.name.name, share.name.qid, has, share.qid))


def kind_of(error: ServerError) -> ErrorCode:
    if isinstance(error, BadRequest):
        return errors.BAD_REQUEST
    if error.code == errors.UNAVAILABLE.code:
        return errors.UNAVAILABLE  # making a queue may be repeated: the subscriber tries again
    return errors.FORBIDDEN if isinstance(error, (Unauthorized, Forbidden)) else errors.INTERNAL
