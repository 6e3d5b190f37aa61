"""The options of the page and their defaults. The command has a flag for each."""

from collections.abc import Callable
from dataclasses import dataclass

from qs_client.security import PLAIN, Security
from qs_serving.tls import TlsFiles

PORT = 9880


@dataclass(frozen=True, slots=True)
class WebOptions:
    """The options of the page."""

    server: tuple[str, int] = ("127.0.0.1", 9876)
    """Host and port of the queue server."""
    security: Callable[[], Security] = lambda: PLAIN
    """Reads the files of TLS and token for the queue server, at the start and on SIGHUP. Raises OSError or
    ValueError."""
    shows_certificate: bool = False
    """True if the page shows the queue server a certificate of its own."""
    bus: tuple[str, int] | None = None
    """Host and port of the bus, None without a bus to show."""
    host: str = "127.0.0.1"
    """The address to listen on. Without other flags only this machine reaches the page."""
    port: int = PORT
    """The port to listen on, 0 for any free one."""
    path: str = ""
    """The beginning of the path of every address of the page: "", or "/…" without a slash at the end."""
    hosts: tuple[str, ...] = ()
    """Names by which browsers reach the page, besides those that it listens on."""
    tls: TlsFiles | None = None
    """The certificate that browsers are shown, None for HTTP without TLS."""
    read_only: bool = False
    """The page changes nothing."""
    open: bool = False
    """Nobody has to sign in, even from other machines: every visitor has the page's own rights."""
    check: bool = False
    """Read the files and flags, and end."""
    log_format: str = "text"
    """text or json."""
    grace: float = 10.0
    """Seconds that a stopping page leaves for requests that have begun."""
