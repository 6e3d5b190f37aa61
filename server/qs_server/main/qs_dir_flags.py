"""Defines the arguments of `qs-dir` and the text of --help."""

import argparse

from qs_schemas.command_line import CommandParser, add_standard_flags
from qs_serving.arguments import AtLeast
from qs_storage.engine import StorageError
from qs_storage.tools.elements import LAYOUTS, MAX_LOCK, MAX_TEMP, MAX_TEMP_VSQS
from qs_storage.tools.ends import Body

MAX_SIZE = 1 << 30
"""Bytes of a payload at most: it is in memory as a whole."""
_COUNT = AtLeast(1, int)
_SECONDS = AtLeast(0, float)
_EXAMPLES = """\
examples:
  qs-dir pump spool --count 1000 --size 200    1000 messages, as fast as it goes
  tail -f log | qs-dir pump spool --lines      each line is a message
  qs-dir sink spool --print --wait 0           print what is there, and remove it
  qs-dir ls spool
  qs-dir purge spool --layout dirq --max-lock 60

exit codes: 0 done; 1 an error, or purge --all was not confirmed; 2 wrong usage; 3 sink ended with fewer than --count;
130 Ctrl-C (pump and sink finish the message in hand, and say how many there were)
"""
_LAYOUT = """

What the directory holds tells its layout: messages as files (vsqs), elements as files in directories named by 8
hexadecimal digits (dirq-simple: QueueSimple of dirq), or elements as directories (dirq: its Queue)."""
_DEFAULT = " An empty or missing directory is taken for vsqs, unless --layout says otherwise."
_PUMP = """\
Stores messages as fast as it can, until Ctrl-C, --count, or the end of the input: the numbers from 1 on, or the lines
of standard input. Makes the directory if it is missing. Waits for room when a vsqs queue holds --capacity messages, or
as many as its .queue.toml allows."""
_SINK = """\
Takes messages out as fast as it can, and waits for more, until Ctrl-C, --count or --wait. A message of vsqs is
received, then deleted; an element of dirq is locked, read, then removed."""
_LS = """\
Lists the messages with age (seconds), size (bytes) and state, and how many there are. Changes nothing, and may be used
at any time.

States: ready, a consumer can take it; in flight or locked, a consumer has it; delayed, it cannot be taken yet; expired,
its window is over, and the next consumer makes it ready; being written; being removed."""
_PURGE = """\
vsqs: makes a list of messages visible whose publishing a crash interrupted, removes files that are being written (.new,
hidden .tmp) and were not written to for --max-temp seconds, and makes messages ready whose window or delay is over.

dirq: removes elements that have been written or removed for more than --max-temp seconds, unlocks those locked for
more than --max-lock seconds, and removes empty intermediate directories, except the last.

With --all, every message is removed then, also those that consumers have. Asks on a terminal, unless --yes is given."""


def make_parser() -> argparse.ArgumentParser:
    about = "Works on the directory of a queue of files (vsqs) or of dirq, without a server."
    parser = CommandParser(prog="qs-dir", description=about, epilog=_EXAMPLES)
    add_standard_flags(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)

    def add(name: str, summary: str, text: str, default: str = "") -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=summary, description=f"{text}{_LAYOUT}{default}")
        added.add_argument("directory", metavar="DIR", help="directory of the queue")
        text = "layout of an empty or missing directory; a directory of another layout is refused"
        added.add_argument("--layout", choices=LAYOUTS, help=text)
        return added

    _pump(add("pump", "store messages, and show how fast", _PUMP, _DEFAULT))
    _sink(add("sink", "take messages out, and show how fast", _SINK, _DEFAULT))
    _ls(add("ls", "list the messages and their states", _LS))
    _purge(add("purge", "remove what was left behind, or everything", _PURGE))
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-sync", action="store_true", help="do not wait for the disk: faster, not safe from power loss"
    )
    parser.add_argument(
        "--schema",
        type=_schema,
        metavar="FIELDS",
        help="dirq only, as in body=string,header=table?: what an element holds; the payload is 'body', or the "
        f"first that is no table (default: {Body.DEFAULT}); pump wants UTF-8 for a string, sink takes any bytes",
    )


def _pump(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--count", type=_COUNT, metavar="N", help="end after so many messages")
    parser.add_argument("--rate", type=AtLeast(1e-6, float), metavar="N", help="messages a second at most")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--size", type=_size, metavar="BYTES", help="size of each payload, a number filled up with dots; at most 1 GiB"
    )
    what.add_argument("--lines", action="store_true", help="each line of standard input is a message")
    parser.add_argument(
        "-c", "--capacity", type=_COUNT, metavar="N", help="vsqs only: wait while it holds so many messages"
    )
    _add_common(parser)


def _sink(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--count", type=_COUNT, metavar="N", help="end after so many messages")
    waiting = "end when no message came for S seconds; 0: do not wait"
    parser.add_argument("-w", "--wait", type=_SECONDS, metavar="S", help=waiting)
    parser.add_argument("-p", "--print", action="store_true", help="write each payload to stdout before it is removed")
    parser.add_argument(
        "--visibility",
        type=_SECONDS,
        metavar="S",
        help="vsqs only: seconds after which a message comes back if sink is killed before it removes it (default: 10)",
    )
    _add_common(parser)


def _ls(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--summary", action="store_true", help="only say how many there are")
    form.add_argument("--json", action="store_true", help="one JSON object a message")


def _purge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-temp",
        type=_SECONDS,
        metavar="S",
        help="remove what is being written or removed for S seconds; 0: nothing "
        f"(default: {MAX_TEMP}, vsqs: {MAX_TEMP_VSQS})",
    )
    parser.add_argument(
        "--max-lock",
        type=_SECONDS,
        metavar="S",
        help=f"dirq only: unlock what is locked for S seconds; 0: nothing (default: {MAX_LOCK})",
    )
    parser.add_argument("--all", action="store_true", help="remove every message too")
    parser.add_argument("--yes", action="store_true", help="with --all: do not ask")


def _size(text: str) -> float:
    if (size := AtLeast(0, int)(text)) > MAX_SIZE:
        raise argparse.ArgumentTypeError(f"at most {MAX_SIZE} bytes (1 GiB) are possible, not {text}")
    return size


def _schema(text: str) -> Body:
    try:
        return Body(text)
    except StorageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
