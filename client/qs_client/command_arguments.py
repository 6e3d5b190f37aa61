"""The arguments of `qs`: subcommands, options and their help."""

import argparse
import os
import sys
from collections.abc import Sequence
from enum import Enum

from qs_schemas.command_line import AnyOrder, CommandParser, add_standard_flags, file_name

from .argument_values import condition, group, header, key, positive, positive_seconds, priority, seconds
from .command_help import overview
from .queue_arguments import AddCommand, add_queue_commands, check_changes, name_queue
from .server_arguments import (
    DEFAULT_BUS,
    DEFAULT_SERVER,
    add_security,
    bus,
    read_address,
    refuse_key,
    refuse_port,
    server,
)
from .work_arguments import add_work, check_work


class Target(Enum):
    """Names the kind of server that a subcommand talks to."""

    SERVER = "server"
    BUS = "bus"
    NOTHING = "nothing"


_EXAMPLES = """\
examples:
  qs new orders
  qs push orders 'hello'                     one message; prints its id
  qs push orders --file invoice.xml          a file is one message
  qs push orders --key order-17 'hello'      safe to repeat: within 5 minutes it is stored once
  qs push orders --priority 9 --header traceparent="$TRACEPARENT" 'hello'
  tail -f log | qs push logs --create --lines
  qs receive orders --wait 20 --delete       wait for a message, print it, then delete it
  qs work jobs thumbnails:make               call make(message) of thumbnails.py for each message
  qs tail orders                             print the messages of the bus as they come
  qs ls -l                                   the queues and how many messages they hold
  qs ls orders --state in-flight -l          what its consumers have, and until when
  qs stats orders
  qs check order.xml --schema order          is it valid? without a server
  qs set orders --dead-letter failed --max-receives 5
  qs redrive failed                          what failed goes back for another try
  qs export orders backup/orders             the messages as files, one each
  qs -s qss://queues.example ls              with TLS; QS_TOKEN or --token-file says who you are

exit codes: 0 done; 1 an error of the server or the connection; 2 wrong usage; 3 nothing found; 4 not done, as
the question was not answered with yes; 130 interrupted
"""
_TAIL_EXAMPLES = """\
examples:
  qs tail orders
  qs tail orders --where "/order[@priority='high']/total > 100"
  qs tail orders --where '$header-region = "eu"'
  qs tail --match 'orders-*'                 also queues that appear later
"""


