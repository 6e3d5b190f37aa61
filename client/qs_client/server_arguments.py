"""The arguments and variables that say where a server is, and how to speak to it: TLS, certificates, a token.

`qs`, `qs-pipeline`, `queue-bus.py` and `queue-web.py` add the same ones, the last two with `--server-` before their
names. No argument takes a token itself: everybody on the machine can read those of a process.
"""

import argparse
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from qs_schemas.addresses import ServerAddress, server_address
from qs_schemas.command_line import file_name

if TYPE_CHECKING:
    from .security import Security, Token

DEFAULT_SERVER = "127.0.0.1:9876"
DEFAULT_BUS = "127.0.0.1:9878"
INSECURE = "the certificate of the server is not verified: anybody on the way can read and change everything"


def server(text: str) -> ServerAddress:
    """Parses the address of a server: HOST, HOST:PORT, [IPV6]:PORT, an IPv6 address alone, or qs:// or qss:// and one
    of these."""
    return _address(text, DEFAULT_SERVER)


def bus(text: str) -> ServerAddress:
    """Parses the address of a bus, in the same forms."""
    return _address(text, DEFAULT_BUS)


def _address(text: str, example: str) -> ServerAddress:
    """Parses an address. example: an address with the default port, for the error text."""
    port = example.rpartition(":")[2]
    try:
        return server_address(text, int(port))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{error}, as in {example}, [::1]:{port} or qss://queues.example:{port}"
        ) from None


_PLACES = {"server": ("QS_SERVER", server, DEFAULT_SERVER), "bus": ("QS_BUS", bus, DEFAULT_BUS)}


def read_address(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, name: str = "server", *, prefix: str = "--"
) -> ServerAddress:
    """Returns the address in a flag, else in its variable, else the default, and makes it the flag's value. Exits when
    the address or the flags for TLS are wrong. name: the flag's, "server" or "bus"; prefix: what the names of the flags
    for TLS begin with."""
    variable, parse, default = _PLACES[name]
    address: ServerAddress | None = getattr(arguments, name)
    try:
        if address is None:
            address = parse(os.environ.get(variable) or default)
        check_security(arguments, address, prefix)
    except argparse.ArgumentTypeError as error:
        parser.error(f"{variable}: {error}")
    except ValueError as error:
        parser.error(str(error))
    setattr(arguments, name, address)
    return address


def add_security(group: argparse._ActionsContainer, prefix: str = "--") -> None:
    """Adds the flags for TLS and tokens. prefix: what their names begin with."""

    def add(name: str, text: str, metavar: str | None = None) -> None:
        if metavar is None:
            group.add_argument(f"{prefix}{name}", action="store_true", help=text)
        else:
            group.add_argument(f"{prefix}{name}", type=file_name, metavar=metavar, help=text)

    add("tls", "speak TLS, and trust the CAs of the system; qss:// before the address does the same")
    add("ca", "speak TLS, and trust the CA certificates in FILE instead (default: $QS_CA)", "FILE")
    add("cert", "speak TLS, and show this certificate to servers that ask for one", "FILE")
    add(_key_of(prefix), f"the private key of {prefix}cert, if it is in another file", "FILE")
    add("tls-insecure", "speak TLS without verifying the server: only for tests")
    add(
        "token-file", "says who you are: a file with a token (default: $QS_TOKEN, else the file $QS_TOKEN_FILE)", "FILE"
    )
    group.add_argument(f"{prefix}token", type=_no_token, help=argparse.SUPPRESS)  # else the error would show the token


def refuse_key(group: argparse._ActionsContainer) -> None:
    """Adds a flag `--key` that is an error: in an earlier version it named the certificate's key, and for `qs push` it
    is the message's key. So a command line for the earlier version never pushes with a key by mistake."""
    group.add_argument("--key", type=_no_key, help=argparse.SUPPRESS)


def refuse_port(group: argparse._ActionsContainer, flag: str) -> None:
    """Adds `--port` and `--host`, the flags of the servers, as errors that name the flag which has both here.

    flag: what to write, as in --server HOST:PORT."""

    def refuse(_: str) -> str:
        raise argparse.ArgumentTypeError(f"the address is {flag}")

    for wrong in ("--port", "--host"):
        group.add_argument(wrong, type=refuse, help=argparse.SUPPRESS)


