"""Who is to be sent the messages of which queues, and what each has been sent and not acknowledged.

Everything here runs where the engine runs, in a batch, but for `Subscriber.written`. A message that is sent is received
from the engine: it is hidden from others for its visibility window. It counts against the subscription's prefetch until
it is deleted or released by anybody, or its window ends, or the connection does.
"""

import heapq
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from qs_schemas import Fault, GetMessage, Message
from qs_schemas import errors as table
from qs_serving.answers import new_resp

from .storage.engine import Clock, Engine, NoSuchMessageError, NoSuchQueueError, Receipt, StaleReceiptError
from .storage.engine import Message as Received

_logger = logging.getLogger(__name__)
_SLICE = 200
"""Messages that one batch hands out, so that requests do not have to wait for long: some 20 ms."""


@dataclass(slots=True, eq=False)
class Subscriber:
    """A connection with subscriptions. outbox: bytes of payload that may wait for it to read them; deliver: called in
    the loop when there is mail.

    assigned is counted in batches, written by the loop: each by one thread.
    """

    outbox: int
    deliver: Callable[[], None]
    subscriptions: dict[str | None, "Subscription"] = field(default_factory=dict)
    assigned: int = 0
    written: int = 0
    starved: bool = False
    """It was left out because of its outbox, and wants to be asked again when that is read."""
    mail: list[Message] = field(default_factory=list)
    """What it is to be sent; the loop takes it when a batch has ended."""
    new: list["Subscription"] = field(default_factory=list)
    """Those that begin once their subscriber has the answer that says so."""

    @property
    def room(self) -> int:
        """Bytes of payload that it may be sent now."""
        return self.outbox - (self.assigned - self.written)

    def has_read(self, size: int) -> bool:
        """In the loop: so many bytes of payload have gone. Whether it wants to be asked again."""
        self.written += size
        if not self.starved or self.room * 2 < self.outbox:
            return False
        self.starved = False
        return True

    def is_starved(self) -> bool:
        """In a batch: whether there is no room. If so, `has_read` will say when there is: it looks at the mark after
        it has counted, and this at the count after it has set the mark, so one of the two notices."""
        if self.room > 0:
            return False
        self.starved = True
        return self.room <= 0


@dataclass(slots=True, eq=False)
class Subscription:
    """One subscribe request that is being served. visibility: microseconds, None for the queues' own."""

    subscriber: Subscriber
    req: str | None
    qids: set[str]
    prefetch: int
    visibility: int | None
    leases: dict[tuple[str, int], "Lease"] = field(default_factory=dict)
    ends: list[tuple[int, str, int]] = field(default_factory=list)
    """When the leases end, as a heap; entries of those that have ended otherwise may still be in it."""
    closed: bool = False

    def hold(self, qid: str, mid: int, lease: "Lease") -> None:
        """A message has been sent, or its window ends at another time."""
        self.leases[qid, mid] = lease
        heapq.heappush(self.ends, (lease.end, qid, mid))
        if len(self.ends) > 2 * len(self.leases) + 64:
            self.ends = [(lease.end, *key) for key, lease in self.leases.items()]
            heapq.heapify(self.ends)

    def take_due(self, now: int) -> list[tuple[str, int]]:
        """The messages whose window is over."""
        due: list[tuple[str, int]] = []
        while self.ends and self.ends[0][0] <= now:
            end, qid, mid = heapq.heappop(self.ends)
            lease = self.leases.get((qid, mid))
            if lease is not None and lease.end == end:
                due.append((qid, mid))
        return due


class Lease(NamedTuple):
    """A message that has been sent. receives: as it was sent; end: of its window."""

    receives: int
    end: int


