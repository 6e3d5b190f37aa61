"""Implements the feed that gives each message to every member."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from .feeds import PREFETCH, DeliveryBatch, DurableName, Feed, HeldMessage, Member, Release, ServerRequests

if TYPE_CHECKING:
    from .retry_queue import RetryQueue


class CopyRequests(ServerRequests, Protocol):
    """Describes the requests of a fan-out to the queue server: `ServerRequests`, and copies."""

    @property
    def copies(self) -> RetryQueue[FanOut, int]:
        """Ids of messages to copy to the queues of the feed's durable names."""


class FanOut(Feed):
    """Gives each message to every member, and copies it to the queue of every durable name.

    Ensures, beside what a feed does:
    1. A message is deleted only when the queue of every name has it, also if all members have handled it before.
    2. Slow members hold up others only when `hold` messages wait, or when all members are slow.
    3. Where the server counts receives, a message that several members release goes back once, and comes again to the
       members that have released it.

    Assumes that the server does not store a second copy in a queue that has the message's id already: a copy may be
    requested again. A fan-out must not send a message to a member that joined after the message came.
    """

    def __init__(self, qid: str, upstream: CopyRequests, memory: int, hold: int) -> None:
        """hold: how many messages slow subscribers may hold up while others go on."""
        super().__init__(qid, qid, upstream, memory)
        self._copies = upstream.copies
        self._hold = hold
        self.names: dict[DurableName, Feed] = {}
        self.coming = 0
        """The number of acknowledging members that will join as soon as the server has noted them."""
        self.joining = 0
        """The number of members that are about to join, also under a name."""
        self.expected = 0
        """The number of acknowledging members from before the bus was killed, for whom the feed waits."""
        self._awaited: dict[int, dict[Member, None]] = {}
        """Messages that were released on the server, and the members that wait for them to come again."""

    @property
    def wanted(self) -> bool:
        return not (self.expected or self._stopped) and bool(self.members or self.names)

    def _distribute(self, messages: list[HeldMessage]) -> None:
        unhandled = len(self.members) + bool(self.names)  # all names count as one: one request copies to all
        for message in messages:
            message.unhandled = unhandled
            if not unhandled:
                self._settle(message)
            elif self.names:
                self._copies.add(self, message.mid)
        if unhandled:
            _offer(messages, self.members)
            for message in messages:  # only now it is known whether a member has to wait
                self.keep_payload(message)

    @property
    def asked_for(self) -> bool:
        """Tells whether a member or a name gets the messages, or soon will."""
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
        """Counts messages as handled by the names, after their queues have got copies."""
        found = [message for mid in mids if (message := self.messages.get(mid)) is not None]
        self.handled(message for message in found if not message.done)

    def not_copied(self, mids: Iterable[int]) -> None:
        """Stops waiting for the copies of messages, because no name is left."""
        for mid in mids:
            message = self.messages.get(mid)
            if message is not None and not message.done:
                self.not_handled(message)

    def _adjust(self) -> None:
        held = len(self.messages)
        # Doubled and halved, because each change is a request. The limits are far apart: most changes do nothing.
        if held > self.prefetch * 3 // 4:
            # Messages that slow members hold up must not block the others. If all are slow, there is no one to block.
            if self.prefetch < self._hold and (self.names or not all(member.blocked for member in self.members)):
                self.prefetch = min(self.prefetch * 2, self._hold + PREFETCH)
                self._upstream.sync(self)
        elif self.prefetch > PREFETCH and held < self.prefetch // 8:
            self.prefetch = max(self.prefetch // 2, PREFETCH)
            self._upstream.sync(self)

    def on_room(self, member: Member) -> None:
        """Adjusts the prefetch when a slow member has caught up. The member itself sends its waiting messages."""
        if not member.blocked:
            self._adjust()

    def resend(self, message: HeldMessage, member: Member) -> None:
        member.enqueue(message)
        member.pump()

    # -- what the server sends again, because it counts how often

    def _release_for(self, message: HeldMessage, member: Member, delay: float | None, *, counts: bool) -> None:
        """Releases a message on the server, once for all members that release the message before it comes again."""
        awaiting = self._awaited.setdefault(message.mid, {})
        if not awaiting:
            # The delay of the first one counts: the server has one copy, and one time at which it is visible again.
            release = Release(message.mid, message.receives, delay, counts, awaited=True, reason=message.reason)
            self._upstream.releases.add(self, release)
        awaiting[member] = None

    def _come_again(self, message: HeldMessage, payload: bytes, headers: dict[str, str]) -> None:
        members = self._awaited.pop(message.mid, None)
        if members:
            # The payload is in memory, and counted, if other members wait for the message: it must not count twice.
            in_memory = message.payload is not None
            if not in_memory:
                message.payload, message.headers = payload, headers
            _offer([message], members)
            if not in_memory:
                self.keep_payload(message)

    def awaits(self, mid: int) -> bool:
        return mid in self._awaited

    def missing(self, mid: int) -> None:
        """Gives up a message that has become a dead letter. Members that have the message and did not release it may
        still handle it."""
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
        """Counts that a member does not wait for a message any more, because the server has the message again, or has
        it no longer."""
        message = self.messages[mid]
        if message.unhandled > 1 or message.handled:
            self._count_down(message)
        else:
            # No member is left, and the message has been released: a second release would concern another receive.
            message.done = True
            del self.messages[mid]

    def _lost(self, message: HeldMessage) -> None:
        # Members that have been sent the message may still acknowledge it, and are still waited for.
        for member in self.members:
            if member.drop_waiting(message):
                self.release_payload(message)
                self._count_down(message)

    def _resume(self) -> None:
        for member in self.members:
            if member.blocked:
                member.pump()


def _offer(messages: list[HeldMessage], members: Iterable[Member]) -> None:
    """Gives members messages whose payloads are in memory."""
    batch = DeliveryBatch(messages)
    for member in members:
        member.offer(batch)
    batch.report()