def _key_of(prefix: str) -> str:
    """Returns the name of the flag for the key of a certificate, without dashes. Without a prefix the flag is
    `--client-key`, because `--key` is the key of a message."""
    return "client-key" if prefix == "--" else "key"


def _no_key(_: str) -> str:
    raise argparse.ArgumentTypeError(
        "the private key of a certificate is --client-key FILE (the key of a message is a flag of qs push, after push)"
    )


def _no_token(_: str) -> str:
    raise argparse.ArgumentTypeError(
        "everybody on this machine can see the arguments of a process: put the token into QS_TOKEN or into a file"
    )


class _Given:
    """The values of the flags; None or False for those that were not given. asking: the flags that ask for TLS."""

    def __init__(self, arguments: argparse.Namespace, prefix: str) -> None:
        def value(name: str) -> str | None:
            found: str | None = getattr(arguments, f"{prefix}{name}".strip("-").replace("-", "_"), None)
            return found

        key = _key_of(prefix)
        self.ca, self.cert, self.key = value("ca"), value("cert"), value(key)
        self.key_flag = f"{prefix}{key}"
        self.insecure = bool(value("tls-insecure"))
        self.token_file = value("token-file")
        files = [name for name in ("ca", "cert", key) if value(name) is not None]
        switches = [name for name in ("tls", "tls-insecure") if value(name)]
        self.asking = [f"{prefix}{name}" for name in switches + files]


def check_security(
    arguments: argparse.Namespace,
    address: ServerAddress,
    prefix: str = "--",
    environ: Mapping[str, str] = os.environ,
) -> bool:
    """Tells whether the flags, the address and the variables ask for TLS. Raises ValueError when they contradict each
    other: wrong usage. Reads no files."""
    from .security import with_tls  # noqa: PLC0415 - --help needs none

    given = _Given(arguments, prefix)
    if given.key is not None and given.cert is None:
        raise ValueError(f"{given.key_flag} is the key of a certificate: give {prefix}cert too")
    if given.insecure and given.ca is not None:
        raise ValueError(
            f"{prefix}ca is for verifying the server, {prefix}tls-insecure is against it: give one of them"
        )
    return with_tls(address.tls, given.asking + ["QS_CA"] * bool(environ.get("QS_CA")))


def make_security(
    arguments: argparse.Namespace,
    address: ServerAddress,
    warn: Callable[[str], None],
    *,
    prefix: str = "--",
    environ: Mapping[str, str] = os.environ,
) -> "Security":
    """Returns the security that the flags, the address and the variables ask for. warn: gets a line about what is not
    safe.

    Raises OSError, with the file's name, if a file cannot be read; ValueError if a file does not hold what it should,
    or for a contradiction as in `check_security`.
    """
    from .security import PLAIN, Security  # noqa: PLC0415 - --help needs none

    given = _Given(arguments, prefix)
    token = _token(given.token_file, environ, warn)
    if not check_security(arguments, address, prefix, environ):
        if token is None:
            return PLAIN
        if not _is_here(address.host):
            warn(f"the token goes to {address.host} without TLS: anybody on the way can read it; use qss://")
        return Security(token=token)
    from .tls import client_context, show_certificate, unverified_context  # noqa: PLC0415

    if given.insecure:
        warn(f"{prefix}tls-insecure: {INSECURE}")
        context = unverified_context()
    else:
        context = client_context(environ.get("QS_CA") or True if given.ca is None else given.ca)
    if given.cert is not None:
        try:
            show_certificate(context, given.cert, given.key)
        except ValueError as error:
            apart = f"; if its key is in a file of its own, give {given.key_flag}" if given.key is None else ""
            raise ValueError(f"{error}{apart}") from None
    return Security(context, token)


def _is_here(host: str) -> bool:
    """Tells whether bytes for a host stay on this machine, as far as its name tells."""
    import ipaddress  # noqa: PLC0415 - only a token needs it

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _token(file: str | None, environ: Mapping[str, str], warn: Callable[[str], None]) -> "Token | None":
    from .security import Token, read_token  # noqa: PLC0415

    # A flag is meant for this command alone, so it wins over the variables, which hold for all.
    if file is None and (text := environ.get("QS_TOKEN", "").strip()):
        try:
            return Token(text)
        except ValueError as error:
            raise ValueError(f"QS_TOKEN: {error}") from None
    path = environ.get("QS_TOKEN_FILE") or None if file is None else file
    return None if path is None else read_token(path, warn)