def command_line(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses and checks the arguments. Exits with 2 and a reason when they are wrong. `run` is the subcommand's
    function."""
    parser = make_parser()
    words = sys.argv[1:] if argv is None else argv
    if not words:
        parser.exit(_WRONG_USAGE, overview(parser.get_default("commands")))
    arguments = parser.parse_args(words)
    arguments.words = list(words)  # for processes that are told the same
    _check_subcommand(parser, arguments)
    if arguments.target is Target.NOTHING:
        return arguments
    if arguments.target is Target.BUS and arguments.server is not None:
        parser.error(f"qs {arguments.command} talks to the bus, not to the queue server: give --bus HOST:PORT")
    # Not as a default of the flag: without one, `tail` waits for its bus as long as it takes.
    if arguments.timeout is None and arguments.target is Target.SERVER:
        arguments.timeout = _TIMEOUT
    arguments.address = read_address(parser, arguments, "bus" if arguments.target is Target.BUS else "server")
    return arguments


def _check_push(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    # An empty payload is most likely a variable that is not set.
    if "" in arguments.payload and not arguments.allow_empty:
        parser.error("a message without content needs --allow-empty")
    if arguments.key is not None and _may_be_several(arguments):
        parser.error("--key is the key of one message: push one at a time, each with a key of its own")
    # `--file DIR/*`: the shell makes payloads of all names but the first.
    if arguments.file and (files := list(filter(os.path.isfile, arguments.payload))):
        parser.error(f"{files[0]!r} is a file, and would be pushed as a payload: give each file a --file of its own")
    if arguments.unique and arguments.key is None:
        parser.error("--unique says how long a key counts: give --key KEY too")
    names = [name.lower() for name, _ in arguments.header]
    if twice := [name for name in names if names.count(name) > 1]:
        parser.error(f"--header {twice[0]} is given twice, and a message has one header of a name")


def _check_subcommand(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if arguments.command == "push":
        _check_push(parser, arguments)
    if arguments.command == "claims" and arguments.seq is not None and arguments.release is None:
        parser.error("--seq says which claim to release: give --release CONSUMER too")
    if arguments.command == "claims" and arguments.owner is not None and arguments.release is None:
        parser.error("--owner says whose claims to release: give --release CONSUMER too")
    if check := {"set": check_changes, "work": check_work}.get(arguments.command):
        try:
            check(arguments)
        except ValueError as error:
            parser.error(str(error))


def _may_be_several(push: argparse.Namespace) -> bool:
    return push.lines or len(push.payload) + len(push.file or ()) > 1


_WRONG_USAGE = 2
_STATES = ("new", "ready", "in-flight", "delayed", "all")
_REASON = "why: kept with the message, and shown by peek -v and ls -l; at most 1 KiB"
_TIMEOUT = 30.0  # seconds
_VERBOSE = "a line with queue, id and what else is known before each payload"


def _add_common(
    parser: argparse.ArgumentParser, target: Target = Target.SERVER, json_help: str = "one JSON object a line"
) -> None:
    """Adds the options that may stand before or after the subcommand. target: the subcommand's; json_help: what its
    --json does.

    The options have no defaults in the parser of a subcommand, so that it does not reset an option that stood before
    it.
    """
    group = parser.add_argument_group("common options", argument_default=argparse.SUPPRESS)
    group.add_argument("--json", action="store_true", help=json_help)
    if target is Target.NOTHING:
        return
    group.add_argument(
        "-s",
        "--server",
        type=server if target is Target.SERVER else str,  # any value is an error, which suggests --bus
        metavar="HOST:PORT",
        help=f"default: $QS_SERVER, else {DEFAULT_SERVER}" if target is Target.SERVER else argparse.SUPPRESS,
    )
    group.add_argument(
        "--timeout",
        type=positive_seconds,
        metavar="S",
        help="seconds for the bus to take the subscription (default: as long as it takes)"
        if target is Target.BUS
        else "seconds to wait for an answer, beyond --wait (default: 30)",
    )
    refuse_port(group, "--bus HOST:PORT" if target is Target.BUS else "--server HOST:PORT")
    add_security(parser.add_argument_group("TLS and tokens", argument_default=argparse.SUPPRESS))


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command. Its default `commands` has the name and the summary of each subcommand."""
    commands: list[tuple[str, str]] = []
    parser = CommandParser(
        prog="qs",
        description="Push and receive messages of a queue server, and manage its queues.",
        epilog=_EXAMPLES,
    )
    add_standard_flags(parser)
    _add_common(parser)
    refuse_key(parser)
    parser.set_defaults(server=None, timeout=None, json=False, hint_new=None, target=Target.SERVER, commands=commands)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=AnyOrder)

    def add(
        name: str,
        run: str,
        summary: str,
        details: str = "",
        *,
        aliases: Sequence[str] = (),
        target: Target = Target.SERVER,
        **common: str,
    ) -> argparse.ArgumentParser:
        added = subparsers.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}. {details}".strip(),
            aliases=aliases,
        )
        _add_common(added, target, **common)
        if name != "push":  # there it is the message's key
            refuse_key(added)
        added.set_defaults(run=run, command=name, target=target)
        commands.append((name, summary))
        return added

    for arguments_of in (_push, _receive, add_work, _tail, _messages, _listings, add_queue_commands, _export, _server):
        arguments_of(add)
    about = add(
        "help",
        "command_help:show_help",
        "show the commands with an example each, or the flags of one",
        target=Target.NOTHING,
    )
    about.add_argument("topic", metavar="COMMAND", nargs="?")
    about.set_defaults(parser=parser)
    return parser


