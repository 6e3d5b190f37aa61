"""Reads the addresses of servers as they are written at command lines, in the environment and in programs.

An address must never be misread: a scheme says whether a token is sent with TLS, and a host that is a mistyped port
would be looked up somewhere else. So anything that is not clearly an address is refused, and the error says what was
probably meant.
"""

import re
from typing import NamedTuple

_HOST = re.compile(r"[^\s/@\[\]:,;?#]{1,255}")
_SCHEMES = {"qs": False, "qss": True}


class ServerAddress(NamedTuple):
    """Holds the address of a queue server or a bus. tls: True for qss://, False for qs://, None for an address without
    a scheme, where flags or certificates decide."""

    host: str
    port: int
    tls: bool | None = None


def server_address(text: str, port: int) -> ServerAddress:
    """Returns the parts of qs://HOST[:PORT], qss://HOST[:PORT], or an address without a scheme, as for `address`.

    port: the port of an address that names none. Raises ValueError, whose text says what is wrong and shows no
    password.
    """
    if "@" in text:
        raise ValueError("an address holds no user and no password: give a token instead")
    if text.isdigit():  # the resolver would take it for an IPv4 address
        raise ValueError(f"{text!r} is a port without a host, and an address is HOST:PORT")
    scheme, separator, rest = text.partition("://")
    if not separator:
        return ServerAddress(*_checked(text, text, port))
    tls = _SCHEMES.get(scheme.lower())
    if tls is None:
        raise ValueError(f"{text!r} has an unknown scheme: qss:// is with TLS, qs:// is without")
    if re.search(r"[/?#]", rest):
        raise ValueError(f"{text!r} goes on after the port: an address is {scheme}://HOST[:PORT]")
    return ServerAddress(*_checked(text, rest, port), tls)


def located(host: str, port: int | None, usual: int) -> ServerAddress:
    """Returns the address of a client's host and port arguments. host: in any form of `server_address`; port: the
    separate argument, None if it was not given; usual: the port if neither names one. Raises ValueError like
    `server_address`, and when the two name different ports."""
    if ":" not in host and not host.isdigit():
        return ServerAddress(host, usual if port is None else port)
    found = server_address(host, 0)
    if found.port and port not in (None, found.port):
        raise ValueError(f"{host!r} names the port {found.port}, and the port {port} is given too: give one of them")
    return found._replace(port=found.port or (usual if port is None else port))


def _checked(text: str, rest: str, port: int) -> tuple[str, int]:
    try:
        return address(rest, port)
    except ValueError:
        raise ValueError(f"{text!r} is not HOST:PORT") from None


def address(text: str, port: int) -> tuple[str, int]:
    """Returns host and port of HOST, HOST:PORT, [IPV6]:PORT, [IPV6], or an IPv6 address alone. port: the port of an
    address that names none. Raises ValueError, whose text does not name the flag or variable that holds the address."""
    import ipaddress  # noqa: PLC0415 - a command with the default address needs none

    bracketed = re.fullmatch(r"\[([^\[\]]*)\](?::(.*))?", text, re.DOTALL)
    if bracketed is not None:
        host, named = bracketed.groups()
        ipaddress.IPv6Address(host)
    elif text.count(":") > 1:
        host, named = text, None
        ipaddress.IPv6Address(host)
    else:
        host, colon, rest = text.partition(":")
        named = rest if colon else None
        if _HOST.fullmatch(host) is None:
            raise ValueError(f"{host!r} is no host")
    if named is None:
        return host, port
    if not re.fullmatch(r"[0-9]{1,5}", named) or not 0 < int(named) < 65536:
        raise ValueError(f"{named!r} is no port")
    return host, int(named)
