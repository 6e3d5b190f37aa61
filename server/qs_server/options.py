"""What a server can be told, with the defaults. The command's flags are these."""

from dataclasses import dataclass, field

from qs_schemas import Limits

from .storage.engine import Durability

PORT = 9876


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds on what all clients together and each of them can make the server hold.

    connections: at once; document_time: seconds from the first byte of a document to its last; pipeline: requests of
    one connection that are not answered yet; outbox: bytes of answers that wait for one connection to read them;
    linger: seconds that a refused connection is still read from, so that it gets to see why; grace: seconds that a
    stopping server gives what is begun.
    """

    connections: int = 10_000
    document_time: float = 30
    pipeline: int = 1024
    outbox: int = 8 * 1024 * 1024
    linger: float = 1
    grace: float = 10


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """root: the directory of the queues, made when missing; port 0: any free one; storage: the default engine."""

    root: str
    host: str = "127.0.0.1"
    port: int = PORT
    storage: str = "files"
    durability: Durability = Durability.ALWAYS
    limits: ServerLimits = field(default_factory=ServerLimits)
    wire: Limits = field(default_factory=Limits)
