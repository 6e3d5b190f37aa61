"""A queue whose messages go to everybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .feeds import PREFETCH, Feed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .records import Record
    from .share import Share
    from .subscription import Subscription
    from .upstream import Upstream


class FanOut(Feed):
    """Each message goes to every member, and into the queue of every name."""

    def __init__(self, qid: str, upstream: Upstream, memory: int, hold: int) -> None:
        """hold: messages that may be held up by slow subscribers while others go on."""
        super().__init__(qid, qid, upstream, memory)
        self._hold = hold
        self.names: dict[str, Share] = {}
        self.coming = 0
        """Acknowledging members that join as soon as it is noted that they are here."""
        self.joining = 0
        """Everybody who is on the way to join, also a name."""
        self.expected = 0
        """Acknowledging members that are waited for, as they were here before the bus was killed."""

    @property
    def wanted(self) -> bool:
        return not self.expected and bool(self.members or self.names)

    def _distribute(self, record: Record) -> None:
        record.waiting = len(self.members) + bool(self.names)
        if not record.waiting:
            self._settle(record)
            return
        if self.names:
            self._upstream.copies.add(self, record.mid)
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
        """Whether somebody gets its messages, or is about to."""
        return bool(self.members or self.names or self.joining or self.expected)

    @property
    def unused(self) -> bool:
        """Whether nobody has anything to do with it."""
        return not (self.asked_for or self.records)

    @property
    def acknowledging(self) -> int:
        """How many members acknowledge."""
        return sum(member.ack for member in self.members)

    def copied(self, mids: Iterable[int]) -> None:
        """They are in the queues of the names."""
        for mid in mids:
            record = self.records.get(mid)
            if record is not None and not record.done:
                self.handled(record)

    def not_copied(self, mids: Iterable[int]) -> None:
        """There is no name any more that was to get them."""
        for mid in mids:
            record = self.records.get(mid)
            if record is not None and not record.done:
                self.let_go(record)

    def _adjust(self) -> None:
        held = len(self.records)
        if held > self.prefetch * 3 // 4:
            # What slow ones hold up must not be in the way of the others; but if all are slow, enough is enough.
            if self.prefetch < self._hold and (self.names or not all(member.blocked for member in self.members)):
                self.prefetch = min(self.prefetch * 2, self._hold + PREFETCH)
                self._upstream.sync(self)
        elif self.prefetch > PREFETCH and held < self.prefetch // 8:
            self.prefetch = max(self.prefetch // 2, PREFETCH)
            self._upstream.sync(self)

    def has_room(self, member: Subscription) -> None:
        """It has what it waited for itself. But if all were slow, one is not any more."""
        if not member.blocked:
            self._adjust()

    def resend(self, record: Record, member: Subscription) -> None:
        member.hold(record)
        member.pump()

    def _lost(self, record: Record) -> None:
        for member in self.members:
            if member.held and record in member.held:
                member.held.remove(record)
                member.held_bytes -= record.size
                self.unkeep(record)
                self._less(record)

    def _resume(self) -> None:
        for member in self.members:
            if member.held:
                member.pump()
