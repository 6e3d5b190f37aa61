"""A queue of the server and the subscriptions that get its messages: every member gets each (`FanOut`), or one does
(`Share`). This module has what both share, and the messages that the bus holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from qs_schemas import GetMessage, Peer

if TYPE_CHECKING:
    from .retry_queue import RetryQueue

PREFETCH = 1000
"""Messages of one queue that the bus holds while no slow subscriber holds any up. docs/bus.md names the number: as many
count as received once more when the bus is killed."""
_FETCHED = 64
"""Messages whose payloads are fetched again at a time, each with a request of its own."""
_WRITERS = {early: Peer(early=early) for early in (False, True)}
"""Writes deliveries for clients whose documents end with an empty line, and for the others."""


class DurableName(NamedTuple):
    """A durable name of a queue. owner: the principal that it belongs to; None for a name that belongs to nobody: one
    that was made without an access file, or by an anonymous client."""

    qid: str
    name: str
    owner: str | None = None


class Origin(NamedTuple):
    """Says what a dead letter was. The fields are those of `GetMessage`."""

    dead_from: str
    dead_mid: int | None
    dead_receives: int | None
    dead_at: int | None
    dead_reason: str | None


class Release(NamedTuple):
    """A message to release on the server. receives: as the server sent it; delay: seconds; counts: False if no client
    has got it, or the client says that it did not try; awaited: a subscriber waits for the message to come again;
    reason: of the client that released it, or the one that came with the message."""

    mid: int
    receives: int | None
    delay: float | None = None
    counts: bool = True
    awaited: bool = False
    reason: str | None = None


@dataclass(slots=True, eq=False)
class HeldMessage:
    """A message that the server has delivered to the bus, until it is deleted or released.

    Ensures that it is settled once (`done`), and only when no member is waited for. Assumes that its feed and its
    members count in pairs: each member that got it reports once that it has handled it, or will not. It must not keep
    a payload that no member waits for: with slow clients there are 100,000 of these.

    payload: None when it is not in memory; size: bytes of the payload; unhandled: how many members have not handled it
    yet; handled: a member has handled it; awaiting_room: how many members have no room for it yet and need the payload;
    done: no member is waited for; fetching: the payload is being fetched again; doubtful: how many of the members
    waited for may have got it by mistake; delivered: a member has got it that asked for it, or is being sent it;
    origin: of a dead letter; reason: of the last release that gave one, whether the server or a member says so.
    """

    feed: Feed
    mid: int
    receives: int | None
    pushed_at: int | None
    payload: bytes | None
    size: int
    unhandled: int = 0
    handled: bool = False
    awaiting_room: int = 0
    done: bool = False
    fetching: bool = False
    doubtful: int = 0
    delivered: bool = False
    origin: Origin | None = None
    reason: str | None = None

    @property
    def key(self) -> tuple[str, int]:
        """The queue and the id under which a subscriber knows the message."""
        return self.feed.label, self.mid

    def document(self, req: str | None, early: bool) -> bytes:
        """Returns the document that delivers the message; the payload must be in memory. req: of the subscription;
        early: end the document with an empty line, see `serialize`."""
        message = GetMessage(
            self.feed.label,
            self.mid,
            payload=self.payload,
            status="delivered",
            receives=self.receives,
            pushed_at=self.pushed_at,
            reason=self.reason,
            req=req,
            type="response",
        )
        if self.origin is not None:
            for name, value in self.origin._asdict().items():
                setattr(message, name, value)
        return _WRITERS[early].send(message)


class Member(Protocol):
    """A subscription, as the feeds use it. A protocol because subscriptions import the feeds."""

    @property
    def feeds(self) -> list[Feed]:
        """The feeds that it is a member of. A feed adds itself when the member joins."""

    @property
    def ack(self) -> bool:
        """Tells whether the client acknowledges."""

    @property
    def prefetch(self) -> int:
        """The bound of unacknowledged messages of an acknowledging client."""

    @property
    def form(self) -> tuple[str | None, bool]:
        """The arguments of `HeldMessage.document` by which its documents differ from those for other members."""

    @property
    def has_room(self) -> bool:
        """Tells whether a message can be sent now."""

    @property
    def blocked(self) -> bool:
        """Tells whether messages wait for room."""

    def offer(self, message: HeldMessage, document: bytes) -> None:
        """Sends a message, or keeps it until there is room."""

    def send(self, message: HeldMessage, document: bytes) -> None:
        """Sends a message."""

    def enqueue(self, message: HeldMessage) -> None:
        """Keeps a message until there is room."""

    def drop_waiting(self, message: HeldMessage) -> bool:
        """Drops a message that waits for room. Returns False if it did not wait."""

    def pump(self) -> None:
        """Sends the messages that wait, as far as there is room."""


class ServerRequests(Protocol):
    """The requests of a feed to the queue server. A protocol because `Upstream`, which has them, imports the feeds."""

    @property
    def deletes(self) -> RetryQueue[Feed, int]:
        """Ids of messages to delete."""

    @property
    def releases(self) -> RetryQueue[Feed, Release]:
        """Messages to release."""

    @property
    def fetches(self) -> RetryQueue[Feed, HeldMessage]:
        """Messages whose payloads are to be fetched again."""

    def sync(self, feed: Feed) -> None:
        """Subscribes, unsubscribes or changes the prefetch, as the feed needs it now."""

    def ask_policy(self, feed: Feed) -> None:
        """Asks the server whether it counts the receives of the feed's queue, see `Feed.counted`."""