def _push(add: AddCommand) -> None:
    push = add(
        "push",
        "command_verbs:push",
        "store messages and print their ids",
        "Without PAYLOAD and --file: all of stdin, as one message.",
    )
    name_queue(push, hint=True)
    push.add_argument("payload", metavar="PAYLOAD", nargs="*", default=[], help="each is one message")
    push.add_argument("-f", "--file", action="append", metavar="FILE", help="each is one message; - is stdin")
    push.add_argument("--lines", action="store_true", help="every line of the files or of stdin is one message")
    push.add_argument("--delay", type=seconds, metavar="S", help="seconds until the messages become visible")
    push.add_argument(
        "--key",
        type=key,
        metavar="KEY",
        help="of one message, which makes its push safe to repeat: another push with this key within 5 minutes stores "
        "nothing, and prints the id of the first",
    )
    push.add_argument(
        "--unique",
        action="store_true",
        help="with --key: the key counts for as long as the first message is in the queue, and no longer",
    )
    push.add_argument("--priority", type=priority, metavar="N", help="0 to 9: a greater one comes first (default: 0)")
    push.add_argument("--group", type=group, metavar="NAME", help="messages of a group do not overtake each other")
    push.add_argument(
        "--expires", type=positive_seconds, metavar="S", help="seconds after which they are not handed out any more"
    )
    push.add_argument(
        "--header",
        type=header,
        action="append",
        default=[],
        metavar="NAME=TEXT",
        help="text that comes with each message; may be repeated",
    )
    push.add_argument("--allow-empty", action="store_true", help="push empty files too; --lines does so anyway")
    push.add_argument("-c", "--create", action="store_true", help="create the queue if it does not exist")


def _receive(add: AddCommand) -> None:
    receive = add(
        "receive",
        "command_verbs:receive",
        "print the visible messages that come first",
        "They are hidden from other consumers for the visibility window, and delivered again after it unless deleted. "
        "Exits with 3 when there was none.",
    )
    receive.add_argument("queues", metavar="QUEUE", nargs="+", help="several: the first messages of all of them")
    receive.set_defaults(hint_new=lambda given: given.queues[0] if len(given.queues) == 1 else "QUEUE")
    receive.add_argument("-n", "--max", type=positive, default=1, metavar="N", help="at most N messages (default: 1)")
    receive.add_argument(
        "-w", "--wait", type=seconds, default=0, metavar="S", help="seconds to wait for the first message"
    )
    receive.add_argument("--visibility", type=seconds, metavar="S", help="seconds to hide them from others")
    receive.add_argument(
        "--order",
        choices=("oldest", "given"),
        default="oldest",
        help="of several queues: as if they were one, or the first one until it is empty (default: oldest)",
    )
    receive.add_argument("--delete", action="store_true", help="delete them once they are written")
    _show_more(receive)