class Subscriptions:
    """Of one server."""

    def __init__(self, storage: Engine, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._rings: dict[str, deque[Subscription]] = {}
        self._holders: dict[tuple[str, int], Subscription] = {}
        self._hungry: set[str] = set()
        self._mail: set[Subscriber] = set()

    # -- subscribing

    def open(self, subscription: Subscription) -> None:
        """Takes it up. It is served from `start` on."""
        subscription.subscriber.subscriptions[subscription.req] = subscription
        subscription.subscriber.new.append(subscription)

    def start(self, subscriber: Subscriber) -> None:
        """Serves what was opened."""
        new, subscriber.new = subscriber.new, []
        for subscription in new:
            if not subscription.closed:
                for qid in subscription.qids:
                    self._rings.setdefault(qid, deque()).append(subscription)
                self.feed(subscription)

    def feed(self, subscription: Subscription) -> None:
        """It may have room."""
        self._hungry |= subscription.qids

    def feed_all(self, subscriber: Subscriber) -> None:
        """It has room in its outbox."""
        for subscription in subscriber.subscriptions.values():
            self.feed(subscription)

    def close(self, subscription: Subscription) -> None:
        """Sends nothing more for it. What it was sent stays with its subscriber."""
        subscription.closed = True
        for qid in subscription.qids:
            ring = self._rings.get(qid)
            if ring is not None and subscription in ring:
                ring.remove(subscription)
                if not ring:
                    del self._rings[qid]
        if not subscription.leases:
            subscription.subscriber.subscriptions.pop(subscription.req, None)

    def drop(self, subscriber: Subscriber) -> None:
        """The connection has ended: everything that it has not acknowledged is visible again."""
        self._mail.discard(subscriber)
        for subscription in list(subscriber.subscriptions.values()):
            for (qid, mid), lease in list(subscription.leases.items()):
                self._give_back(qid, mid, lease.receives)
                self._forget(qid, mid)
            self.close(subscription)

    def _give_back(self, qid: str, mid: int, receives: int) -> None:
        try:
            self._storage.release(qid, Receipt(mid, receives), 0)
        except (NoSuchQueueError, NoSuchMessageError, StaleReceiptError):
            pass  # it is not the subscriber's any more
        except OSError as error:
            _logger.error("message %s of %r stays hidden until its window ends: %s", mid, qid, error)

    # -- what becomes of messages

    def receipt(self, subscriber: Subscriber, qid: str, mid: int) -> Receipt | None:
        """Of a message that this subscriber holds."""
        subscription = self._holders.get((qid, mid))
        if subscription is None or subscription.subscriber is not subscriber:
            return None
        return Receipt(mid, subscription.leases[qid, mid].receives)

    def settled(self, qid: str, mid: int) -> None:
        """A message has been deleted, released or received anew: nobody holds it any more."""
        subscription = self._forget(qid, mid)
        if subscription is not None and not subscription.closed:
            self.feed(subscription)

    def _forget(self, qid: str, mid: int) -> Subscription | None:
        subscription = self._holders.pop((qid, mid), None)
        if subscription is not None:
            del subscription.leases[qid, mid]
            if subscription.closed and not subscription.leases:
                subscription.subscriber.subscriptions.pop(subscription.req, None)
        return subscription

    def extended(self, qid: str, mid: int, end: int) -> None:
        """The window of a message ends at another time."""
        subscription = self._holders.get((qid, mid))
        if subscription is not None:
            subscription.hold(qid, mid, subscription.leases[qid, mid]._replace(end=end))

    def purged(self, qid: str, upto: int) -> None:
        """Every message up to an id is gone."""
        for key in [key for key in self._holders if key[0] == qid and key[1] <= upto]:
            self.settled(*key)

    # -- handing out

    def dispatch(self, arrived: Iterable[str]) -> None:
        """Hands out what there is in these queues, and in those of whoever has got room since the last call."""
        if not self._rings:
            self._hungry.clear()
            return
        qids = {qid for qid in arrived if qid in self._rings} | (self._hungry & self._rings.keys())
        self._hungry.clear()
        left = _SLICE
        for qid in qids:
            if left > 0:
                left -= self._serve(qid, left)
            else:
                self._hungry.add(qid)

    @property
    def active(self) -> bool:
        """Whether anybody subscribes to anything."""
        return bool(self._rings)

    @property
    def unfinished(self) -> bool:
        """Whether the last call has left something for the next."""
        return bool(self._hungry)

    def _serve(self, qid: str, most: int) -> int:
        given = 0
        now = self._clock()
        try:
            while (subscription := self._next(qid, now)) is not None:
                if given >= most:
                    self._hungry.add(qid)
                    break
                found = self._receive(qid, subscription, min(most - given, subscription.prefetch))
                if not found:
                    break
                given += len(found)
        except NoSuchQueueError:
            self._gone(qid)
        except OSError as error:
            _logger.error("messages of %r could not be handed out: %s", qid, error)
        return given

    def _next(self, qid: str, now: int) -> Subscription | None:
        """The one whose turn it is, of those that have room. It is the last the next time."""
        ring = self._rings.get(qid) or deque[Subscription]()
        for _ in range(len(ring)):
            subscription = ring[0]
            ring.rotate(-1)
            for key in subscription.take_due(now):
                self._forget(*key)
            if len(subscription.leases) < subscription.prefetch and not subscription.subscriber.is_starved():
                return subscription
        return None

    def _receive(self, qid: str, subscription: Subscription, most: int) -> list[Received]:
        # One at a time where several share the queue; a lone one gets all that it has room for.
        alone = len(self._rings[qid]) == 1
        count = min(most, subscription.prefetch - len(subscription.leases)) if alone else 1
        subscriber = subscription.subscriber
        found = self._storage.receive((qid,), count, subscription.visibility, subscriber.room, held=True)
        for message in found:
            self.settled(qid, message.mid)  # should anybody have held it, that is over
            subscription.hold(qid, message.mid, Lease(message.receives, message.visible_at or 0))
            self._holders[qid, message.mid] = subscription
            subscriber.assigned += len(message.payload or b"")
            self._post(subscriber, _delivery(message, subscription.req))
        return found

    def _gone(self, qid: str) -> None:
        """The queue has been deleted. A subscription to nothing but it is over."""
        for key in [key for key in self._holders if key[0] == qid]:
            self._forget(*key)
        for subscription in self._rings.pop(qid, ()):
            subscription.qids.discard(qid)
            if not subscription.qids:
                subscription.closed = True
                subscription.subscriber.subscriptions.pop(subscription.req, None)
                fault = Fault(table.NOT_FOUND, f"there is no queue {qid!r} any more", subscription.req)
                self._post(subscription.subscriber, fault.message(new_resp()))

    def _post(self, subscriber: Subscriber, message: Message) -> None:
        subscriber.mail.append(message)
        self._mail.add(subscriber)

    def take_mail(self) -> set[Subscriber]:
        """Those who have been handed something since the last call."""
        mail, self._mail = self._mail, set()
        return mail


def _delivery(message: Received, req: str | None) -> GetMessage:
    return GetMessage(
        message.qid,
        message.mid,
        payload=message.payload,
        status=message.status,
        receives=message.receives,
        pushed_at=message.pushed_at,
        visible_at=message.visible_at,
        req=req,
        type="response",
    )
