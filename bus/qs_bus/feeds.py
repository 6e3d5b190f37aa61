"""A queue of the server and the subscriptions that get its messages. Every member gets each message (`FanOut`), or one
member does (`Share`); this module has what both have in common.

A message is in the bus's hands from its delivery by the server until every member that is to get it has handled it;
then the bus deletes it on the server. If those members have all gone and none has handled it, the bus gives it back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Protocol

from qs_schemas import GetMessage

from .records import Member, Record
from .retry_queue import RetryQueue

PREFETCH = 1000
"""Messages of one queue that the bus has in hand while none of them is held up by a slow subscriber."""
_FETCHED = 64
"""Messages that are fetched again at a time."""


class ServerRequests(Protocol):
    """What feeds ask of the queue server. `Upstream` does it."""

    @property
    def deletes(self) -> RetryQueue[Feed, int]:
        """Ids of messages to delete."""

    @property
    def releases(self) -> RetryQueue[Feed, tuple[int, int | None]]:
        """Messages to give back: id and count of receives."""

    @property
    def fetches(self) -> RetryQueue[Feed, Record]:
        """Records whose payloads are to be fetched again."""

    def sync(self, feed: Feed) -> None:
        """Subscribes, unsubscribes, or changes the prefetch, as the feed wants it now."""


class Feed(ABC):
    """One queue of the server, with its members and the messages that are in hand."""

    def __init__(self, qid: str, label: str, upstream: ServerRequests, memory: int) -> None:
        """qid: the queue on the server; label: the queue that its subscribers know, which for a name is another;
        memory: bytes of payload that may be kept for members that have no room; more is fetched again later."""
        self.qid = qid
        self.label = label
        self.members: dict[Member, None] = {}
        """In the order in which they joined, or (Share) by whose turn is next."""
        self.records: dict[int, Record] = {}
        self.prefetch = PREFETCH
        self._upstream = upstream
        self._memory = memory
        self._kept = 0

    @property
    @abstractmethod
    def wanted(self) -> bool:
        """Whether the server is to send messages."""

    @abstractmethod
    def _distribute(self, record: Record) -> None:
        """Gives a new message to the members that are to get it."""

    # -- from the server

    def take(self, message: GetMessage) -> None:
        """Takes a message that the server has delivered."""
        mid = message.mid or 0
        known = self.records.get(mid)
        if known is not None:
            # It was in our hands before the connection broke. The members that have it keep it.
            known.receives = message.receives
            if known.done:
                self._upstream.deletes.add(self, mid)
            return
        payload = message.payload.encode() if isinstance(message.payload, str) else message.payload or b""
        record = Record(self, mid, message.receives, message.pushed_at, payload, len(payload))
        self.records[mid] = record
        self._distribute(record)
        self._adjust()

    def deleted(self, mids: Iterable[int]) -> None:
        """Forgets messages that the server has deleted."""
        for mid in mids:
            self.records.pop(mid, None)
        self._adjust()

    def _adjust(self) -> None:  # noqa: B027 - only where slow members can be in the way of others
        """Changes the prefetch, if the members have become slower or faster."""

    # -- from members

    def join(self, member: Member) -> None:
        """Adds a member, which gets the messages that come from now on."""
        self.members[member] = None
        member.feeds.append(self)
        self._upstream.sync(self)
        self._adjust()

    def leave(self, member: Member) -> None:
        """Removes a member, which gets no more messages."""
        del self.members[member]
        self._upstream.sync(self)

    def handled(self, record: Record) -> None:
        """Counts that a member has handled a message."""
        record.handled = True
        self._less(record)

    def let_go(self, record: Record) -> None:
        """Counts that a member has gone without handling a message, or will not handle it."""
        self._less(record)

    def doubt(self, record: Record) -> None:
        """Counts that a member may have got a message by mistake. The feed waits for that member only while no other
        has handled the message."""
        record.doubtful += 1
        self._settle_if_over(record)

    def _less(self, record: Record) -> None:
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
            self.records.pop(record.mid, None)
            self._upstream.releases.add(self, (record.mid, record.receives))

    def count_delayed(self, more: int) -> None:  # noqa: B027 - only where that is in the way of others
        """Counts messages, more or less than before, that were released with a delay that has not passed yet."""

    @abstractmethod
    def on_room(self, member: Member) -> None:
        """Goes on when a member has room for a message, or has left some to others."""

    @abstractmethod
    def resend(self, record: Record, member: Member) -> None:
        """Delivers a message that a member has released again: to that member or, in a share, to any."""

    # -- payloads of messages that wait for room

    def keep(self, record: Record) -> None:
        """Keeps the payload in memory if a member waits for room and the bound allows; else forgets it."""
        if record.keepers and self._kept + record.size <= self._memory:
            self._kept += record.size
        else:
            record.payload = None

    def unkeep(self, record: Record) -> None:
        """Counts that a member which waited for room needs the payload no longer."""
        record.keepers -= 1
        if not record.keepers and record.payload is not None:
            record.payload = None
            self._kept -= record.size

    def fetch(self, waiting: Iterable[Record]) -> None:
        """Asks the server again for the payloads of the first of these records, which may be of other feeds too."""
        size = 0
        for count, record in enumerate(waiting):
            if record.payload is not None or count == _FETCHED or (count and size + record.size > self._memory // 2):
                return
            size += record.size
            record.feed.fetch_payload(record)

    def fetch_payload(self, record: Record) -> None:
        """Asks the server again for the payload of one record of this feed, unless that is under way."""
        if not record.fetching:
            record.fetching = True
            self._upstream.fetches.add(self, record)

    def fetched(self, record: Record, payload: bytes | None) -> None:
        """Takes the payload that the server was asked for. payload: None when the message does not exist any more, or
        is in the hands of other consumers."""
        record.fetching = False
        if record.done or not record.keepers:
            return
        if payload is None:
            self._lost(record)
        elif record.payload is None:
            record.payload = payload
            self._kept += record.size
        self._resume()

    @abstractmethod
    def _lost(self, record: Record) -> None:
        """Takes back a message that waits for room and does not exist any more."""

    @abstractmethod
    def _resume(self) -> None:
        """Sends the messages that wait, to members that have room."""
