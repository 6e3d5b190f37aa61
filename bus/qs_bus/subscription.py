"""One subscription of one client: messages that were sent and not handled, and messages that wait for room."""

from collections import deque
from collections.abc import Callable

from qs_schemas import Peer
from qs_serving.outbox import Outbox
from qs_serving.timers import Timers

from .delivery_counts import BYTES, MESSAGES, DeliveryCounts
from .options import BusOptions, Policy
from .records import Record, Source

_PREFETCH = 100
"""Messages that an acknowledging client may have unacknowledged unless it says how many."""
_TOO_SLOW = "this subscriber is too slow: more than {} are waiting for it; read faster, or raise {} of the bus"


class Subscription:
    """One client's subscription: sends the messages of its feeds, and reports to the feeds what becomes of them. A
    `Member`.

    req: of the subscribe request; ack: the client acknowledges; name: of a durable subscription; asked: False for a
    client that was subscribed because it was silent; peer: knows how the client's documents end; dismiss: ends the
    connection; is called with the bound that was exceeded, and a text; counts: of the bus.

    A message counts as handled when it is written to a client that does not acknowledge. For a silent client that stays
    in doubt until `confirm_silent`: if it speaks before, it got the messages by mistake.
    """

    __slots__ = (
        "_counts", "_dismiss", "_doubtful", "_options", "_outbox", "_peer", "ack", "asked", "delayed", "ending",
        "feeds", "held", "held_bytes", "name", "pending", "prefetch", "req",
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
        self.asked = asked
        self._doubtful: list[Record] | None = None if asked else []  # written, and pending
        self.feeds: list[Source] = []
        self.pending: dict[tuple[str, int], Record] = {}
        """Sent and not handled: not acknowledged, or (without ack) not taken by the socket, or in doubt."""
        self.held: deque[Record] | None = None
        """Waiting for room, oldest first."""
        self.held_bytes = 0
        self.delayed: dict[Record, Callable[[], None]] | None = None
        """Released with a delay that has not passed yet: record -> function that cancels the delay."""
        self.ending = False
        """True once the client has been told that the connection ends; nothing may follow that."""

    @property
    def form(self) -> tuple[str | None, bool]:
        return self.req, self._peer.early

    @property
    def has_room(self) -> bool:
        if self.ending or self._outbox.unsent >= self._options.limits.outbox:
            return False
        return not self.ack or len(self.pending) < self.prefetch

    @property
    def blocked(self) -> bool:
        return bool(self.held)

    def offer(self, record: Record, document: bytes) -> None:
        if self.held or not self.has_room:
            self.hold(record)
        else:
            self.send(record, document)

    def send(self, record: Record, document: bytes) -> None:
        self._counts.deliveries += 1
        record.handed_out |= self._doubtful is None  # a client in doubt did not ask for it
        taken = self._outbox.put(document, (self, record)) and not self.ack
        if taken and self._doubtful is None:
            record.feed.handled(record)
            return
        self.pending[record.key] = record
        if taken:
            self.written(record)

    def written(self, record: Record) -> None:
        """Counts a message whose last byte the socket has taken."""
        if self.ack or self.pending.get(record.key) is not record:
            return
        if self._doubtful is not None:
            self._doubtful.append(record)
            record.feed.doubt(record)
            return
        del self.pending[record.key]
        record.feed.handled(record)

    @property
    def doubtful(self) -> bool:
        """Tells whether the client may have got messages by mistake."""
        return self._doubtful is not None

    def confirm_silent(self) -> None:
        """Ends the doubt: the client only listens, and has handled what was written to it."""
        for record in self._settle_doubts(self.feeds):
            self.pending.pop(record.key, None)
            record.feed.handled(record)
        self._doubtful = None

    def _settle_doubts(self, feeds: list[Source]) -> list[Record]:
        """Removes and returns the doubtful records of these feeds."""
        found = [record for record in self._doubtful or () if record.feed in feeds]
        for record in found:
            record.doubtful -= 1
        if found and self._doubtful is not None:
            self._doubtful = [record for record in self._doubtful if record.feed not in feeds]
        return found

    def hold(self, record: Record) -> None:
        """Holds a message until there is room. Dismisses the client when that exceeds a bound."""
        if self.held is None:
            self.held = deque()
        self.held.append(record)
        self.held_bytes += record.size
        record.keepers += 1
        if self._options.policy is Policy.DISCONNECT and self.held_bytes > self._options.limits.outbox:
            self._dismiss(BYTES, _TOO_SLOW.format(f"{self._options.limits.outbox} bytes", "--outbox"))
        else:
            self._check_bound()

    def drop_held(self, record: Record) -> bool:
        if not self.held or record not in self.held:
            return False
        self.held.remove(record)
        self.held_bytes -= record.size
        return True

    def _check_bound(self) -> None:
        if len(self.held or ()) + len(self.delayed or ()) > self._options.hold:
            self._dismiss(MESSAGES, _TOO_SLOW.format(f"{self._options.hold} messages", "--max-hold"))

    def pump(self) -> None:
        held = self.held
        while held and self.has_room and self.feeds:
            record = held[0]
            if record.payload is None:
                record.feed.fetch(held)
                return
            held.popleft()
            self.held_bytes -= record.size
            document = record.document(*self.form)
            record.feed.release_payload(record)
            self.send(record, document)
        for feed in self.feeds:
            feed.on_room(self)

    def take(self, key: tuple[str, int]) -> Record | None:
        """Removes and returns the record that the client acknowledges or releases. Returns None when the client does
        not have it, or does not acknowledge at all."""
        return self.pending.pop(key, None) if self.ack else None

    def delay(self, record: Record, seconds: float, timers: Timers) -> None:
        """Delivers a released record again after these seconds. Until then it does not count against the prefetch."""
        due = timers.add(seconds, lambda: self._resume(record))
        self.delayed = self.delayed or {}
        self.delayed[record] = lambda: timers.cancel(due)
        record.feed.count_delayed(1)
        self._check_bound()
        self.pump()

    def _resume(self, record: Record) -> None:
        """Delivers a record whose delay has passed."""
        if self.delayed is not None:
            del self.delayed[record]
        record.feed.count_delayed(-1)
        record.feed.resend(record, self)

    def leave(self, only: Source | None = None, *, denied: bool = False) -> None:
        """Leaves every feed, because the client has gone. only: leave just this feed, whose queue has gone; denied: the
        client may not have what the socket has not taken yet."""
        feeds = self.feeds if only is None else [only]
        self.feeds = [feed for feed in self.feeds if feed not in feeds]
        if denied or not self.ack:  # with ack nothing is lost if it is still sent: it is unacknowledged
            self._outbox.withdraw(lambda token: token[0] is self and token[1].feed in feeds)
        self._settle_doubts(feeds)
        for feed in feeds:
            feed.leave(self)
        for record in self._drop_all_of(feeds):
            record.feed.let_go(record)
        for feed in feeds:
            feed.on_room(self)

    def _drop_all_of(self, feeds: list[Source]) -> list[Record]:
        """Removes and returns all records of these feeds, those in hand with the oldest last: a share puts each in
        front of its backlog."""
        held = [record for record in self.held or () if record.feed in feeds]
        for record in held:
            self.held_bytes -= record.size
            record.feed.release_payload(record)
        in_hand = [record for record in [*self.pending.values(), *(self.delayed or ())] if record.feed in feeds]
        self.pending = {key: record for key, record in self.pending.items() if record.feed not in feeds}
        self.held = deque(record for record in self.held or () if record.feed not in feeds) or None
        for record, cancel in list((self.delayed or {}).items()):
            if record.feed in feeds:
                cancel()
                record.feed.count_delayed(-1)
        self.delayed = {r: cancel for r, cancel in (self.delayed or {}).items() if r.feed not in feeds} or None
        return [*sorted(in_hand, key=lambda record: record.mid, reverse=True), *held]
