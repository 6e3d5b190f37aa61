"""A queue of the server and the subscriptions that get its messages: every member gets each (`FanOut`), or one does
(`Share`). This module has what both share.

The bus holds a message from its delivery by the server until every member has handled it, and then deletes it on the
server. If all members leave without handling it, the bus releases it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Protocol

from qs_schemas import GetMessage

from .records import Member, Record, Release, origin_of
from .retry_queue import RetryQueue

PREFETCH = 1000
"""Messages of one queue that the bus holds while no slow subscriber holds any up."""
_FETCHED = 64
"""Messages whose payloads are fetched again at a time."""


class ServerRequests(Protocol):
    """The requests of a feed to the queue server. `Upstream` implements it."""

    @property
    def deletes(self) -> RetryQueue[Feed, int]:
        """Ids of messages to delete."""

    @property
    def releases(self) -> RetryQueue[Feed, Release]:
        """Messages to release."""

    @property
    def fetches(self) -> RetryQueue[Feed, Record]:
        """Records whose payloads are to be fetched again."""

    def sync(self, feed: Feed) -> None:
        """Subscribes, unsubscribes or changes the prefetch, as the feed needs it now."""

    def ask_policy(self, feed: Feed) -> None:
        """Asks the server whether it counts the receives of the feed's queue, see `Feed.counted`."""


