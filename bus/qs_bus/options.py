"""The options of a bus, with their defaults. The command has a flag for each."""

from dataclasses import dataclass, field
from enum import Enum

from qs_schemas import Limits
from qs_serving.options import ServerLimits

PORT = 9878


class Policy(Enum):
    """What the bus does with a subscriber that is too slow. HOLD: keeps the messages that it has not got; DISCONNECT:
    ends the connection once more waits for it than its outbox holds."""

    HOLD = "hold"
    DISCONNECT = "disconnect"


@dataclass(frozen=True, slots=True)
class BusOptions:
    """server: host and port of the queue server; queues: those that are monitored, empty for whichever a client names;
    port 0: any free one; hold: messages that may be kept for one subscriber beyond its outbox; settle: seconds that
    subscribers have to come back after the bus was killed; early: every client is taken for one that ends its documents
    with an empty line. The bound of an outbox, in bytes, is limits.outbox."""

    server: tuple[str, int] = ("127.0.0.1", 9876)
    queues: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = PORT
    policy: Policy = Policy.HOLD
    hold: int = 100_000
    settle: float = 5.0
    limits: ServerLimits = field(default_factory=ServerLimits)
    wire: Limits = field(default_factory=Limits)
    early: bool = False
