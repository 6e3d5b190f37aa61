"""A connection with subscriptions, and each of them, as the engine's side sees them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from qs_schemas import GetMessage, Message

OVERHEAD = 400
"""Bytes that a delivery takes beside its payload, about: a million of empty messages are no little to keep either."""


def cost(message: Message) -> int:
    """Returns how many bytes of a subscriber's outbox a message takes; 0 if it is no delivery."""
    return OVERHEAD + len(message.payload or b"") if isinstance(message, GetMessage) else 0


@dataclass(slots=True, eq=False)
class Subscriber:
    """A connection with subscriptions. outbox: bytes of deliveries that may wait for it to read them; deliver: called
    in the loop when there is mail; peer: its address.

    assigned is counted in batches, written by the loop: each by one thread.
    """

    outbox: int
    deliver: Callable[[], None]
    peer: str = ""
    subscriptions: dict[str | None, "Subscription"] = field(default_factory=dict)
    assigned: int = 0
    written: int = 0
    starved: bool = False
    """True if it was left out because its outbox is full, and is to be served when the client has read."""
    mail: list[Message] = field(default_factory=list)
    """The messages that it is to be sent; the loop takes them when a batch has ended."""
    new: list["Subscription"] = field(default_factory=list)
    """Subscriptions that begin once the client has the answer that says so."""

    @property
    def room(self) -> int:
        """Bytes of deliveries that it may be sent now."""
        return self.outbox - (self.assigned - self.written)

    def has_read(self, size: int) -> bool:
        """Counts bytes of deliveries that were written. Returns True if the subscriber is to be served again. Call it
        in the loop."""
        self.written += size
        if not self.starved or self.room * 2 < self.outbox:
            return False
        self.starved = False
        return True

    def is_starved(self) -> bool:
        """Tells, in a batch, whether there is no room. If so, `has_read` will say when there is. It looks at the mark
        after it has counted, and this at the count after it has set the mark, so one of the two notices."""
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
    receives: dict[tuple[str, int], int] = field(default_factory=dict)
    """The messages that it holds (sent, and not acknowledged), each with its receives as it was sent."""
    closed: bool = False

    def has_room(self) -> bool:
        """Tells, in a batch, whether it may be sent a message."""
        return len(self.receives) < self.prefetch and not self.subscriber.is_starved()
