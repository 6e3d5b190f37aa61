"""The options of the page and their defaults. The command has a flag for each."""

from collections.abc import Callable
from dataclasses import dataclass

from qs_client.security import PLAIN, Security
from qs_serving.tls import TlsFiles

PORT = 9880


@dataclass(frozen=True, slots=True)
class WebOptions:
    """The options of the page.

    server: host and port of the queue server; security: reads how to speak to it, raises OSError or ValueError;
    shows_certificate: whether that shows a certificate; bus: host and port of the bus, None if there is none to show;
    host, port: to listen on, port 0 for any free one; path: what the path of every address of the page begins with, ""
    or "/…" without a slash at the end; hosts: names by which browsers reach the page, besides those that it listens on;
    tls: towards browsers, None for none; read_only: the page changes nothing; open: nobody has to sign in, also from
    other machines; check: only look at the files and flags; log_format: text or json; grace: seconds that a
    stopping page leaves for begun requests.
    """

    server: tuple[str, int] = ("127.0.0.1", 9876)
    security: Callable[[], Security] = lambda: PLAIN
    shows_certificate: bool = False
    bus: tuple[str, int] | None = None
    host: str = "127.0.0.1"
    port: int = PORT
    path: str = ""
    hosts: tuple[str, ...] = ()
    tls: TlsFiles | None = None
    read_only: bool = False
    open: bool = False
    check: bool = False
    log_format: str = "text"
    grace: float = 10.0
