"""Decides who may connect to a port: TLS, the access file, and whether other machines are let in."""

import ipaddress
import socket
from collections.abc import Sequence
from contextlib import suppress

from .access.access import Access
from .errors import StartError
from .stopping import Reloadable
from .tls import ServerTls, TlsFiles


class Guards:
    """Holds the TLS settings and the access file of a port.

    A server that other machines reach must never start without an access file, unless --open was given: anybody who
    reaches the port could read and delete every message.
    """

    def __init__(
        self,
        host: str,
        tls: TlsFiles | None,
        access: str | None,
        *,
        is_open: bool,
        sockets: Sequence[socket.socket] = (),
    ) -> None:
        """host: the address that the server listens on, if there are no inherited sockets; tls: None for no TLS;
        access: the path of the access file, None without one; is_open: True for --open; sockets: the inherited sockets.
        Raises StartError if a file cannot be used, or if nothing says who may connect from other machines."""
        self.host = host
        inherited = [each.getsockname()[0] for each in sockets]  # where it really listens: --host is not used then
        if access is None and not is_open and not all(map(is_loopback, inherited or [host])):
            where = f"the socket of the service manager on {', '.join(inherited)}" if inherited else f"--host {host}"
            raise StartError(
                f"{where} lets other machines connect, and there is no access file: say who may do what with "
                "--access FILE, or that everybody may do everything with --open"
            )
        self.tls = None if tls is None else ServerTls(tls)
        self.access = None if access is None else Access(access)

    @property
    def reloads(self) -> Sequence[Reloadable]:
        """The parts whose files are read again on SIGHUP."""
        return [each for each in (self.tls, self.access) if each is not None]

    def describe(self) -> list[str]:
        """Returns lines that say who is let in."""
        reach = "only this machine can connect" if is_loopback(self.host) else "other machines can connect"
        about = [f"host {self.host}: {reach}"]
        about.append("no TLS: everything is sent in the clear" if self.tls is None else f"TLS: {self.tls.about}")
        about.append("no access file: everybody may do everything" if self.access is None else self.access.about)
        return about


def is_loopback(host: str) -> bool:
    """Tells whether only this machine reaches every address of a host. Raises StartError if its addresses cannot be
    found."""
    # A name that is not found does not count as loopback: when the server listens a moment later, the name may be
    # found, and lead to an address that other machines reach.
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    try:
        found = socket.getaddrinfo(host or None, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StartError(f"cannot listen on {host}: {reason}; choose an address with --host and --port") from None
    return all(ipaddress.ip_address(str(each[4][0]).partition("%")[0]).is_loopback for each in found)
