"""The arguments of `qs`: its subcommands, their options, what --help says of them."""

import argparse
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from qs_schemas.addresses import address

from . import bounds
from . import command_verbs as verbs
from .command_claims import list_or_release
from .command_export import export
from .command_tail import tail
from .version import ShowVersion

DEFAULT_SERVER = "127.0.0.1:9876"
DEFAULT_BUS = "127.0.0.1:9878"

_EXAMPLES = """\
examples:
  qs new orders
  qs push orders 'hello'                     one message; prints its id
  qs push orders --file invoice.xml          a file is one message
  tail -f log | qs push logs --create --lines
  qs receive orders --wait 20 --delete       wait for a message, print it, then delete it
  qs tail orders                             print the messages of the bus as they come
  qs ls -l                                   the queues and how many messages they hold
  qs stats orders
  qs export orders backup/orders             the messages as files, one each

exit codes: 0 done; 1 an error of the server or the connection; 2 wrong usage; 3 nothing found; 130 interrupted
"""


class AnyOrder(argparse.ArgumentParser):
    """Takes options between positional arguments: `qs push orders --delay 3 hello`. argparse has a method for that,
    which it does not use for subcommands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)  # an abbreviation in a script breaks with the next option
        self._within = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As the base class has it."""
        if self._within:
            return super().parse_known_args(args, namespace)
        self._within = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._within = False


def server(text: str) -> tuple[str, int]:
    """HOST, HOST:PORT, [IPV6]:PORT or an IPv6 address alone."""
    return _address(text, DEFAULT_SERVER)


def bus(text: str) -> tuple[str, int]:
    """The same, of a bus."""
    return _address(text, DEFAULT_BUS)


def _address(text: str, example: str) -> tuple[str, int]:
    """example: has the port that is meant when there is none."""
    try:
        return address(text, int(example.rpartition(":")[2]))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not HOST:PORT, as in {example} or [::1]:{example.rpartition(':')[2]}"
        ) from None


def seconds(text: str) -> float:
    """A duration: seconds, 0 or more, possibly with a fraction."""
    return _duration(text, more_than_none=False)


def positive_seconds(text: str) -> float:
    """A duration of more than nothing."""
    return _duration(text, more_than_none=True)


def _duration(text: str, *, more_than_none: bool) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    try:
        bounds.seconds(value, "it", more_than_none=more_than_none)
    except ValueError:
        least = "more than 0" if more_than_none else "0 or more"
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds, {least}, at most {bounds.MOST_SECONDS}"
        ) from None
    return value


def positive(text: str) -> int:
    """A whole number, 1 or more."""
    if not text.isascii() or not text.isdigit() or len(text) > len(str(bounds.MOST)) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 1 or more, of at most 18 digits")
    return int(text)


