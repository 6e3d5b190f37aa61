"""The names by which browsers may reach the page. A page of another site that has its name lead here (DNS rebinding)
is refused by them."""

import ipaddress
import socket
from collections.abc import Iterable
from contextlib import suppress

_LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})


def _literal(name: str) -> bool:
    """Tells whether a host is an address. No other site's name can be one."""
    with suppress(ValueError):
        ipaddress.ip_address(name.strip("[]"))
        return True
    return False


def split_host(value: str) -> tuple[str, str]:
    """Splits what a Host header says into name and port, "" for none."""
    name, _, port = value.rpartition(":") if not value.endswith("]") else (value, "", "")
    return (name, port) if name else (port, "")


class AllowedHosts:
    """Decides about the Host header of requests."""

    def __init__(self, host: str, also: Iterable[str]) -> None:
        """host: that the page listens on; also: names, with or without a port, that others know it by."""
        named = f"[{host}]" if ":" in host else host.lower()
        self._any_address = host in {"", "0.0.0.0", "::"}  # noqa: S104 - compared, not listened on
        self._names = {named, *also}
        if self._any_address:
            self._names |= _LOCAL | {socket.gethostname().lower()}
        elif named in _LOCAL or (_literal(host) and ipaddress.ip_address(host).is_loopback):
            self._names |= _LOCAL

    def allows(self, value: str) -> bool:
        """Tells whether a request with this Host header is answered."""
        value = value.lower()
        name, port = split_host(value)
        if port and not (port.isascii() and port.isdigit()):  # `localhost:1@evil.example` leads to evil.example
            return False
        return name in self._names or value in self._names or (self._any_address and _literal(name))
