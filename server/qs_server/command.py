"""The command queue-server.py: flags to options, options to a running server, errors to one line."""

import argparse
import logging
import math
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version

import trio

from qs_schemas import Limits

from .options import PORT, ServerLimits, ServerOptions
from .server import ENGINES, StartError, run_server
from .storage.engine import Durability

_DURABILITY_HELP = (
    "what an answer means: 'always' (default), it survives power loss; 'interval', it does after 50 ms; "
    "'none', it survives the end of the server only"
)


def _at_least(least: float, kind: Callable[[str], float]) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = kind(text)
        if not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"{text} is not a number")
        if not value >= least:  # also of what is no number, NaN
            raise argparse.ArgumentTypeError(f"{text} is not {least:g} or more")
        return value

    read.__name__ = "number"
    return read


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 65535")
    return port


def make_parser() -> argparse.ArgumentParser:
    """Every flag of the command."""
    parser = argparse.ArgumentParser(
        prog="queue-server.py",
        description="The qs queue server: XML over TCP, queues that are directories of files.",
        epilog="When it is ready it prints 'listening on HOST:PORT'. SIGTERM or Ctrl-C ends it after what is begun.",
    )
    parser.add_argument("--version", action="version", version=f"qs {version('qsbus')}")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="log what happens; twice: every connection")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=_port, default=PORT, help="port; 0 picks a free one (default: %(default)s)")
    parser.add_argument(
        "--root", default="qs-data", help="directory of the queues, made if missing (default: ./%(default)s)"
    )
    parser.add_argument(
        "--storage", choices=ENGINES, default=ENGINES[0], help="engine of new queues (default: %(default)s)"
    )
    parser.add_argument(
        "--durability", choices=[d.value for d in Durability], default=Durability.ALWAYS.value, help=_DURABILITY_HELP
    )
    _add_limits(parser)
    return parser


def _add_limits(parser: argparse.ArgumentParser) -> None:
    limits, wire = ServerLimits(), Limits()
    group = parser.add_argument_group("limits")

    def add(flag: str, default: float, text: str, least: float = 1) -> None:
        kind = int if isinstance(default, int) else float
        group.add_argument(
            flag, type=_at_least(least, kind), default=default, metavar="N", help=f"{text} (default: {default})"
        )

    add("--max-document", wire.document, "bytes of one document", 256)
    add("--max-depth", wire.depth, "elements inside one another", 5)
    add("--max-attributes", wire.attributes, "attributes of one element", 12)
    add("--max-elements", wire.elements, "elements and comments of one document", 12)
    add("--max-list", wire.list_length, "messages in one list, and ids in one answer")
    add("--max-connections", limits.connections, "clients at once")
    add("--max-pipeline", limits.pipeline, "requests of one connection that wait for their answers")
    add("--max-outbox", limits.outbox, "bytes of answers that wait to be read by one client")
    add("--document-time", float(limits.document_time), "seconds from the first byte of a document to its last", 0.01)
    add("--linger", float(limits.linger), "seconds that a refused client has to read why", 0)
    add("--grace", float(limits.grace), "seconds that a stopping server gives what is begun", 0)


def read_options(arguments: Sequence[str] | None) -> tuple[ServerOptions, int]:
    """Options and verbosity from the command line. Ends the process on --help and on a wrong flag."""
    parsed = make_parser().parse_args(arguments)
    options = ServerOptions(
        root=parsed.root,
        host=parsed.host,
        port=parsed.port,
        storage=parsed.storage,
        durability=Durability(parsed.durability),
        limits=ServerLimits(
            connections=parsed.max_connections,
            document_time=parsed.document_time,
            pipeline=parsed.max_pipeline,
            outbox=parsed.max_outbox,
            linger=parsed.linger,
            grace=parsed.grace,
        ),
        wire=Limits(
            document=parsed.max_document,
            depth=parsed.max_depth,
            attributes=parsed.max_attributes,
            list_length=parsed.max_list,
            elements=parsed.max_elements,
        ),
    )
    return options, parsed.verbose


def _announce(host: str, port: int) -> None:
    try:
        print(f"listening on {f'[{host}]' if ':' in host else host}:{port}", flush=True)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"queue-server.py: cannot say where it listens: {error.strerror}", file=sys.stderr)
        # Python would try to write it again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Exit codes: 0 stopped as asked, 1 could not start, 2 wrong flags."""
    options, verbose = read_options(arguments)
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        trio.run(run_server, options, _announce)
    except StartError as error:
        print(f"queue-server.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130  # before the server had begun to listen for it
    return 0
