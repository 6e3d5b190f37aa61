"""Delivers the messages of queues to their subscribers.

A delivery is a receive: it hides the message for its visibility window, and counts against the subscription's prefetch
until somebody deletes or releases the message, its window ends, or the connection ends.

How it works. Queues that may have messages to deliver are noted in `_to_serve`, when messages have arrived or a
subscription has free prefetch again. After its commit, each batch calls `dispatch`, which receives for these queues in
round-robin order of their subscriptions. The deliveries stay pending (`Subscriber.mail`) until the loop sends them at
the end of the batch. So deliveries cost no commit of their own, and an idle queue costs nothing.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Protocol

from qs_schemas import ErrorCode, Fault, Message, errors
from qs_serving.answers import new_resp
from qs_storage.engine import (
    SECOND,
    Clock,
    NoRoomError,
    NoSuchMessageError,
    NoSuchQueueError,
    Receipt,
    StaleReceiptError,
)
from qs_storage.engine import Message as Received

from .subscriber import OVERHEAD, Key, Leases, Subscriber, Subscription, cost, delivery_of

if TYPE_CHECKING:
    from ..history.history import History

_logger = logging.getLogger(__name__)
SLICE = 200
"""The most messages that one batch delivers, so that requests do not wait long: some 20 ms."""
_GIVEN_BACK = 100
"""The most messages of closed connections that one batch gives back: some 20 ms as well."""
_GIVING_BACK = SECOND // 50
"""Microseconds after which a batch gives no more back: moving a message to a dead-letter queue may take long."""
_QUEUES = 100
"""Queues of a closed subscription that count as much as one message given back."""
_TRY_AGAIN = 1 * SECOND
"""Microseconds until a queue that could not be read is tried again. With every batch, each would fail and be logged."""


Refusals = Callable[[Collection[str]], tuple[ErrorCode, str] | None]
"""Returns why a client may not read these queues (error code, text), None if it may."""


class Source(Protocol):
    """Supplies the messages of subscriptions, from the server's engine and from other servers.

    Ensures that no method waits for another server. Assumes calls in batches. The one implementation is
    `fetcher.FetchedSource`, whose module imports this one."""

    def has(self, qid: str) -> bool:
        """Tells whether there is a queue of this name."""

    def receive(
        self, qid: str, count: int, visibility: int | None, max_bytes: int, room: Callable[[str], int]
    ) -> list[Received]:
        """Receives like an Engine, for one subscriber. room: returns how many messages of a queue all its subscribers
        together could take, so that a call to another server fetches for all of them."""

    def release(self, qid: str, receipt: Receipt, delay: int | None) -> int | None:
        """Releases a message as `Queue.release` does."""

    def deserted(self, qid: str) -> None:
        """Notes that a queue has no subscriptions any more."""


class Subscriptions:
    """Delivers the messages of a server to its subscribers.

    Ensures:
    1. A subscription holds at most `prefetch` messages, and a subscriber that does not read gets no more than fits into
       its outbox.
    2. The subscriptions of a queue get its messages round robin, and the queues are served round robin: a queue with
       many messages does not keep the others waiting.
    3. Messages of a subscription that has ended are visible again, or back off, as if their receives had failed; but
       when the server stops, they are visible at once.
    4. A batch delivers and gives back so many messages at most that requests do not wait long.

    Assumes that all methods are called in batches, and that `settled` is told of each message that is deleted, released
    or received again. This class never waits, and never sends: deliveries are collected until the batch is
    committed."""

    def __init__(self, source: Source, clock: Clock, history: "History | None" = None) -> None:
        self._source = source
        self._history = history
        self._clock = clock
        self._by_queue: dict[str, OrderedDict[Subscription, None]] = {}
        """The subscriptions of each queue; the next to get a message comes first."""
        self._leases = Leases()
        self._to_serve: dict[str, None] = {}  # queues to serve, in this order
        self.mail: set[Subscriber] = set()
        """The subscribers that have pending deliveries since the last `take_mail`."""
        self._leaving: deque[tuple[Subscription, list[Key]]] = deque()
        """Subscriptions that have ended, each with the messages to give back, in reverse order: the oldest is popped
        first."""
        self._delay: int | None = None
        """The delay with which messages of ended subscriptions are released, None for the back-off of their queues."""
        self._failed: set[str] = set()  # queues that could not be read, until `_try_again`
        self._try_again: int | None = None
        self._lacking: Key | None = None  # the message that could not be given back for lack of room in the log
        self.busy = False
        """True if `dispatch` should be called at the end of each batch. An attribute, as each batch reads it."""

    # -- subscribing

    def open(self, subscription: Subscription) -> None:
        """Adds a subscription, which gets messages after `start`."""
        self.busy = True
        subscription.subscriber.subscriptions[subscription.req] = subscription
        subscription.subscriber.new.append(subscription)

    def start(self, subscriber: Subscriber) -> None:
        """Begins to serve a subscriber's new subscriptions. Called when the answers to the subscribe requests are in
        the outbox."""
        new, subscriber.new = subscriber.new, []
        for subscription in new:
            if not subscription.closed:
                for qid in subscription.qids:
                    self._by_queue.setdefault(qid, OrderedDict())[subscription] = None
                self.feed(subscription)

    def feed(self, subscription: Subscription) -> None:
        """Notes that a subscription may have free prefetch: its queues are served in the next `dispatch`."""
        self.busy = True
        self._to_serve.update(dict.fromkeys(subscription.qids))

    def has_come(self, qid: str) -> None:
        """Notes that a queue may have visible messages."""
        self.busy = True
        self._to_serve[qid] = None

    def feed_all(self, subscriber: Subscriber) -> None:
        """Notes that a subscriber has free outbox again, after a full outbox had blocked all its subscriptions."""
        for subscription in subscriber.subscriptions.values():
            self.feed(subscription)

    def close(self, subscription: Subscription) -> None:
        """Ends a subscription. The client keeps the messages that it holds."""
        subscription.closed = True
        for qid in subscription.qids:
            in_turn = self._by_queue.get(qid)
            if in_turn is not None and subscription in in_turn:
                del in_turn[subscription]
                if not in_turn:
                    del self._by_queue[qid]
                    self._source.deserted(qid)
        self._leave_if_over(subscription)

    def _leave_if_over(self, subscription: Subscription) -> None:
        """Frees the req of a subscription that is closed and holds no message."""
        if subscription.closed and not subscription.receives:
            known = subscription.subscriber.subscriptions
            if known.get(subscription.req) is subscription:
                del known[subscription.req]

    def drop(self, subscriber: Subscriber) -> None:
        """Ends the subscriptions of a closed connection. `give_back` releases the connection's messages later; until
        then other clients may still delete or release them."""
        # They leave the round-robin order with `close`, in a slice: there may be thousands of queues.
        self.mail.discard(subscriber)
        self.busy = True
        for subscription in subscriber.subscriptions.values():
            subscription.closed = True
            self._leaving.append((subscription, list(subscription.receives)[::-1]))

    def stop(self) -> None:
        """Notes that the server stops: from now on, messages that are given back are visible at once. The subscribers
        did not fail, so the messages must not back off."""
        self._delay = 0

    def give_back(self) -> None:
        """Releases a slice of the messages of ended subscriptions: see `leaving`. Raises NoRoomError if the log lacks
        room for a release: the next call begins with the same message, and leaves it hidden if the room is still
        lacking."""
        left, until = _GIVEN_BACK, self._clock() + _GIVING_BACK
        while self._leaving and left > 0:
            subscription, held = self._leaving[0]
            while held and left > 0:
                self._give_back(subscription, held[-1])
                held.pop()  # only now: after a NoRoomError the next call begins with this message
                left = left - 1 if self._clock() < until else 0
            if not held:
                self._leaving.popleft()
                self.close(subscription)
                left -= 1 + len(subscription.qids) // _QUEUES  # it may have thousands of queues, and no message

    def _give_back(self, subscription: Subscription, key: Key) -> None:
        receives = subscription.receives.get(key)
        if receives is None:
            return  # it was acknowledged or received meanwhile
        if self._history is not None:
            self._history.begin(subscription.subscriber.peer)
        try:
            self._source.release(key[0], Receipt(key[1], receives), self._delay)
        except (NoSuchQueueError, NoSuchMessageError, StaleReceiptError):
            pass  # the subscriber does not hold it any more
        except OSError as error:
            if isinstance(error, NoRoomError) and self._lacking != key:
                self._lacking = key  # one more try, in a batch that has room for it
                raise
            _logger.error("message %s of %r stays hidden until its window ends: %s", key[1], key[0], error)
        self._end(key)

    def end_forbidden(self, subscriber: Subscriber, find: Refusals) -> None:
        """Ends the subscriptions that the client may not have any more, and gives back their messages. Keeps a
        subscription that has not started: its end must not be sent before the answer to its request."""
        for subscription in list(subscriber.subscriptions.values()):  # `close` changes the dictionary
            begun = not subscription.closed and subscription not in subscriber.new
            refusal = find(subscription.qids) if begun else None
            if refusal is not None:
                self.close(subscription)
                self._leaving.append((subscription, list(subscription.receives)[::-1]))
                self._post(subscriber, Fault(*refusal, subscription.req).message(new_resp()))

    # -- messages that were sent

    def receipt(self, subscriber: Subscriber, qid: str, mid: int) -> Receipt | None:
        """Returns the receipt of a message if this subscriber holds the message, else None."""
        subscription = self._leases.holder((qid, mid))
        if subscription is None or subscription.subscriber is not subscriber:
            return None
        return Receipt(mid, subscription.receives[qid, mid])

    def settled(self, qid: str, mid: int) -> None:
        """Ends the lease of a message that was deleted, released or received again. The subscription that held the
        message has free prefetch again."""
        subscription = self._end((qid, mid)) if self._leases.count else None
        if subscription is not None and not subscription.closed:
            self.feed(subscription)

    def _end(self, key: tuple[str, int]) -> Subscription | None:
        subscription = self._leases.end(key)
        if subscription is not None:
            self._leave_if_over(subscription)
        return subscription

    def extended(self, qid: str, mid: int, end: int) -> None:
        """Moves the end of the lease of a message whose window was extended. end: the new end, in microseconds since
        the Epoch."""
        self._leases.move((qid, mid), end)

    def purged(self, qid: str, upto: int) -> None:
        """Ends the leases of purged messages. upto: the greatest id of a purged message."""
        self._end_all(qid, upto)

    def gone(self, qid: str) -> None:
        """Ends the leases of a deleted queue, and the subscriptions that have no other queue."""
        self._end_all(qid)
        for subscription in self._by_queue.pop(qid, ()):
            subscription.qids.discard(qid)
            if not subscription.qids and not subscription.closed:
                self.close(subscription)
                fault = Fault(errors.NOT_FOUND, f"there is no queue {qid!r} any more", subscription.req)
                self._post(subscription.subscriber, fault.message(new_resp()))

    def _end_all(self, qid: str, upto: int | None = None) -> None:
        for subscription in self._leases.end_all(qid, upto):
            self._leave_if_over(subscription)
            if not subscription.closed:
                self.feed(subscription)

    # -- delivering

    def dispatch(self, arrived: Iterable[str], most: int = SLICE) -> int:
        """Delivers messages of the queues in `arrived`, and of the queues in `_to_serve`. most: how many messages the
        batch may still deliver. Returns how many it may deliver after that."""
        self._end_due()
        if self._by_queue:
            most = self._dispatch(arrived, most)
        else:
            self._to_serve.clear()
        self.busy = bool(
            self._by_queue or self._to_serve or self._leaving or self._leases.count or self._failed or self.mail
        )
        return most

    def _dispatch(self, arrived: Iterable[str], left: int) -> int:
        found = dict.fromkeys([*self._to_serve, *arrived])
        qids = [qid for qid in found if qid in self._by_queue and qid not in self._failed]
        self._to_serve.clear()
        unserved: list[str] = []
        for qid in qids:
            if left > 0:
                left -= self._serve(qid, left)
            else:
                unserved.append(qid)
        if unserved:  # before the queues that were served: a queue with many messages must not take every slice
            self._to_serve = dict.fromkeys([*unserved, *self._to_serve])
        return left

    def count(self, qid: str) -> int:
        return sum(not each.closed for each in self._by_queue.get(qid, ()))

    @property
    def total(self) -> int:
        """The number of open subscriptions, each to one queue or several."""
        return len({each for in_turn in self._by_queue.values() for each in in_turn if not each.closed})

    def is_waiting(self, qid: str) -> bool:
        """Returns True if a queue is noted for the next `dispatch`."""
        return qid in self._to_serve

    def room(self, qid: str) -> int:
        """Returns the free prefetch of all subscriptions to a queue together."""
        return sum(max(each.prefetch - len(each.receives), 0) for each in self._by_queue.get(qid, ()))

    def _end_due(self) -> None:
        """Ends leases whose time is over, and notes failed queues to be served again after a while."""
        if self.next_due() is None:
            return
        now = self._clock()
        while (key := self._leases.due(now)) is not None:
            self.settled(*key)
        if self._try_again is not None and self._try_again <= now:
            self._try_again = None
            self._to_serve.update(dict.fromkeys(self._failed))
            self._failed.clear()

    def next_due(self) -> int | None:
        """Returns the time at which `dispatch` should be called even if nothing happens before, None for never."""
        end = self._leases.next_end()
        if self._try_again is None or end is None:
            return self._try_again if end is None else end
        return min(end, self._try_again)

    @property
    def active(self) -> bool:
        return bool(self._by_queue)

    @property
    def unfinished(self) -> bool:
        """True if messages are left to deliver or to give back."""
        return bool(self._to_serve or self._leaving)

    @property
    def leaving(self) -> bool:
        """True if messages of ended subscriptions have still to be given back."""
        return bool(self._leaving)

    def _serve(self, qid: str, most: int) -> int:
        """Delivers messages of a queue. Returns the number of messages. most: how many messages the slice may still
        deliver."""
        given = 0
        try:
            if not self._source.has(qid):
                self.gone(qid)
                return 0
            while (subscription := self._next(qid)) is not None:
                if given >= most:
                    self._to_serve[qid] = None  # the slice is used up: the next batch goes on
                    break
                found = self._receive(qid, subscription, most - given)
                if not found:
                    self._by_queue[qid].move_to_end(subscription, last=False)  # it got nothing, so it stays first
                    break
                given += len(found)
        except NoSuchQueueError:
            self.gone(qid)
        except Exception as error:
            # The other queues are still served, and this one is not tried again in each batch.
            known = isinstance(error, OSError)
            _logger.error("messages of %r could not be handed out: %s", qid, error, exc_info=not known)
            self._failed.add(qid)
            self._try_again = self._clock() + _TRY_AGAIN
        return given

    def _next(self, qid: str) -> Subscription | None:
        """Returns the next subscription that can take a message, and moves it to the end of the order; None if no
        subscription can."""
        in_turn = self._by_queue.get(qid) or OrderedDict[Subscription, None]()
        for _ in range(len(in_turn)):
            subscription = next(iter(in_turn))
            in_turn.move_to_end(subscription)
            if not subscription.closed and subscription.has_room():
                return subscription
        return None

    def _receive(self, qid: str, subscription: Subscription, most: int) -> list[Received]:
        """Receives messages of a queue for a subscription, and makes a delivery of each. Returns the messages."""
        subscriber = subscription.subscriber
        count = 1  # several subscriptions get one message each, round robin; a single one gets all that it can take
        if len(self._by_queue[qid]) == 1:
            count = min(most, subscription.prefetch - len(subscription.receives), subscriber.room // OVERHEAD // 2 + 1)
        room = subscriber.room - count * OVERHEAD
        if self._history is not None:
            self._history.begin(subscriber.peer)
        found = self._source.receive(qid, count, subscription.visibility, room, self.room)
        for message in found:
            self.settled(qid, message.mid)  # ends a lease of another subscription whose window is over
            key = qid, message.mid
            self._leases.begin(key, subscription, message.receives, message.visible_at or 0)
            delivery = delivery_of(message, subscription.req)
            subscriber.assigned += cost(delivery)
            self._post(subscriber, delivery)
        return found

    def _post(self, subscriber: Subscriber, message: Message) -> None:
        subscriber.mail.append(message)
        self.mail.add(subscriber)

    def take_mail(self) -> set[Subscriber]:
        """Returns the subscribers that have new pending deliveries since the last call."""
        mail, self.mail = self.mail, set()
        return mail
