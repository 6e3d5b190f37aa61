"""Defines the limits that the server and the bus set for their clients. The defaults are those of the commands'
flags."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits what all clients together, and each client alone, can make a server hold.

    connections: open at once, those in a TLS handshake or `leaving` not counted; handshakes: TLS handshakes under way
    at once; leaving: connections at once that were refused or turned out and are told why; document_time: seconds from
    the first byte of a document to its last, for a TLS handshake, and to authenticate; pipeline: unanswered requests of
    one connection; outbox: bytes that wait for one client to read them; linger: seconds for which a refused connection
    is still read, so that the client can read the refusal; grace: seconds that a stopping server leaves for begun
    requests.
    """

    connections: int = 10_000
    handshakes: int = 256
    leaving: int = 256
    document_time: float = 30.0
    pipeline: int = 1024
    outbox: int = 8 * 1024 * 1024
    linger: float = 1.0
    grace: float = 10.0
