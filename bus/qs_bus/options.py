"""Defines the options of a bus with their defaults, and keeps the TLS and the token for the queue server. The command
has a flag for each option."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from qs_client.place import endpoint
from qs_client.security import PLAIN, Security
from qs_schemas import Limits
from qs_serving.errors import start_errors
from qs_serving.options import ServerLimits
from qs_serving.tls import TlsFiles

PORT = 9878


class Policy(Enum):
    """Says how the bus treats a slow subscriber. HOLD: keep its messages until it reads; DISCONNECT: disconnect it when
    more than an outbox waits for it."""

    HOLD = "hold"
    DISCONNECT = "disconnect"


@dataclass(frozen=True, slots=True)
class BusOptions:
    """Holds the options of a bus.

    server: host and port of the queue server; queues: the queues to monitor, empty for any queue that a client names;
    port: 0 for any free port; hold: messages kept for one subscriber beyond its outbox; settle: seconds that
    subscribers have to come back after the bus was killed; early: True to end the documents for all clients with an
    empty line; tls: the TLS files for clients, None for no TLS; access: the path of the access file, None without one;
    open: True to let everybody do everything, also from other machines; check: True to check only the files and flags;
    security: reads the TLS and the token for the queue server, raises OSError or ValueError. limits.outbox: bytes of an
    outbox; log_format: text or json.
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


class ServerSecurity:
    """Keeps the TLS context and the token with which the bus speaks to the queue server, which are read from files.

    Ensures that a file that cannot be used changes nothing: new connections go on with the earlier content. Reads the
    files when an instance is made, and in `reload`. It must not read them at any other time, because a reconnection
    could then find a half-written file.
    """

    def __init__(self, read: Callable[[], Security]) -> None:
        """read: reads the files, raises OSError or ValueError. Raises StartError, which names the file, if they cannot
        be used."""
        self._read = read
        self._current = self._load()

    def __call__(self) -> Security:
        """Returns the TLS context and the token for the next connection."""
        return self._current

    @property
    def used(self) -> bool:
        """True if there is TLS or a token."""
        return self._current != PLAIN

    def describe(self, server: tuple[str, int]) -> list[str]:
        """Returns a line that says how the bus speaks to the queue server at this host and port."""
        tls = "in the clear" if self._current.context is None else "with TLS"
        who = "without a token" if self._current.token is None else "with a token"
        return [f"queue server {endpoint(*server)}: {tls}, {who}"]

    def reload(self) -> None:
        """Reads the files again, for connections that begin from now on. Raises StartError if they cannot be used, and
        then changes nothing."""
        self._current = self._load()

    def _load(self) -> Security:
        with start_errors():
            return self._read()