class Feed(ABC):
    """One queue of the server, its members, and its messages that the bus holds. A `Source`."""

    def __init__(self, qid: str, label: str, upstream: ServerRequests, memory: int) -> None:
        """qid: the queue on the server; label: the queue that subscribers asked for, another one for a durable name;
        memory: bytes of payload to keep for members that have no room. More is fetched again later."""
        self.qid = qid
        self.label = label
        self.members: dict[Member, None] = {}
        """The members in the order in which they joined; in a `Share`, the next in turn comes first."""
        self.records: dict[int, Record] = {}
        self.prefetch = PREFETCH
        self.forbidden = ""
        """Why the server does not let the bus read the queue, as far as is known."""
        self.counted = False
        """True if the queue has `max-receives` or `backoff`: a message that a client has not handled goes back to the
        server, which counts that, and sends it again at its time or moves it to the dead-letter queue."""
        self.skipped = False
        """True if a message of the queue could not be read, and stays on the server."""
        self._stopped = False
        self._upstream = upstream
        self._memory = memory
        self._payload_bytes = 0

    @property
    @abstractmethod
    def wanted(self) -> bool:
        """Tells whether the server is to send messages."""

    @abstractmethod
    def _distribute(self, record: Record) -> None:
        """Gives a new message to the members."""

    # -- from the server

    def take(self, message: GetMessage) -> None:
        """Takes a message that the server has delivered."""
        mid = message.mid or 0
        existing = self.records.get(mid)
        payload = message.payload.encode() if isinstance(message.payload, str) else message.payload or b""
        if existing is not None:
            # The bus held it before the connection to the server broke. The members that have it keep it.
            existing.receives, existing.reason = message.receives, message.reason
            if existing.done:
                self._upstream.deletes.add(self, mid)
            else:
                self._come_again(existing, payload)
            return
        record = Record(self, mid, message.receives, message.pushed_at, payload, len(payload))
        record.origin, record.reason = origin_of(message), message.reason
        self.records[mid] = record
        self._distribute(record)
        self._adjust()

    def _come_again(self, record: Record, payload: bytes) -> None:  # noqa: B027 - only where members wait for that
        """Takes a message of which the feed has a record already."""

    def awaits(self, mid: int) -> bool:
        """Tells whether a member waits for a message that was released to come again."""
        return False

    def missing(self, mid: int) -> None:  # noqa: B027 - only where members wait for messages to come again
        """Gives up a message that was released and is not in the queue any more."""

    def deleted(self, mids: Iterable[int]) -> None:
        """Forgets messages that the server has deleted."""
        for mid in mids:
            self.records.pop(mid, None)
        self._adjust()

    def _adjust(self) -> None:  # noqa: B027 - only where slow members can be in the way of others
        """Adapts the prefetch to members that have become slower or faster."""

    # -- from members

    def join(self, member: Member) -> None:
        """Adds a member, which gets the messages that come from now on."""
        self.members[member] = None
        member.feeds.append(self)
        self._upstream.sync(self)
        self._adjust()

    def leave(self, member: Member) -> None:
        del self.members[member]
        self._upstream.sync(self)

    def handled(self, record: Record) -> None:
        record.handled = True
        self._count_down(record)

    def let_go(self, record: Record) -> None:
        self._count_down(record)

    def doubt(self, record: Record) -> None:
        """Counts that a member may have got a message by mistake. The feed waits for that member only until another one
        handles the message."""
        record.doubtful += 1
        self._settle_if_over(record)

    def _count_down(self, record: Record) -> None:
        record.waiting -= 1
        self._settle_if_over(record)

    def _settle_if_over(self, record: Record) -> None:
        if not record.done and record.waiting <= (record.doubtful if record.handled else 0):
            self._settle(record)

    def _settle(self, record: Record) -> None:
        record.done = True
        if record.handled:
            self._upstream.deletes.add(self, record.mid)
        else:
            self._give_back(record)

    def _give_back(self, record: Record, delay: float | None = None, *, counts: bool = True) -> None:
        """Releases a message on the server. One that no member has got does not count as received."""
        record.done = True
        self.records.pop(record.mid, None)
        counts = counts and (record.handed_out or not self.counted)
        release = Release(record.mid, record.receives, delay, counts, reason=record.reason)
        self._upstream.releases.add(self, release)

    def stop(self) -> None:
        """Has the server send nothing more. If it counts receives, gives back what no member has got: the end of the
        connection would count it."""
        self._stopped = True
        self._upstream.sync(self)
        for record in list(self.records.values()) if self.counted else ():
            if not (record.done or record.handed_out):
                self._give_back(record)

    def nack(self, record: Record, member: Member, delay: float | None, *, counts: bool) -> bool:
        if not self.counted:
            self._upstream.ask_policy(self)  # it may have been changed: then the next one is counted
            return False
        self._nack(record, member, delay, counts=counts)
        return True

    @abstractmethod
    def _nack(self, record: Record, member: Member, delay: float | None, *, counts: bool) -> None:
        """Has the server send a message again that a member has released."""

    def count_delayed(self, more: int) -> None:  # noqa: B027 - only where that is in the way of others
        """Adds to the number of messages that were released with a delay that has not passed yet. more: may be
        negative."""

    @abstractmethod
    def on_room(self, member: Member) -> None:
        """Continues after a member has got room for a message, or has left some to others."""

    @abstractmethod
    def resend(self, record: Record, member: Member) -> None:
        """Delivers a released message again: to the same member or, in a share, to any."""

    # -- payloads of messages that wait for room

    def keep_payload(self, record: Record) -> None:
        """Keeps the payload in memory if a member waits for room and the memory bound allows; otherwise drops it."""
        if record.keepers and self._payload_bytes + record.size <= self._memory:
            self._payload_bytes += record.size
        else:
            record.payload = None

    def release_payload(self, record: Record) -> None:
        record.keepers -= 1
        if not record.keepers and record.payload is not None:
            record.payload = None
            self._payload_bytes -= record.size

    def fetch(self, waiting: Iterable[Record]) -> None:
        size = 0
        for count, record in enumerate(waiting):
            if record.payload is not None or count == _FETCHED or (count and size + record.size > self._memory // 2):
                return
            size += record.size
            record.feed.fetch_payload(record)

    def fetch_payload(self, record: Record) -> None:
        if not record.fetching:
            record.fetching = True
            self._upstream.fetches.add(self, record)

    def fetched(self, record: Record, payload: bytes | None) -> None:
        """Takes a payload that was fetched again. payload: None when the message no longer exists or is in flight
        elsewhere."""
        record.fetching = False
        if record.done or not record.keepers:
            return
        if payload is None:
            self._lost(record)
        elif record.payload is None:
            record.payload = payload
            self._payload_bytes += record.size
        self._resume()

    @abstractmethod
    def _lost(self, record: Record) -> None:
        """Takes back a message that waits for room and no longer exists."""

    @abstractmethod
    def _resume(self) -> None:
        """Sends waiting messages to members that have room."""
