"""The command queue-server.py: flags to options, options to a running server, errors to one line."""

import argparse
from collections.abc import Sequence

from qs_serving.command import add_limits, limit_group, make_parser, read_limits, run_command

from .options import PORT, ServerOptions
from .server import ENGINES, run_server
from .storage.engine import Durability

_PROGRAM = "queue-server.py"
_DURABILITY_HELP = (
    "what an answer means: 'always' (default), it survives power loss; 'interval', it does after 50 ms; "
    "'none', it survives the end of the server only"
)


def _parser() -> argparse.ArgumentParser:
    """Every flag of the command."""
    parser = make_parser(_PROGRAM, "The qs queue server: XML over TCP, queues that are directories of files.", PORT)
    parser.add_argument(
        "--root", default="qs-data", help="directory of the queues, made if missing (default: ./%(default)s)"
    )
    parser.add_argument(
        "--storage", choices=ENGINES, default=ENGINES[0], help="engine of new queues (default: %(default)s)"
    )
    parser.add_argument(
        "--durability", choices=[d.value for d in Durability], default=Durability.ALWAYS.value, help=_DURABILITY_HELP
    )
    add_limits(limit_group(parser))
    return parser


def read_options(arguments: Sequence[str] | None) -> tuple[ServerOptions, int]:
    """Options and verbosity from the command line. Ends the process on --help and on a wrong flag."""
    parsed = _parser().parse_args(arguments)
    limits, wire = read_limits(parsed)
    options = ServerOptions(
        root=parsed.root,
        host=parsed.host,
        port=parsed.port,
        storage=parsed.storage,
        durability=Durability(parsed.durability),
        limits=limits,
        wire=wire,
    )
    return options, parsed.verbose


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Exit codes: 0 stopped as asked, 1 could not start, 2 wrong flags."""
    options, verbose = read_options(arguments)
    return run_command(_PROGRAM, verbose, run_server, options)