class Feed(ABC):
    """One queue of the server, its members, and its messages that the bus holds.

    Ensures:
    1. A message is deleted on the server when a member has handled it and no member that got it is waited for any more;
       it is released when all have gone and none has handled it.
    2. A message that comes again after a lost connection goes to no member that has it already.
    3. Payloads for members without room take at most `memory` bytes; what exceeds that is fetched again when there is
       room.

    Assumes that the server keeps each message in flight as long as the connection lasts, so that what the bus holds is
    nobody else's. It must never delete a message that no member has handled: that would be a loss.
    """

    def __init__(self, qid: str, label: str, upstream: ServerRequests, memory: int) -> None:
        """qid: the queue on the server; label: the queue that subscribers asked for, another one for a durable name;
        memory: bytes of payload to keep for members that have no room. More is fetched again later."""
        self.qid = qid
        self.label = label
        self.members: dict[Member, None] = {}
        """The members in the order in which they joined; in a `Share`, the one that gets the next message is first."""
        self.messages: dict[int, HeldMessage] = {}
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
    def _distribute(self, message: HeldMessage) -> None:
        """Gives a new message to the members."""

    # -- from the server

    def take(self, delivery: GetMessage) -> None:
        """Takes a message that the server has delivered."""
        mid = delivery.mid or 0
        payload = delivery.payload
        if not isinstance(payload, bytes):  # what a client without base64 has pushed is text
            payload = (payload or "").encode()
        existing = self.messages.get(mid)
        if existing is not None:
            # The bus held it before the connection to the server broke. The members that have it keep it.
            existing.receives, existing.reason = delivery.receives, delivery.reason
            if existing.done:
                self._upstream.deletes.add(self, mid)
            else:
                self._come_again(existing, payload)
            return
        message = HeldMessage(self, mid, delivery.receives, delivery.pushed_at, payload, len(payload))
        message.reason = delivery.reason
        if delivery.dead_from is not None:
            message.origin = Origin(
                delivery.dead_from, delivery.dead_mid, delivery.dead_receives, delivery.dead_at, delivery.dead_reason
            )
        self.messages[mid] = message
        self._distribute(message)
        self._adjust()

    def _come_again(self, message: HeldMessage, payload: bytes) -> None:  # noqa: B027 - only where members wait for it
        """Takes a message that the feed holds already."""

    def awaits(self, mid: int) -> bool:
        """Tells whether a member waits for a message that was released to come again."""
        return False

    def missing(self, mid: int) -> None:  # noqa: B027 - only where members wait for messages to come again
        """Gives up a message that was released and is not in the queue any more."""

    def deleted(self, mids: Iterable[int]) -> None:
        """Forgets messages that the server has deleted."""
        for mid in mids:
            self.messages.pop(mid, None)
        self._adjust()

    def _adjust(self) -> None:  # noqa: B027 - only where slow members can be in the way of others
        """Adapts the prefetch to members that have become slower or faster."""

    # -- from members, which report what becomes of each message

    def join(self, member: Member) -> None:
        """Adds a member, which gets the messages that come from now on."""
        # No message is given here: a member gets what comes from now on, and the others have theirs.
        self.members[member] = None
        member.feeds.append(self)
        self._upstream.sync(self)
        self._adjust()

    def leave(self, member: Member) -> None:
        """Removes a member, which gets no more messages. It reports those that it has by itself."""
        del self.members[member]
        self._upstream.sync(self)

    def handled(self, message: HeldMessage) -> None:
        """Counts that a member has handled a message."""
        message.handled = True
        self._count_down(message)

    def not_handled(self, message: HeldMessage) -> None:
        """Counts that a member has gone without handling a message, or will not handle it."""
        self._count_down(message)

    def doubt(self, message: HeldMessage) -> None:
        """Counts that a member may have got a message by mistake. The feed waits for that member only until another one
        handles the message."""
        message.doubtful += 1
        self._count_down(message, 0)

    def _count_down(self, message: HeldMessage, members: int = 1) -> None:
        """Waits for so many members less, and settles the message if none is left that the feed waits for."""
        message.unhandled -= members
        if not message.done and message.unhandled <= (message.doubtful if message.handled else 0):
            self._settle(message)

    def _settle(self, message: HeldMessage) -> None:
        """Deletes a message on the server if a member has handled it, and releases it otherwise."""
        message.done = True
        if message.handled:
            # It is forgotten when the server has answered: if the connection breaks before, it comes again.
            self._upstream.deletes.add(self, message.mid)
        else:
            self._release(message)

    def _release(self, message: HeldMessage, delay: float | None = None, *, counts: bool = True) -> None:
        """Releases a message on the server. One that no member has got does not count as received."""
        message.done = True
        self.messages.pop(message.mid, None)
        # Without a policy nobody asks for the count, and not every storage can take a receive back.
        counts = counts and (message.delivered or not self.counted)
        release = Release(message.mid, message.receives, delay, counts, reason=message.reason)
        self._upstream.releases.add(self, release)

    def stop(self) -> None:
        """Has the server send nothing more. If it counts receives, releases what no member has got: the end of the
        connection would count it."""
        self._stopped = True
        self._upstream.sync(self)
        # Without a count, the end of the connection does the same.
        for message in list(self.messages.values()) if self.counted else ():
            if not (message.done or message.delivered):
                self._release(message)

    def release_counted(self, message: HeldMessage, member: Member, delay: float | None, *, counts: bool) -> bool:
        """Releases a message on the server for a member, so that the server counts that. Returns False, and does
        nothing, if the server counts no receives of the queue. delay: seconds until the server sends the message again;
        counts: False if the receive is not to count."""
        if not self.counted:
            self._upstream.ask_policy(self)  # it may have been changed: then the next one is counted
            return False
        self._release_for(message, member, delay, counts=counts)
        return True

    @abstractmethod
    def _release_for(self, message: HeldMessage, member: Member, delay: float | None, *, counts: bool) -> None:
        """Has the server send a message again that a member has released."""

    def count_delayed(self, more: int) -> None:  # noqa: B027 - only where that is in the way of others
        """Adds to the number of messages that were released with a delay that has not passed yet. more: may be
        negative."""

    @abstractmethod
    def on_room(self, member: Member) -> None:
        """Continues after a member has got room for a message, or has left some to others."""

    @abstractmethod
    def resend(self, message: HeldMessage, member: Member) -> None:
        """Delivers a released message again: to the same member or, in a share, to any."""

    # -- payloads of messages that wait for room

    def keep_payload(self, message: HeldMessage) -> None:
        """Keeps the payload in memory if a member waits for room and the memory bound allows; otherwise drops it."""
        # A payload that is dropped costs a request later, one that is kept is memory that slow clients decide about.
        if message.awaiting_room and self._payload_bytes + message.size <= self._memory:
            self._payload_bytes += message.size
        else:
            message.payload = None

    def release_payload(self, message: HeldMessage) -> None:
        """Counts that a member does not need the payload any more."""
        message.awaiting_room -= 1
        if not message.awaiting_room and message.payload is not None:
            message.payload = None
            self._payload_bytes -= message.size

    def fetch(self, waiting: Iterable[HeldMessage]) -> None:
        """Fetches the payloads of the first of these messages from the server again. They may belong to other feeds
        too. Takes half of the memory at most, so that what is fetched leaves room for what comes meanwhile."""
        size = 0
        for count, message in enumerate(waiting):
            if message.payload is not None or count == _FETCHED or (count and size + message.size > self._memory // 2):
                return
            size += message.size
            message.feed.fetch_payload(message)

    def fetch_payload(self, message: HeldMessage) -> None:
        """Fetches the payload of one message of this feed again."""
        if not message.fetching:
            message.fetching = True
            self._upstream.fetches.add(self, message)

    def fetched(self, message: HeldMessage, payload: bytes | None) -> None:
        """Takes a payload that was fetched again. payload: None when the message no longer exists or is in flight
        elsewhere."""
        message.fetching = False
        if message.done or not message.awaiting_room:
            return
        if payload is None:
            self._lost(message)
        elif message.payload is None:
            # Beyond the memory bound, if need be: dropping it again would fetch it for ever.
            message.payload = payload
            self._payload_bytes += message.size
        self._resume()

    @abstractmethod
    def _lost(self, message: HeldMessage) -> None:
        """Takes back a message that waits for room and no longer exists."""

    @abstractmethod
    def _resume(self) -> None:
        """Sends waiting messages to members that have room."""
