"""Defines subscribers (connections with subscriptions), the leases of the messages that they hold, and the answers that
carry messages.

A delivery is bounded twice. A subscription holds at most `prefetch` unacknowledged messages, so a client that stops
working keeps only so many from others. A subscriber has at most `outbox` bytes of deliveries on their way, which bounds
the server's memory for a client that does not read. `Subscriptions` uses both bounds to choose the subscriber for the
next message.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from qs_schemas import Delivery, GetMessage, Message
from qs_storage.engine import Message as Stored
from qs_storage.engine import Origin

OVERHEAD = 400
"""Approximate bytes of memory that a delivery takes beyond its payload. Empty messages are bounded by it."""
Key = tuple[str, int]
"""Identifies a message: (queue, id)."""
_Answer = TypeVar("_Answer", Delivery, GetMessage)


def bytes_of(headers: Iterable[tuple[str, str]]) -> int:
    """Returns how many bytes the names and texts of headers take. A character counts as one byte, which is exact enough
    for bounds of an answer."""
    return sum([len(name) + len(text) for name, text in headers])


def cost(message: Message) -> int:
    """Returns how many bytes of a subscriber's outbox a message takes."""
    if not isinstance(message, GetMessage):
        return 0  # the end of a subscription: at most one for each
    size = OVERHEAD + len(message.payload or b"") + len(message.reason or "")
    return size + bytes_of(message.headers.items()) if message.headers else size


@dataclass(slots=True, eq=False)
class Subscriber:
    """Holds the subscriptions of a connection, and their back-pressure.

    Ensures that a subscriber that was passed over because its outbox was full is served again once half of the outbox
    is free. Assumes that `assigned` and `is_blocked` are used in batches, which may run in the worker thread, and
    `written` and `has_read` in the loop: each of the two counts has one writer, so neither needs a lock.

    outbox: the most bytes of deliveries that may wait for the client; deliver: called in the loop when messages are
    pending; peer: the client's address; assigned, written: bytes of deliveries so far."""

    outbox: int
    deliver: Callable[[], None]
    peer: str = ""
    subscriptions: dict[str | None, "Subscription"] = field(default_factory=dict)
    assigned: int = 0
    written: int = 0
    blocked: bool = False
    """True if it is blocked by back-pressure: its outbox was full, and it is served again when the client has read."""
    mail: list[Message] = field(default_factory=list)
    """The pending deliveries. The loop sends them at the end of a batch, when their receives are committed."""
    new: list["Subscription"] = field(default_factory=list)
    """Subscriptions that begin once their answers are sent, so that no delivery comes before its subscription."""

    @property
    def room(self) -> int:
        """The free bytes of the outbox: deliveries of this size may be sent now."""
        return self.outbox - (self.assigned - self.written)

    def has_read(self, size: int) -> bool:
        """Counts bytes of deliveries that the socket has taken. Called in the loop. Returns True if the subscriber
        should be served again."""
        self.written += size
        # Not at the first free byte, because serving the subscriber again costs a job in a batch.
        if not self.blocked or self.room * 2 < self.outbox:
            return False
        self.blocked = False
        return True

    def is_blocked(self) -> bool:
        """Returns True if the outbox is full; then `has_read` will return True once half of it is free. Call this in a
        batch.

        This sets `blocked` before it reads the count again; `has_read`, in another thread, counts before it reads
        `blocked`: so one of the two notices."""
        if self.room > 0:
            return False
        self.blocked = True
        return self.room <= 0


@dataclass(slots=True, eq=False)
class Subscription:
    """Describes a subscription to one queue or several. Its req cannot be used again while the subscription is open,
    and after that until the last message that it holds is acknowledged, released, or visible again.

    req: the req of the subscribe request; prefetch: the most messages that the subscription holds; visibility:
    microseconds, None for the queues' own; closed: True if the subscription gets no more messages."""

    subscriber: Subscriber
    req: str | None
    qids: set[str]
    prefetch: int
    visibility: int | None
    receives: dict[tuple[str, int], int] = field(default_factory=dict)
    """The messages that it holds (sent, not acknowledged), each with its receives at that time."""
    closed: bool = False

    def has_room(self) -> bool:
        """Tells whether the subscription has free prefetch and its subscriber free outbox. Call this in a batch."""
        return len(self.receives) < self.prefetch and not self.subscriber.is_blocked()


