"""One subscription of one client: what it was sent and has not handled, and what waits until there is room."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from .options import BusOptions, Policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from qs_schemas import Peer
    from qs_serving.outbox import Outbox

    from .feeds import Feed
    from .later import Later
    from .records import Record

_PREFETCH = 100
"""Messages that a client which acknowledges, and does not say, may have unacknowledged."""
_TOO_SLOW = "this subscriber is too slow: more than {} wait for it; read faster, or raise the bus's {}"


class Subscription:
    """req: of the request that made it; ack: the client acknowledges, else what is written to it is handled; name: of
    a durable one; asked: False when the client has it because it was silent. peer: knows how documents end that it is
    sent; dismiss: ends the connection, with a reason.

    What is written to a client that does not acknowledge is handled. For one that was silent that is in doubt, until
    `be_sure`: should it speak before, it was not to get these messages."""

    __slots__ = (
        "_dismiss", "_doubtful", "_options", "_outbox", "_peer", "ack", "asked", "delayed", "ending", "feeds", "held",
        "held_bytes", "left", "name", "pending", "prefetch", "req",
    )  # fmt: skip

    def __init__(
        self,
        outbox: Outbox,
        peer: Peer,
        options: BusOptions,
        dismiss: Callable[[str], None],
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
        self.req = req
        self.ack = ack
        self.prefetch = prefetch or _PREFETCH
        self.name = name
        self.asked = asked
        self._doubtful: list[Record] | None = None if asked else []  # written to it, and pending
        self.feeds: list[Feed] = []
        self.pending: dict[tuple[str, int], Record] = {}
        """Sent and not handled: not acknowledged, or (without ack) not taken by the socket, or in doubt."""
        self.held: deque[Record] | None = None
        """What waits for room, oldest first."""
        self.held_bytes = 0
        self.delayed: dict[Record, Callable[[], None]] | None = None
        """Given back for later, and how to cancel that."""
        self.ending = False
        """Its client has been told that the connection ends; nothing may follow that."""
        self.left = False

    @property
    def form(self) -> tuple[str | None, bool]:
        """What its deliveries differ in from those of others: their req, and whether an empty line ends them."""
        return self.req, self._peer.early

    @property
    def has_room(self) -> bool:
        """Whether it can be sent something now."""
        if self.ending or self._outbox.unsent >= self._options.limits.outbox:
            return False
        return not self.ack or len(self.pending) < self.prefetch

    @property
    def blocked(self) -> bool:
        """Whether something waits for room."""
        return bool(self.held)

    def offer(self, record: Record, document: bytes) -> None:
        """Sends a message, or keeps it until there is room."""
        if self.held or not self.has_room:
            self.hold(record)
        else:
            self.send(record, document)

    def send(self, record: Record, document: bytes) -> None:
        """Sends a message."""
        taken = self._outbox.put(document, (self, record)) and not self.ack
        if taken and self._doubtful is None:
            record.feed.handled(record)
            return
        self.pending[record.key] = record
        if taken:
            self.written(record)

    def written(self, record: Record) -> None:
        """Counts a message whose last byte the socket has taken, at once or later."""
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
        """Whether it may turn out that the client was not to get what it got."""
        return self._doubtful is not None

    def be_sure(self) -> None:
        """The client is one that only listens: what was written to it is handled."""
        for record in self._settle_doubts(self.feeds):
            self.pending.pop(record.key, None)
            record.feed.handled(record)
        self._doubtful = None

    def _settle_doubts(self, feeds: list[Feed]) -> list[Record]:
        """Takes out those that are in doubt, of these feeds."""
        found = [record for record in self._doubtful or () if record.feed in feeds]
        for record in found:
            record.doubtful -= 1
        if found and self._doubtful is not None:
            self._doubtful = [record for record in self._doubtful if record.feed not in feeds]
        return found

    def hold(self, record: Record) -> None:
        """Keeps a message until there is room, within the bounds."""
        if self.held is None:
            self.held = deque()
        self.held.append(record)
        self.held_bytes += record.size
        record.keepers += 1
        if self._options.policy is Policy.DISCONNECT and self.held_bytes > self._options.limits.outbox:
            self._dismiss(_TOO_SLOW.format(f"{self._options.limits.outbox} bytes", "--outbox"))
        else:
            self._check_bound()

    def _check_bound(self) -> None:
        if len(self.held or ()) + len(self.delayed or ()) > self._options.hold:
            self._dismiss(_TOO_SLOW.format(f"{self._options.hold} messages", "--max-hold"))

    def pump(self) -> None:
        """Sends what waits, as far as there is room."""
        held = self.held
        while held and self.has_room and not self.left:
            record = held[0]
            if record.payload is None:
                record.feed.fetch(held)
                return
            held.popleft()
            self.held_bytes -= record.size
            document = record.document(*self.form)
            record.feed.unkeep(record)
            self.send(record, document)
        if not self.left:
            for feed in self.feeds:
                feed.has_room(self)

    def take(self, key: tuple[str, int]) -> Record | None:
        """What the client has acknowledged, or gives back; None when that is not in its hands."""
        return self.pending.pop(key, None) if self.ack else None

    def delay(self, record: Record, seconds: float, later: Later) -> None:
        """It is given back for so much later, and makes room meanwhile."""
        due = later.add(seconds, lambda: self._resume(record))
        self.delayed = self.delayed or {}
        self.delayed[record] = lambda: later.cancel(due)
        record.feed.delays(1)
        self._check_bound()
        self.pump()

    def _resume(self, record: Record) -> None:
        """What was given back for later is wanted again."""
        if self.delayed is not None:
            del self.delayed[record]
        record.feed.delays(-1)
        record.feed.resend(record, self)

    def leave(self, only: Feed | None = None) -> None:
        """The client has gone; or only one of the feeds has."""
        feeds = self.feeds if only is None else [only]
        self.feeds = [feed for feed in self.feeds if feed not in feeds]
        self.left = not self.feeds
        if not self.ack:  # else nothing is lost if it is sent: it comes again for others
            self._outbox.withdraw(lambda token: token[0] is self and token[1].feed in feeds)
        self._settle_doubts(feeds)
        for feed in feeds:
            feed.leave(self)
        for record in self._drop_all_of(feeds):
            record.feed.let_go(record)
        for feed in feeds:
            feed.has_room(self)

    def _drop_all_of(self, feeds: list[Feed]) -> list[Record]:
        """What it has of these. The oldest last: where members share, each is put before what waits."""
        held = [record for record in self.held or () if record.feed in feeds]
        for record in held:
            self.held_bytes -= record.size
            record.feed.unkeep(record)
        in_hand = [record for record in [*self.pending.values(), *(self.delayed or ())] if record.feed in feeds]
        self.pending = {key: record for key, record in self.pending.items() if record.feed not in feeds}
        self.held = deque(record for record in self.held or () if record.feed not in feeds) or None
        for record, cancel in list((self.delayed or {}).items()):
            if record.feed in feeds:
                cancel()
                record.feed.delays(-1)
        self.delayed = {r: cancel for r, cancel in (self.delayed or {}).items() if r.feed not in feeds} or None
        return [*sorted(in_hand, key=lambda record: record.mid, reverse=True), *held]
