"""A feed that gives each message to every member."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from .feeds import PREFETCH, DurableName, Feed, HeldMessage, Member, Release, ServerRequests

if TYPE_CHECKING:
    from .retry_queue import RetryQueue


class CopyRequests(ServerRequests, Protocol):
    """The requests of a fan-out to the queue server: see `ServerRequests`."""

    @property
    def copies(self) -> RetryQueue[FanOut, int]:
        """Ids of messages to copy to the queues of the feed's durable names."""


class FanOut(Feed):
    """Gives each message to every member, and copies it to the queue of every durable name.

    Ensures, beside what a feed does:
    1. A message is deleted only when the queue of every name has it, also if all members have handled it before.
    2. Slow members hold others up only when `hold` messages wait, or when all are slow.
    3. Where the server counts receives, a message that several members release goes back once, and comes again to
       those that have released it.

    Assumes that the server copies a message to a queue that has its id already without storing it twice: a copy may be
    asked for again. It must not send a message to a member that joined after the message came.
    """

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

    def _distribute(self, message: HeldMessage) -> None:
        message.unhandled = len(self.members) + bool(self.names)  # all names count as one: one request copies to all
        if not message.unhandled:
            self._settle(message)
            return
        if self.names:
            self._copies.add(self, message.mid)
        _offer(message, self.members)
        self.keep_payload(message)  # after that it is known whether somebody waits for room

    @property
    def asked_for(self) -> bool:
        """Tells whether a member or a name gets the messages, or is about to."""
        return bool(self.members or self.names or self.joining or self.expected)

    @property
    def unused(self) -> bool:
        """Tells whether the feed has no member, no name and no message."""
        return not (self.asked_for or self.messages)

    @property
    def acknowledging(self) -> int:
        """The number of members that acknowledge."""
        return sum(member.ack for member in self.members)

    def copied(self, mids: Iterable[int]) -> None:
        """Counts messages as handled by the names, whose queues have them now."""
        for mid in mids:
            message = self.messages.get(mid)
            if message is not None and not message.done:
                self.handled(message)

    def not_copied(self, mids: Iterable[int]) -> None:
        """Stops waiting for the copies of messages, because no name is left."""
        for mid in mids:
            message = self.messages.get(mid)
            if message is not None and not message.done:
                self.not_handled(message)

    def _adjust(self) -> None:
        held = len(self.messages)
        # Doubled and halved, as each change is a request; far apart, so that a level in between changes nothing.
        if held > self.prefetch * 3 // 4:
            # Messages that slow members hold up must not block the others. If all are slow, there is no one to block.
            if self.prefetch < self._hold and (self.names or not all(member.blocked for member in self.members)):
                self.prefetch = min(self.prefetch * 2, self._hold + PREFETCH)
                self._upstream.sync(self)
        elif self.prefetch > PREFETCH and held < self.prefetch // 8:
            self.prefetch = max(self.prefetch // 2, PREFETCH)
            self._upstream.sync(self)

    def on_room(self, member: Member) -> None:
        """Adjusts the prefetch when a slow member has caught up. The member sends what waited for room itself."""
        if not member.blocked:
            self._adjust()

    def resend(self, message: HeldMessage, member: Member) -> None:
        member.enqueue(message)
        member.pump()

    # -- what the server sends again, because it counts how often

    def _release_for(self, message: HeldMessage, member: Member, delay: float | None, *, counts: bool) -> None:
        """Releases the message on the server, once for all members that have released it until it comes again."""
        awaiting = self._awaited.setdefault(message.mid, {})
        if not awaiting:
            # The delay of the first one counts: the server has one copy, and one time at which it is visible again.
            release = Release(message.mid, message.receives, delay, counts, awaited=True, reason=message.reason)
            self._upstream.releases.add(self, release)
        awaiting[member] = None

    def _come_again(self, message: HeldMessage, payload: bytes) -> None:
        members = self._awaited.pop(message.mid, None)
        if members:
            # It is in memory if other members wait for room with it, and counted then: not twice.
            in_memory = message.payload is not None
            if not in_memory:
                message.payload = payload
            _offer(message, members)
            if not in_memory:
                self.keep_payload(message)

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
        message = self.messages[mid]
        if message.unhandled > 1 or message.handled:
            self._count_down(message)
        else:
            # Nobody is left, and the bus has released it already: a second release would be one of another receive.
            message.done = True
            del self.messages[mid]

    def _lost(self, message: HeldMessage) -> None:
        # Members that have been sent it may still acknowledge it, and are still waited for.
        for member in self.members:
            if member.drop_waiting(message):
                self.release_payload(message)
                self._count_down(message)

    def _resume(self) -> None:
        for member in self.members:
            if member.blocked:
                member.pump()


def _offer(message: HeldMessage, members: Iterable[Member]) -> None:
    """Gives members a message whose payload is in memory. Those with the same form get the same document."""
    # Most subscribers use the same req and end of documents: writing for each would be most of the time of a fan-out.
    documents: dict[tuple[str | None, bool], bytes] = {}
    for member in members:
        form = member.form
        document = documents.get(form)
        if document is None:
            document = documents[form] = message.document(*form)
        member.offer(message, document)
