"""Passes the messages of a queue to subscriptions: to every one of them (`FanOut`), or to one at a time (`Share`). This
module has the common base class, and the messages that the bus holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from qs_schemas import GetMessage, Peer

if TYPE_CHECKING:
    from .conditions import Condition
    from .retry_queue import RetryQueue

PREFETCH = 1000
"""Messages of one queue that the bus holds while no slow subscriber holds any up. docs/bus.md names the number: as many
count as received once more when the bus is killed."""
_FETCHED = 64
"""Messages whose payloads are fetched again at a time, each with a request of its own."""
_FORMS = 16
"""Forms of a batch's documents that are kept at a time. Each client may choose its own, and a read of large messages
brings many bytes."""
_WRITERS = {early: Peer(early=early) for early in (False, True)}
"""Writes deliveries for clients whose documents end with an empty line, and for the others."""


class DurableName(NamedTuple):
    """Identifies a durable name of a queue. owner: the principal that the name belongs to; None for a name that was
    made without an access file, or by an anonymous client."""

    qid: str
    name: str
    owner: str | None = None


class Origin(NamedTuple):
    """Describes where a dead letter came from. The fields are those of `GetMessage`."""

    dead_from: str
    dead_mid: int | None
    dead_receives: int | None
    dead_at: int | None
    dead_reason: str | None


class Attributes(NamedTuple):
    """Describes how a message was pushed, beside its headers. The fields are those of `GetMessage`."""

    priority: int | None
    group: str | None
    expires_at: int | None


class Release(NamedTuple):
    """Describes a message to release on the server. receives: the count that came with the message; delay: seconds;
    counts: False if no client has got the message, or the client says that it did not try; awaited: True if a
    subscriber waits for the message to come again; reason: the reason of the client that released the message, or the
    one that came with the message."""

    mid: int
    receives: int | None
    delay: float | None = None
    counts: bool = True
    awaited: bool = False
    reason: str | None = None


@dataclass(slots=True, eq=False)
class HeldMessage:
    """Holds a message that the server has delivered to the bus, until the message is deleted or released.

    Ensures that the message is settled once (`done`), and only when no member is waited for. Assumes that each member
    that got the message reports once to the feed that it has handled the message, or will not. Must not keep a payload
    or headers that no member waits for: with slow clients there are 100,000 such objects.

    payload: None when payload and headers are not in memory; size: bytes of both; unhandled: how many members have not
    handled the message yet; handled: True if a member has handled it; awaiting_room: how many members cannot be sent
    the message yet and need the payload; done: True if no member is waited for; fetching: True while the payload is
    being fetched again; doubtful: how many of the members waited for may have got the message by mistake; delivered:
    True if a member that asked for messages has got this one, or is being sent it; origin: the origin of a dead letter,
    else None; reason: the reason of the last release that gave one, from the server or from a member; headers: come and
    go with the payload, None if there are none; attributes: None for a message without any; names: the durable names
    whose queues are to get a copy and have none yet.
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
    headers: dict[str, str] | None = None
    attributes: Attributes | None = None
    names: frozenset[DurableName] = frozenset()

    @property
    def key(self) -> tuple[str, int]:
        """The queue and the id by which a subscriber names the message."""
        return self.feed.label, self.mid

    def document(self, req: str | None, early: bool) -> bytes:
        """Returns the document that delivers the message. The payload must be in memory. req: the req of the
        subscription; early: True to end the document with an empty line, see `serialize`."""
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
        if self.headers:
            message.headers = self.headers
        for of in (self.origin, self.attributes):
            if of is not None:
                for name, value in of._asdict().items():
                    setattr(message, name, value)
        return _WRITERS[early].send(message)


Form: TypeAlias = tuple[str | None, bool]
"""The differences between documents of members: the req of the subscription; True for documents that end with an empty
line."""


class Documents:
    """Keeps the documents of messages for batches that have some of the messages in common, so that each document is
    made once for each form."""

    def __init__(self) -> None:
        self._made: dict[Form, dict[int, bytes]] = {}  # form -> id of the message -> document

    def of(self, messages: list[HeldMessage], form: Form) -> list[bytes]:
        """Returns the documents of messages, all of one feed, in a form."""
        made = self._made.get(form)
        if made is None:
            if len(self._made) == _FORMS:
                self._made.clear()
            made = self._made[form] = {}
        for message in messages:
            if message.mid not in made:
                made[message.mid] = message.document(*form)
        return [made[message.mid] for message in messages]


