"""The command queue-server.py: flags to options, options to a running server, errors to one line."""

import argparse
from collections.abc import Sequence

from qs_schemas.addresses import address
from qs_serving.command import add_limits, at_least, limit_group, make_parser, read_limits, run_command

from ..storage.engine import Durability
from ..storage.journal.store import CACHE
from .opening import ENGINES, REMOTE
from .options import PORT, HistoryOptions, ServerOptions, SqsOptions
from .server import run_server

_PROGRAM = "queue-server.py"
_MEMCACHED = 11211
"""The port of a memcached when none is named."""
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
        "--storage",
        choices=[*ENGINES, *REMOTE],
        default=next(iter(ENGINES)),
        help="engine of new queues that do not name one (default: %(default)s)",
    )
    parser.add_argument(
        "--durability", choices=[d.value for d in Durability], default=Durability.ALWAYS.value, help=_DURABILITY_HELP
    )
    _add_cache(parser)
    _add_history(parser)
    _add_remotes(parser)
    add_limits(limit_group(parser))
    return parser


def _add_cache(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("journal")
    group.add_argument(
        "--cache",
        type=at_least(0, int),
        default=CACHE,
        metavar="BYTES",
        help="payloads that are kept in memory; others are read from the journal (default: %(default)s)",
    )


def _add_history(parser: argparse.ArgumentParser) -> None:
    default = HistoryOptions("")
    group = parser.add_argument_group("lifecycle record")
    group.add_argument("--history", metavar="DIR", help="record what happens to each message in files in DIR")
    group.add_argument(
        "--history-size",
        type=at_least(1, int),
        default=default.size,
        metavar="BYTES",
        help="a file is finished when it has so many (default: %(default)s)",
    )
    group.add_argument(
        "--history-age",
        type=at_least(0.1, float),
        default=default.age,
        metavar="SECONDS",
        help="or so long after its first line (default: %(default)g)",
    )
    group.add_argument(
        "--history-keep",
        type=at_least(1, int),
        metavar="BYTES",
        help="remove the oldest files when there are more (default: keep all)",
    )


def _read_history(parsed: argparse.Namespace) -> HistoryOptions | None:
    if parsed.history is None:
        return None
    return HistoryOptions(parsed.history, parsed.history_size, parsed.history_age, parsed.history_keep)


def _add_remotes(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("queues that other servers keep")
    group.add_argument(
        "--memcached",
        type=_addresses,
        default=ServerOptions("").memcached,
        metavar="HOST[:PORT][,...]",
        help="the memcached servers of queues of that storage (default: 127.0.0.1:11211)",
    )
    group.add_argument("--sqs-endpoint", metavar="URL", help="where queues of the storage sqs are (default: Amazon)")
    group.add_argument("--sqs-region", metavar="NAME", help="without it, what AWS's own tools would take")
    group.add_argument(
        "--sqs-prefix", default="", metavar="TEXT", help="what the names of all queues begin with there (default: none)"
    )


def _addresses(written: str) -> tuple[tuple[str, int], ...]:
    found = []
    for part in written.split(","):
        try:
            found.append(address(part.strip(), _MEMCACHED))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{part!r} is no HOST[:PORT]") from None
    return tuple(found)


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
        history=_read_history(parsed),
        cache=parsed.cache,
        memcached=parsed.memcached,
        sqs=SqsOptions(parsed.sqs_endpoint, parsed.sqs_region, parsed.sqs_prefix),
        early=parsed.end_of_document == "empty-line",
    )
    return options, parsed.verbose


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Exit codes: 0 stopped as asked; 1 could not start, or not stop as it should; 2 wrong flags."""
    options, verbose = read_options(arguments)
    return run_command(_PROGRAM, verbose, run_server, options)
