"""A queue of the server and those who get its messages: what is the same whether all of them do, or one of them.

A message is in the bus's hands from its delivery by the server until everybody who is to get it has handled it; then it
is deleted on the server. If those who were to get it have all gone and none has handled it, it is given back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from qs_schemas import GetMessage

from .records import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .subscription import Subscription
    from .upstream import Upstream

PREFETCH = 1000
"""Messages of one queue that the bus has in hand while none of them is held up by a slow subscriber."""
_FETCHED = 64
"""Messages that are fetched again at a time."""


class Feed(ABC):
    """qid: the queue on the server; label: the queue that its subscribers know, which for a name is another."""

    def __init__(self, qid: str, label: str, upstream: Upstream, memory: int) -> None:
        """memory: bytes of payload that may be kept for those who have no room; more is fetched again later."""
        self.qid = qid
        self.label = label
        self.members: dict[Subscription, None] = {}
        """In the order in which they came, or (Share) whose turn is next."""
        self.records: dict[int, Record] = {}
        self.prefetch = PREFETCH
        self._upstream = upstream
        self._memory = memory
        self._kept = 0

    @property
    @abstractmethod
    def wanted(self) -> bool:
        """Whether messages are wanted from the server."""

    @abstractmethod
    def _distribute(self, record: Record) -> None:
        """Gives a new message to whom it belongs."""

    # -- from the server

    def take(self, message: GetMessage) -> None:
        """A message has come."""
        mid = message.mid or 0
        known = self.records.get(mid)
        if known is not None:
            # It was in our hands before the connection broke. Who has it keeps it.
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
        """The server has deleted them."""
        for mid in mids:
            self.records.pop(mid, None)
        self._adjust()

    def _adjust(self) -> None:  # noqa: B027 - only where slow ones can be in the way of others
        """Lets the server send more, or less, than before."""

    # -- from subscribers

    def join(self, member: Subscription) -> None:
        """One more gets the messages that come from now on."""
        self.members[member] = None
        member.feeds.append(self)
        self._upstream.sync(self)
        self._adjust()

    def leave(self, member: Subscription) -> None:
        """It gets no more."""
        del self.members[member]
        self._upstream.sync(self)

    def handled(self, record: Record) -> None:
        """One of those who got it has handled it."""
        record.handled = True
        self._less(record)

    def let_go(self, record: Record) -> None:
        """One of those who got it has gone, or will not handle it."""
        self._less(record)

    def doubt(self, record: Record) -> None:
        """One of those who got it may not have been to get it, and is waited for only if nobody else has handled it."""
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

    def delays(self, more: int) -> None:  # noqa: B027 - only where that is in the way of others
        """So many messages more, or less, wait until it is later."""

    @abstractmethod
    def has_room(self, member: Subscription) -> None:
        """A member can be sent something, or has left something to others."""

    @abstractmethod
    def resend(self, record: Record, member: Subscription) -> None:
        """A member has given it back, and wants it again."""

    # -- payloads of those that have to wait

    def keep(self, record: Record) -> None:
        """Keeps the payload in memory if somebody waits for room and the bound allows; else forgets it."""
        if record.keepers and self._kept + record.size <= self._memory:
            self._kept += record.size
        else:
            record.payload = None

    def unkeep(self, record: Record) -> None:
        """One of those who waited for room does not any more."""
        record.keepers -= 1
        if not record.keepers and record.payload is not None:
            record.payload = None
            self._kept -= record.size

    def fetch(self, waiting: Iterable[Record]) -> None:
        """Asks the server for the payloads of the first of these, once more."""
        size = 0
        for count, record in enumerate(waiting):
            if record.payload is not None or count == _FETCHED or (count and size + record.size > self._memory // 2):
                return
            size += record.size
            if not record.fetching:
                record.fetching = True
                record.feed._upstream.fetches.add(record.feed, record)

    def fetched(self, record: Record, payload: bytes | None) -> None:
        """The server has answered. None: the message is not there any more, or in the hands of others."""
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
        """A message that waits for room is gone."""

    @abstractmethod
    def _resume(self) -> None:
        """Goes on with what waits for room."""
