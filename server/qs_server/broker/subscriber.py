"""Subscribers (connections with subscriptions) and their subscriptions, as the broker sees them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from qs_schemas import GetMessage, Message

OVERHEAD = 400
"""Approximate bytes of memory that a delivery takes beyond its payload."""


def cost(message: Message) -> int:
    """Returns how many bytes of a subscriber's outbox a message takes; 0 if it is not a delivery."""
    if not isinstance(message, GetMessage):
        return 0
    return OVERHEAD + len(message.payload or b"") + len(message.reason or "")


@dataclass(slots=True, eq=False)
class Subscriber:
    """A connection with subscriptions. outbox: the most bytes of deliveries that may wait for the client; deliver:
    called in the loop when there is mail; peer: the client's address; assigned, written: bytes of deliveries so far,
    counted in batches and in the loop."""

    outbox: int
    deliver: Callable[[], None]
    peer: str = ""
    subscriptions: dict[str | None, "Subscription"] = field(default_factory=dict)
    assigned: int = 0
    written: int = 0
    starved: bool = False
    """True if its outbox was full: it is served again when the client has read."""
    mail: list[Message] = field(default_factory=list)
    """The messages to send; the loop takes them at the end of a batch."""
    new: list["Subscription"] = field(default_factory=list)
    """Subscriptions that begin once their answers are sent."""

    @property
    def room(self) -> int:
        """Bytes of deliveries that may be sent now."""
        return self.outbox - (self.assigned - self.written)

    def has_read(self, size: int) -> bool:
        """Counts bytes of written deliveries, in the loop. Returns True if the subscriber should be served again."""
        self.written += size
        if not self.starved or self.room * 2 < self.outbox:
            return False
        self.starved = False
        return True

    def is_starved(self) -> bool:
        """Tells, in a batch, whether there is no room; then `has_read` will return True when there is.

        This sets `starved` before it reads the count again; `has_read`, in another thread, counts before it reads
        `starved`: so one of the two notices."""
        if self.room > 0:
            return False
        self.starved = True
        return self.room <= 0


@dataclass(slots=True, eq=False)
class Subscription:
    """A subscription. req: of its subscribe request; prefetch: the most messages it holds; visibility: microseconds,
    None for the queues' own; closed: True if it gets no more messages."""

    subscriber: Subscriber
    req: str | None
    qids: set[str]
    prefetch: int
    visibility: int | None
    receives: dict[tuple[str, int], int] = field(default_factory=dict)
    """The messages that it holds (sent, not acknowledged), each with its receives at that time."""
    closed: bool = False

    def has_room(self) -> bool:
        """Tells whether it may be sent a message. Call it in a batch."""
        return len(self.receives) < self.prefetch and not self.subscriber.is_starved()
