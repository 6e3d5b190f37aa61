"""Defines the flags that queue-server.py, queue-bus.py and queue-web.py share.

Reading the flags needs no trio, so that help is shown, and a wrong flag explained, also without the extras.
"""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from qs_schemas import Limits
from qs_schemas.command_line import CommandParser, add_standard_flags, file_name

from .arguments import add_config, number_group
from .logs import FORMATS
from .options import ServerLimits
from .tls import TlsFiles

# Every command prints this line, so that a script that starts one knows when clients can connect.
EPILOG = "When it is ready it prints 'listening on HOST:PORT'. SIGTERM or Ctrl-C ends it after what is begun."


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: a number between 0 and 65535")
    return int(text)


def basic_parser(program: str, description: str, port: int) -> argparse.ArgumentParser:
    """Returns a parser with the flags of every command that listens: address, TLS, the log, --check. port: the default
    of --port."""
    parser = CommandParser(prog=program, usage="%(prog)s [FLAG ...]", description=description, epilog=EPILOG)
    add_standard_flags(parser)
    parser.add_argument("-v", "--verbose", action="count", default=0, help="log what happens; twice: every connection")
    parser.add_argument(
        "--log-format", choices=FORMATS, default="text", help="'json' writes one object a line (default: %(default)s)"
    )
    add_config(parser)
    # Without a flag only this machine can connect: nothing is open to others by an oversight.
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=_port, default=port, help="port; 0 picks a free one (default: %(default)s)")
    _add_tls(parser)
    parser.add_argument(
        "--check", action="store_true", help="read all files and flags, say what is wrong, and end without listening"
    )
    return parser


def make_parser(program: str, description: str, port: int) -> argparse.ArgumentParser:
    """Returns a parser with the flags that the server and the bus have. port: the default of --port."""
    parser = basic_parser(program, description, port)
    parser.add_argument(
        "--end-of-document",
        choices=["line", "empty-line"],
        default="line",
        help="what follows each document that is sent; 'empty-line' is for early clients that only listen: those that "
        "send anything are known by how they end it (default: %(default)s)",
    )
    _add_access(parser)
    return parser


def add_buckers(parser: argparse.ArgumentParser, flags: Mapping[str, str]) -> None:
    """Adds flags of bucker's start scripts that mean nothing here, each of which is refused with a text that says what
    to write instead. flags: flag -> text, in which VALUE stands for the flag's value."""

    def refusing(text: str) -> Callable[[str], str]:
        def refuse(value: str) -> str:
            raise argparse.ArgumentTypeError(f"this is a flag of bucker's: {text.replace('VALUE', value)}")

        return refuse

    for flag, text in flags.items():
        parser.add_argument(flag, type=refusing(text), help=argparse.SUPPRESS)


# The text for bucker's log-file flag, which its server and its bus have.
LOG_FILE = "the log goes to standard error: leave -l out, and write 2>>VALUE behind the command"


def add_limits(group: argparse._ArgumentGroup, outbox: tuple[str, ...] = ("--max-outbox",)) -> None:
    """Adds the flags of `ServerLimits` and of the wire's `Limits`. outbox: the names of the flag for the outbox
    limit."""
    add = number_group(group, "N")
    limits, wire = ServerLimits(), Limits()
    # Each least value is what the contract itself needs: a lower bound would refuse every request.
    add("--max-document", wire.document, "bytes of one document", 256)
    add("--max-depth", wire.depth, "elements inside one another", 5)
    add("--max-attributes", wire.attributes, "attributes of one element", 12)
    add("--max-elements", wire.elements, "elements and comments of one document", 12)
    add("--max-list", wire.list_length, "messages in one list, and ids in one answer")
    add(
        "--max-connections", limits.connections, "clients at once; one that has not authenticated gives way to the next"
    )
    add("--max-handshakes", limits.handshakes, "TLS handshakes at once; the oldest gives way to the next")
    add("--max-pipeline", limits.pipeline, "requests of one connection that wait for their answers")
    add(outbox, limits.outbox, "bytes that wait to be read by one client")
    text = "seconds from the first byte of a document to its last, for a TLS handshake, and to authenticate"
    add("--document-time", float(limits.document_time), text, 0.01)
    add("--linger", float(limits.linger), "seconds that a refused client has to read why", 0)
    add("--grace", float(limits.grace), "seconds that a stopping server gives what is begun", 0)


def read_common(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> dict[str, Any]:
    """Returns the values of the flags of `make_parser` and `add_limits`, by their names in the options of both
    commands. Ends the process if the flags contradict each other."""
    limits = ServerLimits(
        connections=parsed.max_connections,
        handshakes=parsed.max_handshakes,
        document_time=parsed.document_time,
        pipeline=parsed.max_pipeline,
        outbox=parsed.max_outbox,
        linger=parsed.linger,
        grace=parsed.grace,
    )
    wire = Limits(
        document=parsed.max_document,
        depth=parsed.max_depth,
        attributes=parsed.max_attributes,
        list_length=parsed.max_list,
        elements=parsed.max_elements,
    )
    early = parsed.end_of_document == "empty-line"
    if parsed.access is not None and parsed.open:
        # --open and --access contradict each other, and a guess would let in everybody, or nobody.
        parser.error("--open lets everybody do everything, and --access says who may do what: give one of them")
    return {
        "host": parsed.host,
        "port": parsed.port,
        "tls": read_tls(parser, parsed),
        "access": parsed.access,
        "open": parsed.open,
        "check": parsed.check,
        "limits": limits,
        "wire": wire,
        "early": early,
        "log_format": parsed.log_format,
    }


def _add_tls(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("TLS", "All files are in PEM form, and are read again on SIGHUP.")

    def add(name: str, text: str) -> None:
        group.add_argument(name, type=file_name, metavar="FILE", help=text)

    add("--tls-cert", "speak TLS, with this certificate")
    add("--tls-key", "the private key of the certificate")
    add("--tls-client-ca", "accept only clients with a certificate of this CA")


def _add_access(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("who may do what")
    group.add_argument(
        "--access",
        type=file_name,
        metavar="FILE",
        help="principals, their tokens and rights, in TOML; is read again on SIGHUP",
    )
    group.add_argument(
        "--open", action="store_true", help="everybody may do everything, from other machines too (not with --access)"
    )


def read_tls(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> TlsFiles | None:
    """Returns the TLS files that the flags of `basic_parser` name, None for no TLS. Ends the process if the flags
    contradict each other."""
    cert, key, client_ca = parsed.tls_cert, parsed.tls_key, parsed.tls_client_ca
    if cert and key:
        return TlsFiles(cert, key, client_ca)
    if cert or key:
        parser.error("--tls-cert and --tls-key belong together: give both")
    if client_ca:
        parser.error("--tls-client-ca needs --tls-cert and --tls-key")
    return None
