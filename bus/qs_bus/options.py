"""The options of a bus and their defaults, and how it speaks to the queue server. The command has a flag for each."""

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


class ServerSecurity:
    """The TLS context and the token with which the bus speaks to the queue server, read from files.

    Ensures that a file that cannot be used changes nothing: connections go on with what was read before. Reads when it
    is made, and in `reload`; it must not read at any other time, as a reconnection would then find a half-written file.
    """

    def __init__(self, read: Callable[[], Security]) -> None:
        """read: reads the files, raises OSError or ValueError. StartError, which names the file, if they cannot be
        used."""
        self._read = read
        self._current = self._load()

    def __call__(self) -> Security:
        """Returns what the next connection begins with."""
        return self._current

    @property
    def used(self) -> bool:
        """Tells whether there is TLS or a token."""
        return self._current != PLAIN

    def describe(self, server: tuple[str, int]) -> list[str]:
        """Returns a line that says how the bus speaks to the queue server at this host and port."""
        tls = "in the clear" if self._current.context is None else "with TLS"
        who = "without a token" if self._current.token is None else "with a token"
        return [f"queue server {endpoint(*server)}: {tls}, {who}"]

    def reload(self) -> None:
        """Reads the files again, for connections that begin from now on. StartError if they cannot be used: then
        everything stays as it was."""
        self._current = self._load()

    def _load(self) -> Security:
        with start_errors():
            return self._read()