class DeliveryBatch:
    """Holds messages that go to members together, and their documents, which are made once for all members that use
    the same form.

    Ensures that `report` tells the feeds of each member once that it has handled a message. Assumes that the payloads
    are in memory until the last member was sent its documents. A batch must not be kept: it has the documents of all
    its messages.
    """

    __slots__ = ("_documents", "_handled", "_keys", "_shared", "messages")

    def __init__(
        self,
        messages: list[HeldMessage],
        documents: dict[Form, list[bytes]] | None = None,
        shared: Documents | None = None,
    ) -> None:
        """documents: those that are made already; shared: the documents that other batches use too."""
        self.messages = messages
        self._shared = shared
        self._keys: list[tuple[str, int]] | None = None
        self._documents = {form: (made, b"".join(made)) for form, made in documents.items()} if documents else {}
        self._handled = 0  # members that have handled all messages

    @property
    def keys(self) -> list[tuple[str, int]]:
        """The keys of the messages, which only members need that keep them."""
        if self._keys is None:
            self._keys = [message.key for message in self.messages]
        return self._keys

    def documents(self, form: Form) -> tuple[list[bytes], bytes]:
        """Returns the documents of a form (see `HeldMessage.document`), one by one and joined."""
        # Most subscribers use the same req and end of documents. To write one for each would take most of the time.
        found = self._documents.get(form)
        if found is None:
            if len(self._documents) == _FORMS:
                self._documents.clear()
            if self._shared is None:
                documents = [message.document(*form) for message in self.messages]
            else:
                documents = self._shared.of(self.messages, form)
            together = documents[0] if len(documents) == 1 else b"".join(documents)
            found = self._documents[form] = documents, together
        return found

    def part(self, start: int, stop: int, form: Form) -> DeliveryBatch:
        """Returns a batch of some of the messages, for a member with this form."""
        if stop - start == len(self.messages):
            return self
        return DeliveryBatch(self.messages[start:stop], {form: self.documents(form)[0][start:stop]})

    def handled(self, count: int) -> None:
        """Counts that a member has handled the first messages."""
        if count == len(self.messages):
            self._handled += 1  # counted once for all members
            return
        for message in self.messages[:count]:
            message.delivered = True
        report_handled(self.messages[:count])

    def report(self) -> None:
        """Tells the feeds what members have handled. Call this when all members have been sent the batch."""
        members, self._handled = self._handled, 0
        if members:
            for message in self.messages:
                message.delivered = True
            report_handled(self.messages, members)


def report_handled(messages: Iterable[HeldMessage], members: int = 1) -> None:
    """Tells the feeds of messages that a member has handled them, or that several members have."""
    for feed, some in groupby(messages, attrgetter("feed")):  # nearly always all are of one feed
        feed.handled(some, members)


class Member(Protocol):
    """Describes a subscription, as the feeds use it. A protocol because the module of subscriptions imports this
    one."""

    @property
    def feeds(self) -> list[Feed]:
        """The feeds that this is a member of. A feed adds itself when the member joins."""

    @property
    def ack(self) -> bool:
        """True if the client acknowledges."""

    @property
    def condition(self) -> Condition | None:
        """The condition that a message must match to go to this member; None for every message."""

    @property
    def prefetch(self) -> int:
        """The most unacknowledged messages of an acknowledging client."""

    @property
    def form(self) -> Form:
        """The arguments of `HeldMessage.document` for this member. Members with equal arguments get the same
        document."""

    @property
    def room(self) -> tuple[int, int]:
        """How many messages can be sent now, and for how many bytes there is room: the message that begins in them may
        exceed them. Zero messages if there is no room."""

    @property
    def blocked(self) -> bool:
        """True if messages wait until they can be sent."""

    def offer(self, batch: DeliveryBatch) -> None:
        """Sends messages now, as many as can be sent, and keeps the others until they can be sent."""

    def send(self, batch: DeliveryBatch) -> None:
        """Sends messages now. Call this only for as many as there is `room` for."""

    def enqueue(self, message: HeldMessage) -> None:
        """Keeps a message until it can be sent."""

    def drop_waiting(self, message: HeldMessage) -> bool:
        """Drops a message that waits to be sent. Returns False if the message did not wait."""

    def pump(self) -> None:
        """Sends waiting messages, as many as can be sent now."""


class ServerRequests(Protocol):
    """Describes the requests of a feed to the queue server. A protocol because the module of `Upstream`, which
    implements it, imports this one."""

    @property
    def deletes(self) -> RetryQueue[Feed, int]:
        """The ids of messages to delete."""

    @property
    def releases(self) -> RetryQueue[Feed, Release]:
        """The messages to release."""

    @property
    def fetches(self) -> RetryQueue[Feed, HeldMessage]:
        """The messages whose payloads are to be fetched again."""

    def sync(self, feed: Feed) -> None:
        """Subscribes, unsubscribes or changes the prefetch, as the feed needs it now."""

    def ask_policy(self, feed: Feed) -> None:
        """Asks the server whether it counts the receives of the feed's queue, see `Feed.counted`."""