def command_line(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments, checked: exits with 2 and says why when they are wrong. `run` is the subcommand's function."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.command == "claims" and arguments.seq is not None and arguments.release is None:
        parser.error("--seq says which claim to release: give --release CONSUMER too")
    if arguments.of_bus and arguments.server is not None:
        parser.error(f"qs {arguments.command} talks to the bus, not to the queue server: give --bus HOST:PORT")
    if arguments.timeout is None and not arguments.of_bus:
        arguments.timeout = _TIMEOUT
    name, variable, address, default = _BUS if arguments.of_bus else _SERVER
    if getattr(arguments, name) is None:
        try:
            setattr(arguments, name, address(os.environ.get(variable) or default))
        except argparse.ArgumentTypeError as error:
            parser.error(f"{variable}: {error}")
    return arguments


_TIMEOUT = 30.0  # seconds
_SERVER = ("server", "QS_SERVER", server, DEFAULT_SERVER)
_BUS = ("bus", "QS_BUS", bus, DEFAULT_BUS)


def _common(*, of_bus: bool = False) -> AnyOrder:
    """Options that stand before the subcommand or after it. Suppressed, so that the latter do not undo the former; and
    made anew for each parser, as set_defaults() changes the options themselves. of_bus: it needs no server."""
    common = AnyOrder(add_help=False, argument_default=argparse.SUPPRESS)
    group = common.add_argument_group("common options")
    group.add_argument(
        "-s",
        "--server",
        type=str if of_bus else server,  # any is an error there, which says what to give instead
        metavar="HOST:PORT",
        help=argparse.SUPPRESS if of_bus else f"default: $QS_SERVER, else {DEFAULT_SERVER}",
    )
    group.add_argument(
        "--timeout",
        type=positive_seconds,
        metavar="S",
        help="seconds for the bus to take the subscription (default: as long as it takes)"
        if of_bus
        else "seconds to wait for an answer, beyond --wait (default: 30)",
    )
    group.add_argument("--json", action="store_true", help="one JSON object a line")
    return common


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="qs",
        description="Push messages to the queues of a queue server, receive them, and look after the queues.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[_common()],
    )
    parser.add_argument("--version", action=ShowVersion, const="qs")
    parser.set_defaults(server=None, timeout=None, json=False, hint_new=None, of_bus=False)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=AnyOrder)

    def add(
        name: str,
        run: Callable[..., int],
        summary: str,
        details: str = "",
        *,
        aliases: Sequence[str] = (),
        of_bus: bool = False,
    ) -> argparse.ArgumentParser:
        added = subparsers.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}. {details}".strip(),
            parents=[_common(of_bus=of_bus)],
            aliases=aliases,
        )
        added.set_defaults(run=run, command=name, of_bus=of_bus)
        return added

    for arguments_of in (_push, _receive, _tail, _messages, _listings, _queues, _export, _server):
        arguments_of(add)
    return parser


_Add = Callable[..., argparse.ArgumentParser]


def _queue(parser: argparse.ArgumentParser, *, hint: bool = False, **more: Any) -> None:
    """hint: when there is no such queue, the error says how to make it."""
    parser.add_argument("queue", metavar="QUEUE", **more)
    if hint:
        parser.set_defaults(hint_new=lambda arguments: arguments.queue or "QUEUE")


def _push(add: _Add) -> None:
    push = add("push", verbs.push, "store messages and print their ids", "Without PAYLOAD and --file: all of stdin.")
    _queue(push, hint=True)
    push.add_argument("payload", metavar="PAYLOAD", nargs="*", default=[], help="each is one message")
    push.add_argument("-f", "--file", action="append", metavar="FILE", help="each is one message; - is stdin")
    push.add_argument("--lines", action="store_true", help="every line of the files or of stdin is one message")
    push.add_argument("--delay", type=seconds, metavar="S", help="seconds until the messages become visible")
    push.add_argument("-c", "--create", action="store_true", help="make the queue if it does not exist")


def _receive(add: _Add) -> None:
    receive = add(
        "receive",
        verbs.receive,
        "print the oldest visible messages",
        "They are hidden from others for the visibility window, and come again after it unless they are deleted. "
        "Exits with 3 when there was none.",
    )
    receive.add_argument("queues", metavar="QUEUE", nargs="+", help="several: the oldest over all of them")
    receive.set_defaults(hint_new=lambda given: given.queues[0] if len(given.queues) == 1 else "QUEUE")
    receive.add_argument("-n", "--max", type=positive, default=1, metavar="N", help="at most so many (default: 1)")
    receive.add_argument("-w", "--wait", type=seconds, default=0, metavar="S", help="seconds to wait for the first")
    receive.add_argument("--visibility", type=seconds, metavar="S", help="seconds to hide them from others")
    receive.add_argument("--delete", action="store_true", help="delete them once they are written")
    receive.add_argument("-v", "--verbose", action="store_true", help="a line with queue and id before each payload")


