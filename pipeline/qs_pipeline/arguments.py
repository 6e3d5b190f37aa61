"""The arguments of `qs-pipeline`: subcommands, options and their help. Imports nothing of Spark, so --help is fast."""

import argparse
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from qs_client.argument_values import positive, seconds
from qs_client.server_arguments import DEFAULT_SERVER, add_security, bus, read_address, refuse_key, server
from qs_schemas.command_line import AnyOrder, CommandParser, add_standard_flags

from .security import security_of

EPILOG = """\
examples:
  qs-pipeline archive orders --to /data/orders            what is in the queue now
  qs-pipeline archive orders logs --to /data/qs --continuous
  qs-pipeline archive orders --to /data/orders --xml-schema order.xsd
  qs-pipeline route orders --sql totals.sql --to totals --errors broken
  qs-pipeline replay /data/orders --to orders --from 2025-06-01 --until 2025-06-02 --rate 500
  qs-pipeline report /var/lib/qs/history --to /tmp/report
  qs-pipeline report /var/lib/qs/history --to /tmp/report --bus 127.0.0.1:9878

exit codes: 0 done; 1 an error without a code of its own; 2 wrong usage; 3 no Java; 4 no server; 5 no such queue;
6 another query uses this consumer's name; 7 the checkpoint is lost; 8 a query is wrong, or fails;
9 a schema does not fit; 10 messages are missing; 11 a message has the wrong content;
130 interrupted, 143 terminated (the next run continues)
"""

_EVERY = 5.0


def moment(text: str) -> datetime:
    """Parses an ISO 8601 time; UTC unless it has a zone."""
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time, as in 2025-06-30 or 2025-06-30T12:00:00Z") from None
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC)


def period(text: str) -> float:
    """Parses the seconds from one batch to the next, at least a millisecond."""
    value = seconds(text)
    if value < 0.001:  # the unit of Spark
        raise argparse.ArgumentTypeError(f"{text!r} is less than a millisecond")
    return value


def name(text: str) -> str:
    """Parses the name of a queue or directory. It may not be empty, like an unset variable of a shell."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty")
    return text


def setting(text: str) -> tuple[str, str]:
    """Parses KEY=VALUE of Spark."""
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE of Spark, as in spark.driver.memory=2g")
    return key, value


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses and checks the arguments. Exits with 2 and a reason when they are wrong. `job` is the subcommand's
    name."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    # A report asks no server but the bus, if it is told to.
    peer = "server" if getattr(arguments, "bus", None) is None else "bus"
    address = read_address(parser, arguments, peer)
    setattr(arguments, peer, address[:2])
    arguments.security = security_of(arguments, address)
    if arguments.job == "replay":
        begin, end = arguments.begin, arguments.end
        if begin is not None and end is not None and begin >= end:
            parser.error(f"--from {begin.isoformat()} is not before --until {end.isoformat()}")
    if arguments.job in ("archive", "route"):
        # None, and not the default, tells that it was not given: then it cannot contradict --once.
        if arguments.every is not None and not arguments.continuous:
            parser.error("--every needs --continuous: it is the time between batches")
        arguments.every = _EVERY if arguments.every is None else arguments.every
    if arguments.job == "route" and arguments.errors == arguments.to:
        parser.error("--errors and --to name the same queue: name another one for errors")
    return arguments


def _common() -> AnyOrder:
    """Returns a parent parser with the options that may stand before or after the subcommand."""
    # No defaults: that of the subcommand's parser would replace what stood before the subcommand.
    common = AnyOrder(add_help=False, argument_default=argparse.SUPPRESS)
    group = common.add_argument_group("common options")
    group.add_argument(
        "-s", "--server", type=server, metavar="HOST:PORT", help=f"default: $QS_SERVER, else {DEFAULT_SERVER}"
    )
    group.add_argument(
        "--master", metavar="URL", help="of Spark (default: what spark-submit says, else the cores of this machine)"
    )
    group.add_argument("--conf", type=setting, action="append", metavar="KEY=VALUE", help="a setting of Spark")
    group.add_argument("-v", "--verbose", action="store_true", help="show Spark's log, each batch, and tracebacks")
    add_security(common.add_argument_group("TLS and tokens: files of each machine that connects"))
    refuse_key(common)
    return common


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command."""
    parser = CommandParser(
        prog="qs-pipeline",
        description="Spark over queues: archive them, report on them, replay an archive, or route them through SQL.",
        epilog=EPILOG,
        parents=[_common()],
    )
    add_standard_flags(parser, "qs-pipeline")
    parser.set_defaults(server=None, master=None, conf=[], verbose=False)
    jobs = parser.add_subparsers(title="jobs", metavar="JOB", required=True, dest="job", parser_class=AnyOrder)

    def add(name: str, summary: str, details: str) -> argparse.ArgumentParser:
        description = f"{summary[0].upper()}{summary[1:]}. {details}"
        return jobs.add_parser(name, help=summary, description=description, parents=[_common()])

    for arguments_of in (_archive, _report, _replay, _route):
        arguments_of(add)
    return parser


_Add = Callable[[str, str, str], argparse.ArgumentParser]