class Feed(ABC):
    """Passes the messages of one queue of the server to members, and settles them on the server.

    Ensures:
    1. A message is deleted on the server when a member has handled the message and no other member that got it is
       waited for any more; it is released when all these members have gone and none has handled it.
    2. A message that comes again after a lost connection goes to no member that has it already.
    3. Payloads that wait for slow members take at most `memory` bytes; the others are dropped, and fetched again when
       they can be sent.

    Assumes that the server keeps each message in flight as long as the connection lasts, so that no other client has a
    message that the bus holds. A feed must never delete a message that no member has handled: that would lose the
    message.
    """

    def __init__(self, qid: str, label: str, upstream: ServerRequests, memory: int) -> None:
        """qid: the queue on the server; label: the queue that subscribers asked for, which differs from `qid` for a
        durable name; memory: the most bytes of payloads to keep for slow members. Other payloads are fetched again
        later."""
        self.qid = qid
        self.label = label
        self.members: dict[Member, None] = {}
        """The members in the order in which they joined; in a `Share`, the one that gets the next message is first."""
        self.messages: dict[int, HeldMessage] = {}
        self.prefetch = PREFETCH
        self.forbidden = ""
        """The reason for which the server does not let the bus read the queue; empty if it does, as far as is known."""
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
        """True if the server should send messages."""

    @abstractmethod
    def _distribute(self, messages: list[HeldMessage]) -> None:
        """Gives new messages to the members that should get them."""

    # -- from the server

    def take(self, deliveries: Iterable[GetMessage]) -> None:
        """Takes messages that the server has delivered, in their order. Those that came in one read are one batch."""
        new = [message for message in map(self._taken, deliveries) if message is not None]
        if new:
            self._distribute(new)
            self._adjust()

    def _taken(self, delivery: GetMessage) -> HeldMessage | None:
        """Makes the message of a delivery. Returns None if the feed has held the message before."""
        mid = delivery.mid or 0
        payload = delivery.payload
        if not isinstance(payload, bytes):  # what a client without base64 has pushed is text
            payload = (payload or "").encode()
        existing = self.messages.get(mid)
        if existing is not None:
            # The bus has held the message since before the connection broke. The members that have it keep it.
            existing.receives, existing.reason = delivery.receives, delivery.reason
            if existing.done:
                self._upstream.deletes.add(self, mid)
            else:
                self._come_again(existing, payload, delivery.headers)
            return None
        message = HeldMessage(self, mid, delivery.receives, delivery.pushed_at, payload, len(payload))
        message.reason = delivery.reason
        if delivery.headers:
            message.headers = delivery.headers
            message.size += sum(len(name) + len(text.encode()) for name, text in delivery.headers.items())
        if delivery.priority is not None or delivery.group is not None or delivery.expires_at is not None:
            message.attributes = Attributes(delivery.priority, delivery.group, delivery.expires_at)
        if delivery.dead_from is not None:
            message.origin = Origin(
                delivery.dead_from, delivery.dead_mid, delivery.dead_receives, delivery.dead_at, delivery.dead_reason
            )
        self.messages[mid] = message
        return message

    def _come_again(  # noqa: B027 - only where members wait for it
        self, message: HeldMessage, payload: bytes, headers: dict[str, str]
    ) -> None:
        """Takes a message again that the feed holds already."""

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
        """Adjusts the prefetch to members that have become slower or faster."""

    # -- from members, which report what becomes of each message

    def join(self, member: Member) -> None:
        """Adds a member, which gets the messages that come from now on."""
        # No message is given here: a member gets what comes from now on, and the others have theirs.
        self.members[member] = None
        member.feeds.append(self)
        self._upstream.sync(self)
        self._adjust()

    def leave(self, member: Member) -> None:
        """Removes a member, which gets no more messages. The member itself reports what becomes of its messages."""
        del self.members[member]
        self._upstream.sync(self)

    def handled(self, messages: Iterable[HeldMessage], members: int = 1) -> None:
        """Counts that a member has handled messages, or several members have."""
        # Without a call for each message, as each delivery comes here: those that nobody is waited for are one list.
        settled: list[int] = []
        for message in messages:
            message.handled = True
            message.unhandled -= members
            if message.unhandled <= message.doubtful and not message.done:
                message.done = True
                settled.append(message.mid)
        if settled:
            self._delete(*settled)

    def not_handled(self, message: HeldMessage) -> None:
        """Counts that a member has gone without handling a message, or will not handle it."""
        self._count_down(message)

    def doubt(self, message: HeldMessage) -> None:
        """Counts that a member may have got a message by mistake. The feed waits for that member only until another one
        handles the message."""
        message.doubtful += 1
        self._count_down(message, 0)

    def _count_down(self, message: HeldMessage, members: int = 1) -> None:
        """Reduces the number of members that the feed waits for, and settles the message if none is left. members: how
        many have gone without handling it."""
        message.unhandled -= members
        if not message.done and message.unhandled <= (message.doubtful if message.handled else 0):
            self._settle(message)

    def _settle(self, message: HeldMessage) -> None:
        """Deletes a message on the server if a member has handled it, and releases it otherwise."""
        message.done = True
        if message.handled:
            self._delete(message.mid)
        else:
            self._release(message)

    def _delete(self, *mids: int) -> None:
        """Deletes messages on the server."""
        # `deleted` forgets them after the answer: if the connection breaks before, they come again.
        self._upstream.deletes.add(self, *mids)

    def _release(self, message: HeldMessage, delay: float | None = None, *, counts: bool = True) -> None:
        """Releases a message on the server. A message that no member has got does not count as received."""
        message.done = True
        self.messages.pop(message.mid, None)
        # Without a policy nobody asks for the count, and not every storage can take a receive back.
        counts = counts and (message.delivered or not self.counted)
        release = Release(message.mid, message.receives, delay, counts, reason=message.reason)
        self._upstream.releases.add(self, release)

    def stop(self) -> None:
        """Ends the subscription on the server. If the server counts receives, releases the messages that no member has
        got, because the end of the connection would count them as received."""
        self._stopped = True
        self._upstream.sync(self)
        # If receives are not counted, the end of the connection releases all messages.
        for message in list(self.messages.values()) if self.counted else ():
            if not (message.done or message.delivered):
                self._release(message)

    def release_counted(self, message: HeldMessage, member: Member, delay: float | None, *, counts: bool) -> bool:
        """Releases a message on the server for a member, so that the server counts the failed receive. Returns False,
        and does nothing, if the server does not count receives of this queue. delay: seconds until the server sends the
        message again; counts: False to leave this receive out of the count."""
        if not self.counted:
            self._upstream.ask_policy(self)  # the options may have changed: then the next release is counted
            return False
        self._release_for(message, member, delay, counts=counts)
        return True

    @abstractmethod
    def _release_for(self, message: HeldMessage, member: Member, delay: float | None, *, counts: bool) -> None:
        """Releases a message that a member has released, so that the server sends it again."""

    def count_delayed(self, more: int) -> None:  # noqa: B027 - only where that is in the way of others
        """Changes the number of delayed messages: those that were released with a delay that is not over yet. more: the
        change, which may be negative."""

    @abstractmethod
    def on_room(self, member: Member) -> None:
        """Continues after a member can be sent messages again, or has left messages to others."""

    @abstractmethod
    def resend(self, message: HeldMessage, member: Member) -> None:
        """Delivers a released message again: to the same member or, in a share, to any member."""

    # -- payloads of messages that wait to be sent

    def keep_payload(self, message: HeldMessage) -> None:
        """Keeps the payload in memory if a member waits for the message and the memory bound allows; otherwise drops
        the payload."""
        # A dropped payload costs a request later; a kept one takes memory that slow clients control.
        if message.awaiting_room and self._payload_bytes + message.size <= self._memory:
            self._payload_bytes += message.size
        else:
            message.payload = message.headers = None

    def release_payload(self, message: HeldMessage) -> None:
        """Counts that a member does not need the payload any more, and drops the payload if no member does."""
        message.awaiting_room -= 1
        if not message.awaiting_room and message.payload is not None:
            message.payload = message.headers = None
            self._payload_bytes -= message.size

    def fetch(self, waiting: Iterable[HeldMessage]) -> None:
        """Fetches the payloads of the first of these messages from the server again. The messages may belong to other
        feeds too. Fetches at most half of the memory bound, so that new messages fit beside the fetched ones."""
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

    def fetched(self, message: HeldMessage, payload: bytes | None, headers: dict[str, str] | None = None) -> None:
        """Takes a payload and headers that were fetched again. payload: None if the message no longer exists, or is in
        flight elsewhere."""
        message.fetching = False
        if message.done or not message.awaiting_room:
            return
        if payload is None:
            self._lost(message)
        elif message.payload is None:
            # Beyond the memory bound, if need be: dropping it again would fetch it for ever.
            message.payload, message.headers = payload, headers
            self._payload_bytes += message.size
        self._resume()

    @abstractmethod
    def _lost(self, message: HeldMessage) -> None:
        """Drops a message that members wait for and whose payload cannot be fetched again."""

    @abstractmethod
    def _resume(self) -> None:
        """Sends waiting messages to members that can take them."""