def _tail(add: _Add) -> None:
    added = add(
        "tail",
        tail,
        "print the messages of the bus as they come",
        "Each is acknowledged once it is written, and then deleted from its queue when everybody subscribed has it. "
        "Goes on after outages of the bus, until it is interrupted.",
        of_bus=True,
    )
    added.add_argument("queues", metavar="QUEUE", nargs="+")
    added.set_defaults(hint_new=lambda given: given.queues[0] if len(given.queues) == 1 else "QUEUE", bus=None)
    added.add_argument("--bus", type=bus, metavar="HOST:PORT", help=f"default: $QS_BUS, else {DEFAULT_BUS}")
    added.add_argument("-n", "--max", type=positive, metavar="N", help="end after so many")
    added.add_argument("--name", metavar="NAME", help="share a durable subscription: each message goes to one of NAME")
    added.add_argument("-v", "--verbose", action="store_true", help="a line with queue and id before each payload")


def _messages(add: _Add) -> None:
    peek = add("peek", verbs.peek, "print messages and leave them as they are", "Without MID: the oldest ready ones.")
    _queue(peek)
    peek.add_argument("mids", metavar="MID", nargs="*", default=[], type=positive)
    peek.add_argument("-n", "--max", type=positive, default=1, metavar="N", help="without MID: how many (default: 1)")
    peek.add_argument("-v", "--verbose", action="store_true", help="a line with queue and id before each payload")
    delete = add("delete", verbs.delete, "acknowledge messages: remove them for good", aliases=["ack"])
    _queue(delete)
    delete.add_argument("mids", metavar="MID", nargs="+", type=positive)
    release = add("release", verbs.release, "give received messages back for another try")
    _queue(release)
    release.add_argument("mids", metavar="MID", nargs="+", type=positive)
    release.add_argument("--delay", type=seconds, metavar="S", help="seconds until they are visible again")


def _listings(add: _Add) -> None:
    ls = add("ls", verbs.ls, "list the queues, or the ids of a queue's messages")
    _queue(ls, hint=True, nargs="?")
    ls.add_argument("-a", "--all", action="store_true", help="also the queues that a bus has made for itself")
    ls.add_argument("-l", "--long", action="store_true", help="with how many messages a queue holds, or since when")
    ls.add_argument(
        "--state",
        choices=["new", "ready", "in-flight", "delayed", "all"],
        default="all",
        help="only messages that were never received (new), are visible now (ready), … (default: all)",
    )
    claims = add(
        "claims",
        list_or_release,
        "list the claims on a queue: who holds what, since when",
        "With --release, those of a consumer that will not come back are given up, and their messages visible again. "
        "A consumer that does come back gets them, or others, a second time.",
    )
    _queue(claims, hint=True)
    claims.add_argument("--release", metavar="CONSUMER", help="give up its claims")
    claims.add_argument("--seq", type=positive, metavar="N", help="with --release: only that one")
    stats = add("stats", verbs.stats, "show the figures of a queue, or of all")
    _queue(stats, hint=True, nargs="?")


def _queues(add: _Add) -> None:
    new = add("new", verbs.new, "make a queue")
    _queue(new)
    new.add_argument("--storage", metavar="ENGINE", help="how it is stored (default: the server's choice)")
    new.add_argument("--visibility", type=seconds, metavar="S", help="seconds that a received message stays hidden")
    new.add_argument("--capacity", type=positive, metavar="N", help="messages; more are refused")
    rm = add("rm", verbs.rm, "remove queues")
    rm.add_argument("queues", metavar="QUEUE", nargs="+")
    rm.add_argument("--force", action="store_true", help="with the messages that are still in them")
    purge = add("purge", verbs.purge, "remove all messages of a queue and print how many there were")
    _queue(purge)


def _export(add: _Add) -> None:
    added = add(
        "export",
        export,
        "write the visible messages of a queue to files",
        "Each is a file in DIR, named by its id (the layout of vsqs), and the queue stays as it is. Nothing is "
        "overwritten: a file that is there with the same content counts as written, so that the command can be given "
        "again.",
    )
    _queue(added)
    added.add_argument("directory", metavar="DIR", help="made if it is missing")
    added.add_argument("--delete", action="store_true", help="delete each message once its file is on the disk")
    added.add_argument(
        "--visibility", type=seconds, metavar="S", help="with --delete: seconds to hide them from others"
    )


def _server(add: _Add) -> None:
    add("ping", verbs.ping, "see that the server answers")
