"""A feed whose messages go to every member."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from .feeds import PREFETCH, Feed, ServerRequests
from .records import Member, Record
from .retry_queue import RetryQueue
from .share import Share


class CopyRequests(ServerRequests, Protocol):
    """What a fan-out asks of the queue server, beyond what every feed does. `Upstream` does it."""

    @property
    def copies(self) -> RetryQueue[FanOut, int]:
        """Ids of messages to store in the queues of the feed's names."""


class FanOut(Feed):
    """Gives each message to every member, and stores it in the queue of every name."""

    def __init__(self, qid: str, upstream: CopyRequests, memory: int, hold: int) -> None:
        """hold: messages that may be held up by slow subscribers while others go on."""
        super().__init__(qid, qid, upstream, memory)
        self._copies = upstream.copies
        self._hold = hold
        self.names: dict[str, Share] = {}
        self.coming = 0
        """Acknowledging members that join as soon as the server has noted that they are here."""
        self.joining = 0
        """Members that are on the way to join, also those of a name."""
        self.expected = 0
        """Acknowledging members that were here before the bus was killed, and that the feed waits for."""

    @property
    def wanted(self) -> bool:
        return not self.expected and bool(self.members or self.names)

    def _distribute(self, record: Record) -> None:
        record.waiting = len(self.members) + bool(self.names)
        if not record.waiting:
            self._settle(record)
            return
        if self.names:
            self._copies.add(self, record.mid)
        documents: dict[tuple[str | None, bool], bytes] = {}
        for member in self.members:
            form = member.form
            document = documents.get(form)
            if document is None:
                document = documents[form] = record.document(*form)
            member.offer(record, document)
        self.keep(record)

    @property
    def asked_for(self) -> bool:
        """Whether a member or a name gets the messages, or is about to."""
        return bool(self.members or self.names or self.joining or self.expected)

    @property
    def unused(self) -> bool:
        """Whether the feed has no member, no name and no message."""
        return not (self.asked_for or self.records)

    @property
    def acknowledging(self) -> int:
        """How many members acknowledge."""
        return sum(member.ack for member in self.members)

    def copied(self, mids: Iterable[int]) -> None:
        """Counts messages as handled that are in the queues of the names now."""
        for mid in mids:
            record = self.records.get(mid)
            if record is not None and not record.done:
                self.handled(record)

    def not_copied(self, mids: Iterable[int]) -> None:
        """Lets go of messages for the names, because there is no name any more."""
        for mid in mids:
            record = self.records.get(mid)
            if record is not None and not record.done:
                self.let_go(record)

    def _adjust(self) -> None:
        held = len(self.records)
        if held > self.prefetch * 3 // 4:
            # Messages that slow members hold up must not be in the way of the others; but if all are slow, the prefetch
            # stays as it is.
            if self.prefetch < self._hold and (self.names or not all(member.blocked for member in self.members)):
                self.prefetch = min(self.prefetch * 2, self._hold + PREFETCH)
                self._upstream.sync(self)
        elif self.prefetch > PREFETCH and held < self.prefetch // 8:
            self.prefetch = max(self.prefetch // 2, PREFETCH)
            self._upstream.sync(self)

    def on_room(self, member: Member) -> None:
        """Changes the prefetch if the member was slow and is not any more. The member itself sends what it has held."""
        if not member.blocked:
            self._adjust()

    def resend(self, record: Record, member: Member) -> None:
        member.hold(record)
        member.pump()

    def _lost(self, record: Record) -> None:
        for member in self.members:
            if member.drop_held(record):
                self.unkeep(record)
                self._less(record)

    def _resume(self) -> None:
        for member in self.members:
            if member.blocked:
                member.pump()
