"""One subscription of one client: the messages that the client was sent and has not handled, and those that wait until
there is room."""

from collections import deque
from collections.abc import Callable

from qs_schemas import Peer
from qs_serving.outbox import Outbox

from .later import Later
from .options import BusOptions, Policy
from .records import Record, Source

_PREFETCH = 100
"""Messages that a client which acknowledges may have unacknowledged, if it does not say how many."""
_TOO_SLOW = "this subscriber is too slow: more than {} wait for it; read faster, or raise the bus's {}"


class Subscription:
    """Sends one client the messages of one or more feeds, and tells the feeds what becomes of them.

    req: of the request that made the subscription; ack: whether the client acknowledges; name: of a durable
    subscription; asked: False when the client has the subscription because it was silent; peer: knows how the client's
    documents end; dismiss: ends the connection, with a reason.

    A message that is written to a client which does not acknowledge is handled. For a client that was silent that is in
    doubt until `be_sure`: if the client speaks before, it has got these messages by mistake.
    """

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
        self.feeds: list[Source] = []
        self.pending: dict[tuple[str, int], Record] = {}
        """Sent and not handled: not acknowledged, or (without ack) not taken by the socket, or in doubt."""
        self.held: deque[Record] | None = None
        """Waiting for room, oldest first."""
        self.held_bytes = 0
        self.delayed: dict[Record, Callable[[], None]] | None = None
        """Released with a delay that has not passed yet: record -> function that cancels the delay."""
        self.ending = False
        """Whether the client has been told that the connection ends; nothing may follow that."""
        self.left = False

    @property
    def form(self) -> tuple[str | None, bool]:
        """What its documents differ in from those for others: their req, and whether an empty line ends them."""
        return self.req, self._peer.early

    @property
    def has_room(self) -> bool:
        """Whether a message can be sent now."""
        if self.ending or self._outbox.unsent >= self._options.limits.outbox:
            return False
        return not self.ack or len(self.pending) < self.prefetch

    @property
    def blocked(self) -> bool:
        """Whether messages wait for room."""
        return bool(self.held)

    def offer(self, record: Record, document: bytes) -> None:
        """Sends a message, or holds it until there is room."""
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
        """Whether it may turn out that the client has got messages by mistake."""
        return self._doubtful is not None

    def be_sure(self) -> None:
        """Ends the doubt: the client only listens, and the messages that were written to it are handled."""
        for record in self._settle_doubts(self.feeds):
            self.pending.pop(record.key, None)
            record.feed.handled(record)
        self._doubtful = None

    def _settle_doubts(self, feeds: list[Source]) -> list[Record]:
        """Takes out and returns the records of these feeds that are in doubt."""
        found = [record for record in self._doubtful or () if record.feed in feeds]
        for record in found:
            record.doubtful -= 1
        if found and self._doubtful is not None:
            self._doubtful = [record for record in self._doubtful if record.feed not in feeds]
        return found

    def hold(self, record: Record) -> None:
        """Holds a message until there is room, and dismisses the client when that is beyond the bounds."""
        if self.held is None:
            self.held = deque()
        self.held.append(record)
        self.held_bytes += record.size
        record.keepers += 1
        if self._options.policy is Policy.DISCONNECT and self.held_bytes > self._options.limits.outbox:
            self._dismiss(_TOO_SLOW.format(f"{self._options.limits.outbox} bytes", "--outbox"))
        else:
            self._check_bound()

    def drop_held(self, record: Record) -> bool:
        """Drops a message that waits for room. Returns whether it did wait."""
        if not self.held or record not in self.held:
            return False
        self.held.remove(record)
        self.held_bytes -= record.size
        return True

    def _check_bound(self) -> None:
        if len(self.held or ()) + len(self.delayed or ()) > self._options.hold:
            self._dismiss(_TOO_SLOW.format(f"{self._options.hold} messages", "--max-hold"))

    def pump(self) -> None:
        """Sends the messages that wait, as far as there is room."""
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
                feed.on_room(self)

    def take(self, key: tuple[str, int]) -> Record | None:
        """Takes out the record that the client acknowledges or releases. Returns None when the client does not have it,
        or does not acknowledge at all."""
        return self.pending.pop(key, None) if self.ack else None

    def delay(self, record: Record, seconds: float, later: Later) -> None:
        """Delivers a released record again after so many seconds. Until then it makes room for another."""
        due = later.add(seconds, lambda: self._resume(record))
        self.delayed = self.delayed or {}
        self.delayed[record] = lambda: later.cancel(due)
        record.feed.count_delayed(1)
        self._check_bound()
        self.pump()

    def _resume(self, record: Record) -> None:
        """Delivers a record again whose delay has passed."""
        if self.delayed is not None:
            del self.delayed[record]
        record.feed.count_delayed(-1)
        record.feed.resend(record, self)

    def leave(self, only: Source | None = None) -> None:
        """Leaves every feed, as when the client has gone. only: leaves this feed alone, as when its queue has gone."""
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
            feed.on_room(self)

    def _drop_all_of(self, feeds: list[Source]) -> list[Record]:
        """Takes out and returns all records of these feeds. The oldest comes last of those in hand: a share puts each
        before the records that wait."""
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
                record.feed.count_delayed(-1)
        self.delayed = {r: cancel for r, cancel in (self.delayed or {}).items() if r.feed not in feeds} or None
        return [*sorted(in_hand, key=lambda record: record.mid, reverse=True), *held]