def _show_more(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the subcommands that print messages."""
    parser.add_argument("-v", "--verbose", action="store_true", help=_VERBOSE)
    parser.add_argument("--headers", action="store_true", help="that line, and the headers, before each payload")


def _tail(add: AddCommand) -> None:
    added = add(
        "tail",
        "command_verbs:tail",
        "print the messages of the bus as they come",
        "Each is acknowledged once it is printed, and deleted from its queue when all subscribers have handled it: so "
        "it takes messages away from the workers of a queue. To look without taking, use qs peek. "
        "Continues after outages of the bus, until interrupted.",
        target=Target.BUS,
    )
    added.epilog = _TAIL_EXAMPLES
    added.add_argument("queues", metavar="QUEUE", nargs="+")
    added.set_defaults(hint_new=lambda given: given.queues[0] if len(given.queues) == 1 else "QUEUE", bus=None)
    added.add_argument("--bus", type=bus, metavar="HOST:PORT", help=f"default: $QS_BUS, else {DEFAULT_BUS}")
    added.add_argument("-n", "--max", type=positive, metavar="N", help="end after N messages")
    added.add_argument("--name", metavar="NAME", help="share a durable subscription: each message goes to one of NAME")
    added.add_argument(
        "--where",
        type=condition,
        metavar="CONDITION",
        help="only messages whose XML or headers match it; the others count as handled, and are not printed",
    )
    added.add_argument(
        "--match",
        action="store_true",
        help="each QUEUE is a pattern: * and ? stand for any characters, later queues too",
    )
    _show_more(added)


def _messages(add: AddCommand) -> None:
    peek = add(
        "peek",
        "command_look:peek",
        "print messages without receiving them",
        "Without MID: the oldest ready ones, or those of --state. Messages that a consumer has, or that are scheduled "
        "for later, are shown too.",
    )
    name_queue(peek)
    peek.add_argument("mids", metavar="MID", nargs="*", default=[], type=positive)
    peek.add_argument("-n", "--max", type=positive, default=1, metavar="N", help="without MID: how many (default: 1)")
    _show_more(peek)
    peek.add_argument(
        "--state", choices=_STATES, default="ready", help="without MID: those in this state (default: ready)"
    )
    delete = add("delete", "command_verbs:delete", "acknowledge messages: remove them for good", aliases=["ack"])
    name_queue(delete)
    delete.add_argument("mids", metavar="MID", nargs="+", type=positive)
    release = add("release", "command_verbs:release", "give received messages back for another try")
    name_queue(release)
    release.add_argument("mids", metavar="MID", nargs="+", type=positive)
    release.add_argument("--delay", type=seconds, metavar="S", help="seconds until they are visible again")
    release.add_argument("--reason", metavar="TEXT", help=_REASON)
    release.add_argument(
        "--no-count", action="store_true", help="take the receive back: you did not try to handle them"
    )

    reject = add(
        "reject",
        "command_verbs:reject",
        "make messages dead letters now",
        "For messages that no further attempt can help. The queue needs a dead-letter queue: qs set --dead-letter.",
    )
    name_queue(reject)
    reject.add_argument("mids", metavar="MID", nargs="+", type=positive)
    reject.add_argument("--reason", metavar="TEXT", help=_REASON)


def _listings(add: AddCommand) -> None:
    ls = add(
        "ls",
        "command_verbs:ls",
        "list the queues, or messages",
        "With QUEUE: the ids of its messages. Without QUEUE, --state lists the messages of all queues in that state.",
        aliases=["list"],
    )
    name_queue(ls, hint=True, nargs="?")
    ls.add_argument("-a", "--all", action="store_true", help="also the queues that a bus keeps for itself")
    ls.add_argument(
        "-l", "--long", action="store_true", help="with figures, or of messages: status, size, times, reason"
    )
    ls.add_argument(
        "--state",
        choices=_STATES,
        help="only messages that were never received (new), are visible now (ready), that a consumer has (in-flight), "
        "that are scheduled for later (delayed); or all (the default with QUEUE)",
    )
    stats = add("stats", "command_verbs:stats", "show the figures of one queue or of all")
    name_queue(stats, hint=True, nargs="?")


def _export(add: AddCommand) -> None:
    added = add(
        "export",
        "command_export:export",
        "write the visible messages of a queue to files",
        "Each becomes a file in DIR, named by its id (the layout of vsqs); the queue stays unchanged. Nothing is "
        "overwritten: a file that exists with the same content counts as written, so the command can be repeated.",
    )
    name_queue(added)
    added.add_argument("directory", metavar="DIR", help="created if it is missing")
    added.add_argument("--delete", action="store_true", help="delete each message once its file is on the disk")
    added.add_argument(
        "--visibility", type=seconds, metavar="S", help="with --delete: seconds to hide them from others"
    )


def _server(add: AddCommand) -> None:
    add("ping", "command_verbs:ping", "check that the server answers")
    figures = add(
        "figures",
        "command_verbs:figures",
        "show the figures of the server itself, or of a bus",
        "Requests, connections, messages, the journal, the process: one figure a line, in the notation of Prometheus. "
        "-s with the address of a bus shows those of the bus. Needs the right to monitor the server.",
    )
    figures.add_argument(
        "--connections",
        action="store_true",
        help="also since when each client is connected, and its subscriptions; the oldest 1,000",
    )
    figures.add_argument("names", metavar="NAME", nargs="*", help="only these; * and ? stand for any characters")
    check = add(
        "check",
        "command_check:check",
        "check files with a schema, without a server",
        "Prints a line for each file, with the first thing that is wrong with it, as a server with the same schemas "
        "would find it. Exits with 1 if a file is not valid, or cannot be read.",
        target=Target.NOTHING,
    )
    check.add_argument("files", metavar="FILE", nargs="+", help="each is one payload; - is stdin")
    check.add_argument(
        "--schema",
        required=True,
        metavar="NAME",
        help="the name of a schema: that of its file, with or without .xsd or .json; or the file's path, with a /",
    )
    check.add_argument(
        "--schemas",
        type=file_name,
        metavar="DIR",
        help="the directory of the schemas (default: $QS_SCHEMAS, else the current one)",
    )
    add(
        "token",
        "command_verbs:new_token",
        "make a token, without a server",
        "Prints the token, for the client, and a line for the principal's section in the server's access file, which "
        "does not show the token.",
        target=Target.NOTHING,
    )