def _runs(parser: argparse.ArgumentParser, batch: int, more: str) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--once", action="store_true", help="process what is in the queue now, then end (default)")
    group.add_argument("--continuous", action="store_true", help="continue until interrupted")
    parser.add_argument(
        "--every",
        type=period,
        metavar="SECONDS",
        help="with --continuous: time from one batch to the next (default: 5)",
    )
    parser.add_argument(
        "--batch", type=positive, default=batch, metavar="MESSAGES", help=f"in a batch, at most (default: {more})"
    )
    parser.add_argument(
        "--accept-loss",
        action="store_true",
        help="continue though claimed messages have been purged, or the queue was created again",
    )


def _archive(add: _Add) -> None:
    parser = add(
        "archive",
        "move queues into a Parquet table, each message once",
        "The table is DIR/queue=NAME/date=YYYY-MM-DD/*.parquet, with the date of the push in UTC, and the columns "
        "mid, pushed_at, body and receives; any reader of Parquet can open it (DuckDB: DIR/queue=*/date=*/*.parquet). "
        "A message is deleted from its queue when it is in the table. The next run completes one that was interrupted "
        "or killed. DIR/_qs holds the state of the archive: keep it with the files.",
    )
    parser.add_argument("queues", type=name, metavar="QUEUE", nargs="+")
    parser.add_argument("--to", type=name, required=True, metavar="DIR", help="a directory, or a URI that Hadoop knows")
    parser.add_argument(
        "--xml-schema",
        metavar="FILE",
        help="an XSD, or a schema of Spark as DDL or JSON: adds the column document with the payload's content, and "
        "_corrupt_record with the reason why a payload does not fit; body stays unchanged, and no message is dropped",
    )
    parser.add_argument(
        "--xml-root", metavar="NAME", help="root element of the payloads: required if the XSD declares several"
    )
    parser.add_argument(
        "--body", choices=["binary", "string"], default="binary", help="type of the column body (default: binary)"
    )
    _runs(parser, 100_000, "100000, and 256 MiB")


def _report(add: _Add) -> None:
    parser = add(
        "report",
        "report times, throughput and redeliveries, from the server's lifecycle record",
        "HISTORY is the directory of queue-server.py --history.",
    )
    parser.add_argument("history", type=name, metavar="HISTORY")
    parser.add_argument("--to", type=name, required=True, metavar="DIR", help="a directory for the report")
    parser.add_argument(
        "--top", type=positive, default=20, metavar="N", help="rows of the lists of messages, 1 to 1000 (default: 20)"
    )
    parser.add_argument(
        "--bus",
        type=bus,
        metavar="HOST:PORT",
        help="ask this bus too, and add a table of what the conditions of its subscriptions let through and kept back; "
        "TLS and the token are those towards the bus",
    )


def _replay(add: _Add) -> None:
    parser = add(
        "replay",
        "push archived messages to a queue, in their original order",
        "After an interruption, the same command continues and pushes nothing twice: the first run chooses and keeps "
        "the messages (DIR/_qs/replays), so the archive may grow meanwhile. A finished replay is repeated only with "
        "--again.",
    )
    parser.add_argument("archive", type=name, metavar="DIR", help="the directory of qs-pipeline archive --to")
    parser.add_argument("--to", type=name, required=True, metavar="QUEUE")
    parser.add_argument(
        "--where",
        metavar="SQL",
        help="a condition on queue, mid, pushed_at, body (as text), receives, date and, with a schema, document",
    )
    parser.add_argument("--from", dest="begin", type=moment, metavar="TIME", help="pushed then or later (UTC)")
    parser.add_argument("--until", dest="end", type=moment, metavar="TIME", help="pushed before that (UTC)")
    parser.add_argument("--rate", type=positive, metavar="N", help="messages a second, at most")
    parser.add_argument("--dry-run", action="store_true", help="only print what would be pushed")
    parser.add_argument("--again", action="store_true", help="repeat a finished replay")


def _route(add: _Add) -> None:
    parser = add(
        "route",
        "route a queue through a SQL query to a queue, each message once",
        "The query sees the view messages with the columns queue, mid, pushed_at, body (as text), receives and "
        "claim_seq, and returns a column body (or value): each row of the result is pushed. It is applied to each "
        "batch separately: an aggregate covers one batch. Avoid what differs from run to run (rand(), "
        "current_timestamp()): an interrupted batch is computed again.",
    )
    parser.add_argument("queue", type=name, metavar="QUEUE")
    parser.add_argument("--sql", required=True, metavar="FILE", help="the query")
    parser.add_argument("--to", type=name, required=True, metavar="QUEUE")
    parser.add_argument(
        "--errors",
        type=name,
        metavar="QUEUE",
        help="queue for the payloads of messages whose row has a NULL body; the query then has to return the column "
        "mid too. Without --errors, such a row ends the job",
    )
    parser.add_argument(
        "--state",
        type=name,
        metavar="DIR",
        help="state of the route (default: ~/.local/state/qs-pipeline/route-…, by server and queue)",
    )
    _runs(parser, 10_000, "10000")
