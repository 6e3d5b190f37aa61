"""Addresses as they are written at command lines and in the environment."""

import ipaddress
import re

_HOST = re.compile(r"[^\s/@\[\]:,;?#]{1,255}")


def address(text: str, port: int) -> tuple[str, int]:
    """The host and the port of HOST, HOST:PORT, [IPV6]:PORT, [IPV6], or an IPv6 address alone. port: when none is
    named. ValueError without saying of what."""
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
