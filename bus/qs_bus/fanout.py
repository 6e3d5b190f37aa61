"""A feed that gives each message to every member."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from .feeds import PREFETCH, Feed, ServerRequests
from .names import DurableName
from .records import Member, Record, Release
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
        self._awaited: dict[int, dict[Member, None]] = {}
        """Messages that were released on the server, and the members that wait for them to come again."""

    @property
    def wanted(self) -> bool:
        return not (self.expected or self._stopped) and bool(self.members or self.names)

    def _distribute(self, record: Record) -> None:
        record.waiting = len(self.members) + bool(self.names)
        if not record.waiting:
            self._settle(record)
            return
        if self.names:
            self._copies.add(self, record.mid)
        _offer(record, self.members)
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

    # -- what the server sends again, because it counts how often

    def _nack(self, record: Record, member: Member, delay: float | None, *, counts: bool) -> None:
        """Releases the message on the server, once for all members that have released it until it comes again."""
        awaiting = self._awaited.setdefault(record.mid, {})
        if not awaiting:
            release = Release(record.mid, record.receives, delay, counts, awaited=True, reason=record.reason)
            self._upstream.releases.add(self, release)
        awaiting[member] = None

    def _come_again(self, record: Record, payload: bytes) -> None:
        members = self._awaited.pop(record.mid, None)
        if members:
            in_memory = record.payload is not None
            if not in_memory:
                record.payload = payload
            _offer(record, members)
            if not in_memory:
                self.keep_payload(record)

    def awaits(self, mid: int) -> bool:
        return mid in self._awaited

    def missing(self, mid: int) -> None:
        """Gives up a message that has become a dead letter. Members that have it and did not release it may still
        handle it."""
        for _ in self._awaited.pop(mid, ()):
            self._stop_awaiting(mid)

    def leave(self, member: Member) -> None:
        super().leave(member)
        for mid, members in list(self._awaited.items()):
            if member in members:
                del members[member]
                if not members:
                    del self._awaited[mid]
                self._stop_awaiting(mid)

    def _stop_awaiting(self, mid: int) -> None:
        """Counts that a member does not wait for a message any more. The server has it, or knows why it has not."""
        record = self.records[mid]
        if record.waiting > 1 or record.handled:
            self._count_down(record)
        else:
            record.done = True
            del self.records[mid]

    def _lost(self, record: Record) -> None:
        for member in self.members:
            if member.drop_held(record):
                self.release_payload(record)
                self._count_down(record)

    def _resume(self) -> None:
        for member in self.members:
            if member.blocked:
                member.pump()


def _offer(record: Record, members: Iterable[Member]) -> None:
    """Gives members a message whose payload is in memory. Those with the same form get the same document."""
    documents: dict[tuple[str | None, bool], bytes] = {}
    for member in members:
        form = member.form
        document = documents.get(form)
        if document is None:
            document = documents[form] = record.document(*form)
        member.offer(record, document)
