"""A feed that gives each message to every member."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from .feeds import PREFETCH, Feed, ServerRequests
from .names import DurableName
from .records import Member, Record
from .retry_queue import RetryQueue


class CopyRequests(ServerRequests, Protocol):
    """The requests of a fan-out to the queue server. `Upstream` implements it."""

    @property
    def copies(self) -> RetryQueue[FanOut, int]:
        """Ids of messages to copy to the queues of the feed's durable names."""


class FanOut(Feed):
    """Gives each message to every member, and copies it to the queue of every durable name."""

    def __init__(self, qid: str, upstream: CopyRequests, memory: int, hold: int) -> None:
        """hold: how many messages slow subscribers may hold up while others go on."""
        super().__init__(qid, qid, upstream, memory)
        self._copies = upstream.copies
        self._hold = hold
        self.names: dict[DurableName, Feed] = {}
        self.coming = 0
        """Acknowledging members that join as soon as the server has noted them."""
        self.joining = 0
        """Members that are about to join, also under a name."""
        self.expected = 0
        """Acknowledging members from before the bus was killed, for whom the feed waits."""

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
        self.keep_payload(record)

    @property
    def asked_for(self) -> bool:
        """Tells whether a member or a name gets the messages, or is about to."""
        return bool(self.members or self.names or self.joining or self.expected)

    @property
    def unused(self) -> bool:
        """Tells whether the feed has no member, no name and no message."""
        return not (self.asked_for or self.records)

    @property
    def acknowledging(self) -> int:
        """The number of members that acknowledge."""
        return sum(member.ack for member in self.members)

    def copied(self, mids: Iterable[int]) -> None:
        """Counts messages as handled by the names, whose queues have them now."""
        for mid in mids:
            record = self.records.get(mid)
            if record is not None and not record.done:
                self.handled(record)

    def not_copied(self, mids: Iterable[int]) -> None:
        """Stops waiting for the copies of messages, because no name is left."""
        for mid in mids:
            record = self.records.get(mid)
            if record is not None and not record.done:
                self.let_go(record)

    def _adjust(self) -> None:
        held = len(self.records)
        if held > self.prefetch * 3 // 4:
            # Messages that slow members hold up must not block the others. If all are slow, there is no one to block.
            if self.prefetch < self._hold and (self.names or not all(member.blocked for member in self.members)):
                self.prefetch = min(self.prefetch * 2, self._hold + PREFETCH)
                self._upstream.sync(self)
        elif self.prefetch > PREFETCH and held < self.prefetch // 8:
            self.prefetch = max(self.prefetch // 2, PREFETCH)
            self._upstream.sync(self)

    def on_room(self, member: Member) -> None:
        """Adjusts the prefetch when a slow member has caught up. The member sends its held messages itself."""
        if not member.blocked:
            self._adjust()

    def resend(self, record: Record, member: Member) -> None:
        member.hold(record)
        member.pump()

    def _lost(self, record: Record) -> None:
        for member in self.members:
            if member.drop_held(record):
                self.release_payload(record)
                self._count_down(record)

    def _resume(self) -> None:
        for member in self.members:
            if member.blocked:
                member.pump()
