"""Implements durable names: the names of their queues, the feed of one name, and all names of one bus.

The messages for a durable name are copied to a queue of its own. The name of that queue contains the owner, so a
durable name still belongs to its principal after the bus and the server have been started again.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
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
from .feeds import PREFETCH, DeliveryBatch, DurableName, Feed, HeldMessage, Member, ServerRequests
from .rights import RefusedError, Rights

if TYPE_CHECKING:
    from .upstream import Upstream

_logger = logging.getLogger(__name__)
_PREFIX = "bus:"
"""The beginning of the names of all queues that a bus makes: docs/bus.md has rights of the bus to `bus:*`."""
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
_GONE = "the queue of the name {!r} has been deleted and this subscription has ended; subscribe again"


def queue_of(name: DurableName) -> str:
    """Returns the name of the queue that stores messages for a durable name."""
    parts = (name.qid, name.name) if name.owner is None else (name.qid, name.owner, name.name)
    return _PREFIX + ":".join(map(_quoted, parts))


def name_in(qid: str) -> DurableName | None:
    """Returns the durable name for which a queue stores messages, or None for any other queue."""
    parts = [_unquoted(part) for part in qid.removeprefix(_PREFIX).split(":")]
    if not qid.startswith(_PREFIX) or not all(parts):
        return None
    if len(parts) == 2:
        return DurableName(parts[0], parts[1])
    return DurableName(parts[0], parts[2], parts[1]) if len(parts) == 3 else None


def counts_queue_of(host: str, port: int) -> str:
    """Returns the name of the queue in which the bus at this address counts its subscribers. The name has an empty
    first part, so no durable name has the same queue."""
    return f"{_PREFIX}:{_quoted(host)}:{port}"


def is_of_bus(qid: str) -> bool:
    """Tells whether the queue belongs to a bus, for a durable name or for counts of subscribers."""
    return qid.startswith(_PREFIX)


def _quoted(text: str) -> str:
    return text.replace("%", "%25").replace(":", "%3A")


def _unquoted(text: str) -> str:
    return text.replace("%3A", ":").replace("%25", "%")


class Share(Feed):
    """Gives each message of a durable name to one member, round robin, and to another member if the first one leaves.

    Ensures, beside what a feed does:
    1. A message is with one member at a time, and a member gets a message only if it can be sent one now.
    2. The server delivers no more messages than the members together may hold, plus the delayed ones.
    3. Messages that a member left behind go to other members before any newer ones, in the order of their ids.

    Assumes that only the bus takes messages from the queue of a name. A share must not keep messages when the last
    member has left: they go back to the queue, for another bus or for a member that comes later.
    """

    def __init__(self, name: DurableName, upstream: ServerRequests, memory: int) -> None:
        """memory: see `Feed`."""
        super().__init__(queue_of(name), name.qid, upstream, memory)
        self.name = name
        self.where: str | None = None
        """The condition of the name, as the options of its queue have it."""
        self.fault = ""
        """What is wrong with the condition; empty if nothing is. The queue gets every message then."""
        self._backlog: deque[HeldMessage] = deque()
        self._delayed = 0

    @property
    def wanted(self) -> bool:
        return bool(self.members) and not self._stopped

    def join(self, member: Member) -> None:
        self._set_prefetch(member.prefetch)  # before the feed is synchronized, so that one request says all
        super().join(member)
        self._resume()  # messages may have waited for a member that can take them

    def leave(self, member: Member) -> None:
        self._set_prefetch(-member.prefetch)
        super().leave(member)
        if not self.members:
            # The members' own messages follow by `not_handled`, which releases them now that no member is left.
            backlog, self._backlog = self._backlog, deque()
            for message in backlog:
                self.release_payload(message)
                self._count_down(message)

    def _set_prefetch(self, more: int) -> None:
        # No more than the members can hold: other messages would wait here, in flight and of use to nobody.
        wanted = sum(member.prefetch for member in self.members) + more
        self.prefetch = max(min(wanted, PREFETCH), 1) + self._delayed

    def count_delayed(self, more: int) -> None:
        """Changes the number of delayed messages, and raises the prefetch by that number, because delayed messages do
        not count against the members' prefetch."""
        self._delayed += more
        self._set_prefetch(0)
        self._upstream.sync(self)

    def _distribute(self, messages: list[HeldMessage]) -> None:
        for message in messages:
            message.unhandled = 1
            if not self.members:
                self._count_down(message)
        if not self.members:
            return
        sent = 0 if self._backlog else self._send_in_turn(messages)  # nothing overtakes the backlog
        for message in messages[:sent]:
            self.keep_payload(message)
        for message in messages[sent:]:
            self._backlog.append(message)
            message.awaiting_room += 1
            self.keep_payload(message)
        if 0 < sent < len(messages):
            self._resume()  # the sockets may have taken all that was sent, so that there is room again

    def _send_in_turn(self, messages: Iterable[HeldMessage]) -> int:
        """Sends messages whose payloads are in memory to the members in turn, as long as one has room: each message to
        the member that has waited longest. What a member gets is sent together. Returns the number of messages sent."""
        rooms: dict[Member, list[int]] = {}  # messages and bytes; of those members whose turn has come
        shares: dict[Member, tuple[list[HeldMessage], list[bytes]]] = {}
        sent = 0
        for message in messages:
            for member in self.members:
                room = rooms.get(member) or rooms.setdefault(member, list(member.room))
                if room[0] > 0 and room[1] > 0:
                    break
            else:
                break
            if message.payload is None:
                break
            document = message.document(*member.form)
            room[0] -= 1
            room[1] -= len(document)
            share, documents = shares.setdefault(member, ([], []))
            share.append(message)
            documents.append(document)
            if len(self.members) > 1:  # the last in the order gets the next turn last
                del self.members[member]
                self.members[member] = None
            sent += 1
        for member, (share, documents) in shares.items():
            batch = DeliveryBatch(share, {member.form: documents})
            member.send(batch)
            batch.report()
        return sent

    def _release_for(self, message: HeldMessage, member: Member, delay: float | None, *, counts: bool) -> None:
        self._release(message, delay, counts=counts)

    def not_handled(self, message: HeldMessage) -> None:
        # If the server counts receives, it has to be told of a failed one, and sends the message again.
        if not self.members or (self.counted and message.delivered):
            super().not_handled(message)
            return
        # In front: it is older than the backlog. Its payload was dropped when it was sent, and is fetched again.
        message.awaiting_room += 1
        self._backlog.appendleft(message)

    def resend(self, message: HeldMessage, member: Member) -> None:
        self.not_handled(message)
        self._resume()

    def on_room(self, member: Member) -> None:
        self._resume()

    def _resume(self) -> None:
        while self._backlog:
            sent = self._send_in_turn(self._backlog)
            for _ in range(sent):
                self.release_payload(self._backlog.popleft())
            if not sent:
                if self._backlog[0].payload is None and any(member.room[0] > 0 for member in self.members):
                    self.fetch(self._backlog)
                return

    def _lost(self, message: HeldMessage) -> None:
        self._backlog.remove(message)
        self.release_payload(message)
        self._count_down(message)


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
        ended: Callable[[Feed, ErrorCode, str], None],
    ) -> None:
        """feeds: queue -> feed; feed_of: returns the feed of a queue, and makes one if there is none; new_share: makes
        the feed of a name; ended: called with the feed of a name that has ended, the error, and its text."""
        self._upstream = upstream
        self._feeds = feeds
        self._feed_of = feed_of
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
        while True:
            await self._upstream.connected.wait()
            try:
                async with self.lock:
                    found = _find(feed, name, rights)
                    # Also for a known name: while it has no members, the bus is not told that its queue was deleted.
                    share = self.add(found, await self._make(_checked(found), feed.qid, where))
            except ServerUnavailable:
                # `connected` may still be set: the upstream has not seen yet that the connection has ended.
                await trio.lowlevel.checkpoint()
            except ServerError as error:
                raise RefusedError(_kind(error), f"the queue for the name cannot be created: {error}") from None
            else:
                _check_condition(share, where)
                return share

    async def _make(self, qid: str, of: str, where: str | None) -> str | None:
        """Makes the queue of a name if there is none. The new queue copies the options about unhandled messages, order
        and pace from the queue `of`. Returns the condition that the queue has, which is another one than `where` only
        if the queue was there. Raises ServerError, ServerUnavailable."""
        while True:
            try:
                return (await self._upstream.call(policy_calls.queue_options(qid))).where
            except NotFound:
                policy = await self._policy_of(of)
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
        return share

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
                    self.add(name, await self._where(queue_of(name)))

    async def _where(self, qid: str) -> str | None:
        """Returns the condition that the queue of a name has."""
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


