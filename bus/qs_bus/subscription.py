"""Implements one subscription of one client, with the messages that were sent and not handled, and those that wait to
be sent."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat
from sys import maxsize
from typing import TYPE_CHECKING

from qs_schemas import Peer
from qs_serving.outbox import Outbox
from qs_serving.timers import Timers

from .feeds import DeliveryBatch, HeldMessage, report_handled
from .options import BusOptions, Policy

if TYPE_CHECKING:
    from .conditions import Condition
    from .feeds import Feed

BYTES, MESSAGES = "bytes", "messages"
"""The bounds that a slow subscriber can exceed: --outbox, and --max-hold."""
_IN_A_WRITE = 64
"""Waiting messages that are sent with one write: all at once would hold up the other clients."""
_PREFETCH = 100
"""Messages that an acknowledging client may have unacknowledged unless it says how many."""
_TOO_SLOW = "this subscriber is too slow: more than {} are waiting for it; read faster, or raise {} of the bus"


@dataclass(slots=True)
class DeliveryCounts:
    """Counts deliveries: a message that goes to three subscribers counts three times. disconnected: the number of
    subscribers that were too slow, by the bound that they exceeded."""

    deliveries: int = 0
    disconnected: dict[str, int] = field(default_factory=lambda: {BYTES: 0, MESSAGES: 0})


class Subscription:
    """Sends the messages of its feeds to one client, and reports to the feeds what becomes of the messages. Implements
    `Member`.

    Ensures:
    1. Each message from a feed is reported once, as handled or not; a released message that the bus delivers again
       counts as the same message.
    2. An acknowledging client has at most `prefetch` messages unacknowledged; no client has much more than an outbox
       unread.
    3. The messages of a feed are sent in the feed's order, except for released ones.

    Assumes that the connection calls `written` when the socket has taken a document, and `pump` when the outbox has
    been emptied further. A subscription must never wait for its client, or drop a message without a report: the message
    would stay in flight.

    req: the req of the subscribe request; ack: True if the client acknowledges; name: the durable name, if any;
    owner: that of the name; patterns: matches the queues that belong to the subscription, None if the client has named
    its queues; condition: what messages must match, None for every message; asked: False for a client that was
    subscribed because it was silent; peer: knows how the client's documents end; dismiss:
    called with the exceeded bound and a text, to end the connection; counts: the counts of the bus.

    A message counts as handled when it is written to a client that does not acknowledge. For a silent client this stays
    in doubt until `confirm_silent`: if the client sends a request before, it got the messages by mistake.
    """

    __slots__ = (
        "_counts", "_dismiss", "_doubtful", "_options", "_outbox", "_peer", "ack", "asked", "condition", "delayed",
        "ending", "feeds", "name", "owner", "patterns", "pending", "prefetch", "req", "waiting", "waiting_bytes",
    )  # fmt: skip

    def __init__(
        self,
        outbox: Outbox,
        peer: Peer,
        options: BusOptions,
        dismiss: Callable[[str, str], None],
        counts: DeliveryCounts,
        *,
        req: str | None = None,
        ack: bool = False,
        prefetch: int | None = None,
        name: str | None = None,
        owner: str | None = None,
        patterns: re.Pattern[str] | None = None,
        condition: Condition | None = None,
        asked: bool = True,
    ) -> None:
        self._outbox = outbox
        self._peer = peer
        self._options = options
        self._dismiss = dismiss
        self._counts = counts
        self.req = req
        self.ack = ack
        self.prefetch = prefetch or _PREFETCH
        self.name = name
        self.owner = owner
        self.patterns = patterns
        self.condition = condition
        self.asked = asked
        self._doubtful: list[HeldMessage] | None = None if asked else []  # written, and pending
        self.feeds: list[Feed] = []
        self.pending: dict[tuple[str, int], HeldMessage] = {}
        """Messages that were sent and not handled: not acknowledged, or (without ack) not taken by the socket, or in
        doubt."""
        self.waiting: deque[HeldMessage] | None = None
        """Messages that wait to be sent, the oldest first."""
        self.waiting_bytes = 0
        self.delayed: dict[HeldMessage, Callable[[], None]] | None = None
        """Messages that were released with a delay that is not over yet: message -> function that cancels the delay."""
        self.ending = False
        """True once the client has been told that the connection ends; nothing may follow that."""

    @property
    def where(self) -> str | None:
        """The text of the condition."""
        return None if self.condition is None else self.condition.text

    @property
    def form(self) -> tuple[str | None, bool]:
        return self.req, self._peer.early

    @property
    def room(self) -> tuple[int, int]:
        # A document is sent as a whole, so an outbox that is not full may exceed its bound by one message.
        size = self._options.limits.outbox - self._outbox.unsent
        if self.ending or size <= 0:
            return 0, 0
        return (self.prefetch - len(self.pending) if self.ack else maxsize), size

    @property
    def blocked(self) -> bool:
        return bool(self.waiting)

    def offer(self, batch: DeliveryBatch) -> None:
        if not self.waiting and (most := self._fitting(batch)) == len(batch.messages):  # nearly always
            self.send(batch)
            return
        messages, at = batch.messages, 0
        while not self.waiting and at < len(messages) and most:
            part = batch.part(at, at + most, self.form)
            self.send(part)
            part.report()
            at += most
            most = self._fitting(batch, at)
        for message in messages[at:]:
            self.enqueue(message)

    def _fitting(self, batch: DeliveryBatch, start: int = 0) -> int:
        """Returns how many messages of a batch can be sent together now, from one of them on."""
        most, size = self.room
        if most <= 0:
            return 0
        documents, together = batch.documents(self.form)
        stop = min(len(documents), start + most)
        if len(together) > size:
            for at in range(start, stop):
                size -= len(documents[at])
                if size <= 0:
                    return at + 1 - start
        return stop - start

    def send(self, batch: DeliveryBatch) -> None:
        messages = batch.messages
        self._counts.deliveries += len(messages)
        # The tokens come back with `written`, unless the socket takes all at once: the outbox keeps none then.
        taken = self._outbox.put_all(*batch.documents(self.form), zip(repeat(self), messages))
        if self._doubtful is not None:  # a client in doubt did not ask for them
            self.pending.update(zip(batch.keys, messages, strict=True))
            for message in messages[:taken]:
                self.written(message)
            return
        at = 0 if self.ack else taken
        if at:
            batch.handled(at)
        if at < len(messages):
            for message in messages[at:]:
                message.delivered = True
            self.pending.update(zip(batch.keys[at:], messages[at:], strict=True))

    def written(self, message: HeldMessage) -> None:
        """Notes that the socket has taken the last byte of a message."""
        # The outbox sends what it has begun also after the subscription has left the feed: that is reported already.
        if self.ack or self.pending.get(message.key) is not message:
            return
        if self._doubtful is not None:
            self._doubtful.append(message)
            message.feed.doubt(message)
            return
        del self.pending[message.key]
        message.feed.handled([message])

    @property
    def doubtful(self) -> bool:
        """True if the client may have got messages by mistake."""
        return self._doubtful is not None

    def confirm_silent(self) -> None:
        """Reports the written messages as handled: the client has turned out to be one that only listens."""
        written = self._settle_doubts(self.feeds)
        for message in written:
            self.pending.pop(message.key, None)
        report_handled(written)
        self._doubtful = None

    def _settle_doubts(self, feeds: list[Feed]) -> list[HeldMessage]:
        """Removes and returns the messages of these feeds that the client may have got by mistake."""
        found = [message for message in self._doubtful or () if message.feed in feeds]
        for message in found:
            message.doubtful -= 1
        if found and self._doubtful is not None:
            self._doubtful = [message for message in self._doubtful if message.feed not in feeds]
        return found

    def enqueue(self, message: HeldMessage) -> None:
        """Keeps a message until it can be sent. Dismisses the client if its waiting messages exceed a bound."""
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.append(message)
        self.waiting_bytes += message.size
        message.awaiting_room += 1
        if self._options.policy is Policy.DISCONNECT and self.waiting_bytes > self._options.limits.outbox:
            self._dismiss(BYTES, _TOO_SLOW.format(f"{self._options.limits.outbox} bytes", "--outbox"))
        else:
            self._check_bound()

    def drop_waiting(self, message: HeldMessage) -> bool:
        if not self.waiting or message not in self.waiting:
            return False
        self.waiting.remove(message)
        self.waiting_bytes -= message.size
        return True

    def _check_bound(self) -> None:
        if len(self.waiting or ()) + len(self.delayed or ()) > self._options.hold:
            self._dismiss(MESSAGES, _TOO_SLOW.format(f"{self._options.hold} messages", "--max-hold"))

    def pump(self) -> None:
        waiting = self.waiting
        # Without feeds the subscription is leaving, and its waiting messages go back to the feeds.
        while waiting and self.feeds and (found := self._sendable(waiting)):
            batch = DeliveryBatch(found)
            batch = batch.part(0, self._fitting(batch), self.form)
            for message in batch.messages:
                waiting.popleft()
                self.waiting_bytes -= message.size
            self.send(batch)
            for message in batch.messages:
                message.feed.release_payload(message)
            batch.report()
        if waiting and self.feeds and waiting[0].payload is None and self.room[0] > 0:
            # Later messages stay too, also if their payloads are in memory: the order is a promise.
            waiting[0].feed.fetch(waiting)
            return
        for feed in self.feeds:
            feed.on_room(self)

    def _sendable(self, waiting: deque[HeldMessage]) -> list[HeldMessage]:
        """Returns the first of the waiting messages, as many as may fit into one write. Their documents, which are
        longer than the payloads, decide how many do."""
        most, size = self.room
        found: list[HeldMessage] = []
        for message in waiting:
            if len(found) >= min(most, _IN_A_WRITE) or size <= 0 or message.payload is None:
                break
            found.append(message)
            size -= message.size
        return found

    def take(self, key: tuple[str, int]) -> HeldMessage | None:
        """Removes and returns the message that the client acknowledges or releases. Returns None if the client does not
        have the message, or does not acknowledge at all. The caller reports the message to its feed."""
        return self.pending.pop(key, None) if self.ack else None

    def acknowledged(self, messages: list[HeldMessage]) -> None:
        """Reports messages that the client has acknowledged, and sends what there is room for now."""
        report_handled(messages)
        self.pump()

    def delay(self, message: HeldMessage, seconds: float, timers: Timers) -> None:
        """Delivers a released message again after so many seconds. Until then the message does not count against the
        prefetch."""
        # The server does not count receives of this queue, so the bus itself waits: the message keeps its `receives`.
        due = timers.add(seconds, lambda: self._resume(message))
        self.delayed = self.delayed or {}
        self.delayed[message] = lambda: timers.cancel(due)
        message.feed.count_delayed(1)
        self._check_bound()
        self.pump()

    def _resume(self, message: HeldMessage) -> None:
        """Delivers a message whose delay has passed."""
        if self.delayed is not None:
            del self.delayed[message]
        message.feed.count_delayed(-1)
        message.feed.resend(message, self)

    def leave(self, only: Feed | None = None, *, denied: bool = False) -> None:
        """Leaves the feeds. only: the one feed to leave, None for all; denied: True if the client must not get messages
        that the socket has not taken yet."""
        feeds = self.feeds if only is None else [only]
        self.feeds = [feed for feed in self.feeds if feed not in feeds]
        if denied or not self.ack:  # with ack, a message that is still sent is not lost: it is unacknowledged
            self._outbox.withdraw(lambda token: token[0] is self and token[1].feed in feeds)
        # Doubts first, as they are subtracted from the members that a feed waits for.
        self._settle_doubts(feeds)
        # All feeds, before any message is reported: none may come back to this subscription.
        for feed in feeds:
            feed.leave(self)
        for message in self._drop_all_of(feeds):
            message.feed.not_handled(message)
        # Other members send its messages now, and messages that it held up are free.
        for feed in feeds:
            feed.on_room(self)

    def _drop_all_of(self, feeds: list[Feed]) -> list[HeldMessage]:
        """Removes and returns all messages of these feeds. Of the sent ones the oldest comes last, because a share puts
        each in front of its backlog."""
        waiting = [message for message in self.waiting or () if message.feed in feeds]
        for message in waiting:
            self.waiting_bytes -= message.size
            message.feed.release_payload(message)
        sent = [message for message in [*self.pending.values(), *(self.delayed or ())] if message.feed in feeds]
        self.pending = {key: message for key, message in self.pending.items() if message.feed not in feeds}
        self.waiting = deque(message for message in self.waiting or () if message.feed not in feeds) or None
        for message, cancel in list((self.delayed or {}).items()):
            if message.feed in feeds:
                cancel()
                message.feed.count_delayed(-1)
        delayed = (self.delayed or {}).items()
        self.delayed = {message: cancel for message, cancel in delayed if message.feed not in feeds} or None
        return [*sorted(sent, key=lambda message: message.mid, reverse=True), *waiting]
