"""What every listening process can be told about its clients, with the defaults. The commands' flags are these."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds on what all clients together and each of them can make a server hold.

    connections: at once; document_time: seconds from the first byte of a document to its last; pipeline: requests of
    one connection that are not answered yet; outbox: bytes that wait for one connection to read them; linger: seconds
    that a refused connection is still read from, so that it gets to see why; grace: seconds that a stopping server
    gives what is begun.
    """

    connections: int = 10_000
    document_time: float = 30.0
    pipeline: int = 1024
    outbox: int = 8 * 1024 * 1024
    linger: float = 1.0
    grace: float = 10.0