def names_in(existing: Iterable[str]) -> list[DurableName]:
    """Returns the durable names whose queues are among the existing ones."""
    return [name for name in map(name_in, existing) if name is not None]


def _find(feed: FanOut, name: str, rights: Rights) -> DurableName:
    """Finds the durable name that a client means: its own name, otherwise another principal's name that the client may
    use, otherwise a new name of its own."""
    own = DurableName(feed.label, name, rights.owner)
    usable = [each for each in feed.names if each.name == name and rights.may_use(each.owner)]
    return own if own in usable or not usable else min(usable, key=lambda each: each.owner or "")


def _checked(name: DurableName) -> str:
    """Returns the queue of a name. Raises RefusedError if the queue's name would be too long."""
    qid = queue_of(name)
    if len(qid) > QID:
        raise RefusedError(
            errors.BAD_REQUEST, f"the name is too long: {qid!r} has more than {QID} characters; use a shorter one"
        )
    return qid


def _check_condition(share: Share, where: str | None) -> None:
    """Checks that a name has the condition that a client asks for. Raises RefusedError."""
    if share.fault:
        has = f"a condition that is not valid, {share.where!r}: {share.fault}"
    elif share.where != where:
        has = "no condition" if share.where is None else f"the condition {share.where!r}"
    else:
        return
    raise RefusedError(errors.CONFLICT, _ANOTHER.format(share.name.name, share.name.qid, has, share.qid))


def _kind(error: ServerError) -> ErrorCode:
    if isinstance(error, BadRequest):
        return errors.BAD_REQUEST
    if error.code == errors.UNAVAILABLE.code:
        return errors.UNAVAILABLE  # making a queue may be repeated: the subscriber tries again
    return errors.FORBIDDEN if isinstance(error, (Unauthorized, Forbidden)) else errors.INTERNAL
