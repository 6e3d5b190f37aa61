"""The options of a bus and their defaults. The command has a flag for each."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from qs_client.security import PLAIN, Security
from qs_schemas import Limits
from qs_serving.options import ServerLimits
from qs_serving.tls import TlsFiles

PORT = 9878


class Policy(Enum):
    """The treatment of a slow subscriber. HOLD: keep its messages until it reads; DISCONNECT: disconnect it when more
    than an outbox waits for it."""

    HOLD = "hold"
    DISCONNECT = "disconnect"


@dataclass(frozen=True, slots=True)
class BusOptions:
    """The options of a bus.

    server: host and port of the queue server; queues: to monitor, empty for whichever a client names; port: 0 for any
    free one; hold: messages kept for one subscriber beyond its outbox; settle: seconds that subscribers have to come
    back after the bus was killed; early: every client's documents end with an empty line; tls: towards clients, None
    for none; access: path of the access file, None if everybody may do everything; open: everybody may, also from other
    machines; check: only look at the files and flags; security: reads how to speak to the queue server, raises OSError
    or ValueError. limits.outbox: bytes of an outbox; log_format: text or json.
    """

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
    tls: TlsFiles | None = None
    access: str | None = None
    open: bool = False
    check: bool = False
    log_format: str = "text"
    security: Callable[[], Security] = lambda: PLAIN
