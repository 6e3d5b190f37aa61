"""The arguments of `qs-dir`: its subcommands, their options, what --help says of them."""

import argparse
from collections.abc import Sequence

from qs_serving.version import ShowVersion

from .bodies import DEFAULT, Body
from .layouts import LAYOUTS, MAX_LOCK, MAX_TEMP, MAX_TEMP_VSQS

MAX_SIZE = 1 << 30
"""Bytes of a payload that --size may ask for: it is in memory as a whole."""
_EXAMPLES = """\
examples:
  qs-dir pump spool --count 1000 --size 200       1000 messages, as fast as it goes
  tail -f log | qs-dir pump spool --lines         each line is a message
  qs-dir sink spool --print --wait 0              print what is there, remove it, end
  qs-dir ls spool
  qs-dir purge spool --layout dirq --max-lock 60

exit codes: 0 done; 1 an error, or purge --all was not confirmed; 2 wrong usage; 3 sink ended with fewer than --count;
130 Ctrl-C (pump and sink finish the message in hand, and say how many there were)
"""
_LAYOUT = """\
The layout is told by what the directory holds: messages as files (vsqs), elements as files in directories named by
8 hexadecimal digits (dirq-simple: QueueSimple of dirq), or elements as directories (dirq: its Queue)."""
_DEFAULT = "One in which nothing tells is taken for vsqs, unless --layout says otherwise."
_PUMP = """\
Stores messages as fast as it can: numbers from 1 on, or the lines of standard input. Until Ctrl-C, --count, or the end
of the input. Makes the directory if it is missing. Waits for room when a vsqs queue holds --capacity messages, or as
many as the capacity in its .queue.toml."""
_SINK = """\
Takes messages out as fast as it can, and waits for more, until Ctrl-C, --count or --wait. vsqs: each is received, then
deleted. dirq: each is locked, read, then removed."""
_LS = """\
Lists the messages with age (seconds), size (bytes) and state, and how many there are. Changes nothing, and may be used
at any time. ready: whoever comes takes it; in flight or locked: somebody has it; delayed: not to be taken yet; expired:
its window is over, whoever comes makes it ready; being written; being removed."""
_PURGE = """\
vsqs: removes files that are being written (.new, hidden .tmp) and were not written to for --max-temp seconds, and makes
messages ready whose window or delay is over. A list of messages that a crash interrupted is made visible first.
dirq: removes elements that have been written or removed for more than --max-temp seconds, unlocks those locked for
more than --max-lock seconds, and removes intermediate directories that are empty, but the last.
--all: then every message is removed, those that somebody has included. Asks on a terminal, unless --yes is given."""


def command_line(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments, checked: exits with 2 and says why when they are wrong. `command` names the subcommand."""
    return _parser().parse_args(argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="qs-dir",
        description="Works on the directory of a queue, without a server: that of a queue of files (vsqs), or of dirq.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=ShowVersion, const="qs")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)

    def add(name: str, summary: str, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name,
            help=summary,
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        added.add_argument("directory", metavar="DIR")
        added.add_argument(
            "--layout",
            choices=LAYOUTS,
            help="of a directory in which nothing tells; one that has another layout is refused",
        )
        return added

    _pump(add("pump", "store messages, and show how fast", f"{_PUMP}\n{_LAYOUT}\n{_DEFAULT}"))
    _sink(add("sink", "take messages out, and show how fast", f"{_SINK}\n{_LAYOUT}\n{_DEFAULT}"))
    _ls(add("ls", "list the messages and their states", f"{_LS}\n{_LAYOUT}"))
    _purge(add("purge", "remove what was left behind, or everything", f"{_PURGE}\n{_LAYOUT}"))
    return parser


def _of_both(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-sync", action="store_true", help="do not wait for the disk: faster, not safe from power loss"
    )
    parser.add_argument(
        "--schema",
        type=_schema,
        metavar="FIELDS",
        help="dirq only, as in body=string,header=table?: what an element holds; the payload is 'body', or the "
        f"first that is no table (default: {DEFAULT}); pump wants UTF-8 for a string, sink takes any bytes",
    )


def _pump(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--count", type=_positive, metavar="N", help="end after so many")
    parser.add_argument("--rate", type=_rate, metavar="N", help="messages a second at most")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--size", type=_size, metavar="BYTES", help="of each payload: the number, filled up with dots; at most 1 GiB"
    )
    what.add_argument("--lines", action="store_true", help="each line of standard input is a message")
    parser.add_argument("-c", "--capacity", type=_positive, metavar="N", help="vsqs only: wait while it holds so many")
    _of_both(parser)


def _sink(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--count", type=_positive, metavar="N", help="end after so many")
    parser.add_argument(
        "-w", "--wait", type=_seconds, metavar="S", help="end when none came for so long; 0: do not wait"
    )
    parser.add_argument("-p", "--print", action="store_true", help="write each payload to stdout, before it is removed")
    parser.add_argument(
        "--visibility",
        type=_seconds,
        metavar="S",
        help="vsqs only: seconds that a message stays hidden if this is killed before it is removed (default: 10)",
    )
    _of_both(parser)


def _ls(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--summary", action="store_true", help="only how many there are")
    form.add_argument("--json", action="store_true", help="one JSON object a message")


def _purge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-temp",
        type=_seconds,
        metavar="S",
        help=f"seconds; 0: leave what is being written (default: {MAX_TEMP}, vsqs: {MAX_TEMP_VSQS})",
    )
    parser.add_argument(
        "--max-lock", type=_seconds, metavar="S", help=f"dirq only: seconds; 0: unlock nothing (default: {MAX_LOCK})"
    )
    parser.add_argument("--all", action="store_true", help="remove every message")
    parser.add_argument("--yes", action="store_true", help="do not ask")


# -- types of arguments ---------------------------------------------------------------------------------------------


def _positive(text: str) -> int:
    if not _bytes(text):
        raise argparse.ArgumentTypeError("at least 1 is needed")
    return int(text)


def _bytes(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _size(text: str) -> int:
    if (size := _bytes(text)) > MAX_SIZE:
        raise argparse.ArgumentTypeError(f"at most {MAX_SIZE} bytes (1 GiB) are possible, not {text}")
    return size


def _seconds(text: str) -> float:
    return _number(text, "a number of seconds, 0 or more")


def _rate(text: str) -> float:
    value = _number(text, "a number of messages a second")
    if value <= 1e-6:
        raise argparse.ArgumentTypeError("more than 0 a second is needed")
    return value


def _number(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value


def _schema(text: str) -> Body:
    try:
        return Body(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