class Leases:
    """Holds the leases of subscriptions: maps each message that was sent, and neither deleted nor released, to its
    subscription.

    Ensures:
    1. A message has one lease at most, and `Subscription.receives` has exactly the messages of its leases.
    2. A lease counts as over as soon as the time of its visibility window is over, without a notice from the engine.
    3. A message costs two entries of dictionaries, and the heap is never much longer than there are leases.

    Assumes that all methods are called in batches. Leases must never decide whether a client still holds a message: the
    engine decides, by the receives in a receipt."""

    def __init__(self) -> None:
        self._leases: dict[str, dict[int, tuple[Subscription, int]]] = {}
        """By queue, and by id: (subscription, end). Queues without leases are not in it."""
        self.count = 0
        """The number of leases."""
        self._ends: list[tuple[int, Key]] = []
        """A heap of ends. It may have entries of leases that have ended or moved: a heap finds its first entry, and no
        other, so they stay until they come first or `_tidy` removes them."""

    def begin(self, key: Key, subscription: Subscription, receives: int, end: int) -> None:
        """Adds the lease of a message that nobody holds. end: the end of the message's window, in microseconds since
        the Epoch."""
        subscription.receives[key] = receives
        self.count += 1
        self._note(key, subscription, end)

    def move(self, key: Key, end: int) -> None:
        """Changes the end of a message's lease, if the message has one."""
        found = self._find(key)
        if found is not None:
            self._note(key, found[0], end)

    def _find(self, key: Key) -> tuple[Subscription, int] | None:
        return self._leases.get(key[0], {}).get(key[1])

    def _note(self, key: Key, subscription: Subscription, end: int) -> None:
        self._leases.setdefault(key[0], {})[key[1]] = subscription, end
        # A lease that moves gets a second entry; the first is outdated, as `next_end` sees by its time.
        heapq.heappush(self._ends, (end, key))
        self._tidy()

    def _tidy(self) -> None:
        """Removes ended leases from the heap when they are most of it."""
        if len(self._ends) > 2 * self.count + 64:  # so rarely that the cost for each message is constant
            queues = self._leases.items()
            self._ends = [(end, (qid, mid)) for qid, leases in queues for mid, (_, end) in leases.items()]
            heapq.heapify(self._ends)

    def end(self, key: Key) -> Subscription | None:
        """Ends the lease of a message. Returns the subscription that held the message, None if there was no lease."""
        leases = self._leases.get(key[0], {})
        found = leases.pop(key[1], None)
        if found is None:
            return None
        if not leases:
            del self._leases[key[0]]  # otherwise deleted queues would stay here for ever
        self.count -= 1
        del found[0].receives[key]
        return found[0]

    def end_all(self, qid: str, upto: int | None = None) -> set[Subscription]:
        """Ends the leases of a queue, in some 0.3 us each. Returns the subscriptions that held the messages. upto: the
        greatest id, None for all."""
        leases = self._leases.get(qid, {})
        mids = [mid for mid in leases if upto is None or mid <= upto]  # a list, as `end` changes the dictionary
        holders = {self.end((qid, mid)) for mid in mids}
        return {subscription for subscription in holders if subscription is not None}

    def holder(self, key: Key) -> Subscription | None:
        found = self._find(key)
        return None if found is None else found[0]

    def next_end(self) -> int | None:
        """Returns the time at which the next lease ends, None if there are no leases."""
        self._tidy()  # `end` does not: many leases may end before anybody asks
        while self._ends:
            end, key = self._ends[0]
            found = self._find(key)
            if found is not None and found[1] == end:
                return end
            heapq.heappop(self._ends)
        return None

    def due(self, now: int) -> Key | None:
        """Returns a message whose lease should have ended by now, None if there is no such message."""
        end = self.next_end()
        return None if end is None or end > now else self._ends[0][1]


def delivery_of(message: Stored, req: str | None = None) -> GetMessage:
    """Returns the answer that carries a message: a delivery has the form of an answer to get-message. req: the
    subscription's req, None for the answer to a request."""
    answer = GetMessage(
        message.qid,
        message.mid,
        payload=message.payload,
        status=message.status,
        receives=message.receives,
        pushed_at=message.pushed_at,
        visible_at=message.visible_at,
        reason=message.reason,
        priority=message.priority or None,
        group=message.group or None,
        expires_at=message.expires_at,
        req=req,
        type="response",
    )
    if message.headers:
        answer.headers = dict(message.headers)
    return answer if message.origin is None else with_origin(answer, message.origin)


def entry_of(message: Stored, status: str | None = None) -> Delivery:
    """Returns the list entry for a message of a claim, or one that was peeked at. status: shown if it was peeked
    at."""
    entry = Delivery(
        message.mid,
        message.payload or b"",
        receives=message.receives,
        pushed_at=message.pushed_at,
        visible_at=message.visible_at,
        status=status,
        reason=message.reason,
        priority=message.priority or None,
        group=message.group or None,
        expires_at=message.expires_at,
        headers=dict(message.headers),
    )
    return entry if message.origin is None else with_origin(entry, message.origin)


def with_origin(answer: _Answer, origin: Origin | None) -> _Answer:
    """Adds the origin of a dead letter to an answer, and returns the answer. origin: None for a message that is not a
    dead letter."""
    if origin is not None:
        answer.dead_from, answer.dead_mid, answer.dead_receives = origin.qid, origin.mid, origin.receives or None
        answer.dead_at, answer.dead_reason = origin.at or None, origin.reason
    return answer
