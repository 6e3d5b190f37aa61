"""The arguments of the subcommands that make, change and empty queues."""

import argparse
from collections.abc import Callable
from typing import Any

from .argument_values import (
    CHANGEABLE,
    condition,
    given_options,
    positive,
    positive_seconds,
    rate,
    receives,
    schema,
    seconds,
)

AddCommand = Callable[..., argparse.ArgumentParser]
"""Adds a subcommand: its name, its function as MODULE:FUNCTION of this package, a summary and details. Returns its
parser."""

_SET_EXAMPLES = """\
examples:
  qs set orders --dead-letter failed --max-receives 5
  qs set orders --retention 604800           remove what is older than a week
  qs set orders --rate 10 --max-in-flight 5  spare what its workers need
  qs set orders --schema order               refuse what order.xsd does not allow
  qs set orders --remove retention --remove capacity
"""
_REDRIVE_EXAMPLES = """\
examples:
  qs redrive failed                          each message back to the queue that it came from
  qs redrive failed --to orders --max 10     the ten oldest, into one queue
  qs redrive failed 1760000000000000
"""


def name_queue(parser: argparse.ArgumentParser, *, hint: bool = False, **more: Any) -> None:
    """Adds the argument QUEUE. hint: an error about a missing queue says how to create it."""
    parser.add_argument("queue", metavar="QUEUE", **more)
    if hint:
        parser.set_defaults(hint_new=lambda arguments: arguments.queue or "QUEUE")


def add_queue_commands(add: AddCommand) -> None:
    """Adds `new`, `set`, `options`, `rm`, `purge`, `pause`, `resume`, `redrive` and `claims`."""
    new = add("new", "command_queues:new", "create a queue")
    name_queue(new)
    new.add_argument("--storage", metavar="ENGINE", help="how it is stored (default: the server's choice)")
    new.add_argument(
        "--exist-ok", action="store_true", help="a queue that exists is no error if it has the options that are named"
    )
    _add_options(new)
    rm = add("rm", "command_queues:rm", "delete queues")
    rm.add_argument("queues", metavar="QUEUE", nargs="+")
    rm.add_argument("--force", action="store_true", help="also queues that hold messages, with the messages")
    purge = add("purge", "command_queues:purge", "remove all messages of a queue and print how many there were")
    name_queue(purge)
    for parser in (rm, purge):
        parser.add_argument("-y", "--yes", action="store_true", help="do not ask; scripts are not asked anyway")
    _add_changes(add)
    _add_redrive(add)
    _add_claims(add)


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a queue that can be changed later."""
    # None has a default: what is not named is left to the server, or stays as it is.
    parser.add_argument("--visibility", type=seconds, metavar="S", help="seconds that a received message stays hidden")
    parser.add_argument("--capacity", type=positive, metavar="N", help="largest number of messages; more are refused")
    parser.add_argument("--retention", type=positive_seconds, metavar="S", help="remove messages older than S seconds")
    parser.add_argument(
        "--dead-letter", metavar="QUEUE", help="the queue for messages that were received --max-receives times in vain"
    )
    parser.add_argument("--max-receives", type=receives, metavar="N", help="1 to 1000, see --dead-letter")
    parser.add_argument(
        "--backoff",
        type=positive_seconds,
        metavar="S",
        help="seconds until a message that was received in vain is visible again: twice as many each further time",
    )
    parser.add_argument("--backoff-max", type=positive_seconds, metavar="S", help="at most so many (default: 3600)")
    parser.add_argument(
        "--group-in-flight",
        type=positive,
        metavar="N",
        help="messages of a group that are out at a time (default: 1, strict order)",
    )
    parser.add_argument(
        "--fair", action=argparse.BooleanOptionalAction, help="serve groups in turn, or by the age of their messages"
    )
    parser.add_argument(
        "--max-in-flight", type=positive, metavar="N", help="messages of the queue that are out at a time"
    )
    parser.add_argument("--rate", type=rate, metavar="N", help="messages that are handed out a second")
    parser.add_argument(
        "--schema",
        type=schema,
        metavar="NAME",
        help="a file of the server's --schemas: payloads that it does not allow are refused",
    )
    parser.add_argument(
        "--where",
        type=condition,
        metavar="CONDITION",
        help="of the queue of a durable name of a bus: which messages the name gets",
    )


def _add_changes(add: AddCommand) -> None:
    change = add(
        "set", "command_queues:change", "change options of a queue", "Those that are not named stay as they are."
    )
    change.epilog = _SET_EXAMPLES
    name_queue(change, hint=True)
    _add_options(change)
    change.add_argument(
        "--remove",
        action="append",
        default=[],
        choices=[name.replace("_", "-") for name in CHANGEABLE],
        metavar="OPTION",
        help=f"remove an option: {', '.join(name.replace('_', '-') for name in CHANGEABLE)}",
    )
    options = add("options", "command_queues:options", "print the options of a queue")
    name_queue(options, hint=True)
    pause = add(
        "pause", "command_queues:pause", "let queues give nothing out until they are resumed", "They still take pushes."
    )
    pause.add_argument("queues", metavar="QUEUE", nargs="+")
    resume = add("resume", "command_queues:resume", "let paused queues give messages out again")
    resume.add_argument("queues", metavar="QUEUE", nargs="+")


def check_changes(arguments: argparse.Namespace) -> None:
    """Checks the options of `qs set`. Raises ValueError if they change nothing, or one is given and removed."""
    given = given_options(arguments)
    both = [name for name in arguments.remove if name.replace("-", "_") in given]
    if both:
        raise ValueError(f"--{both[0]} sets the option, and --remove {both[0]} removes it: give one of them")
    if not given and not arguments.remove:
        raise ValueError("say which option to change, as in: qs set QUEUE --retention 604800")


def _add_redrive(add: AddCommand) -> None:
    redrive = add(
        "redrive",
        "command_queues:redrive",
        "move dead letters back and print how many",
        "QUEUE is the dead-letter queue.\n"
        "Without MID: all that it holds now, oldest first. Exits with 3 when there was none.",
    )
    redrive.epilog = _REDRIVE_EXAMPLES
    name_queue(redrive)
    redrive.add_argument("mids", metavar="MID", nargs="*", default=[], type=positive)
    redrive.add_argument("--to", metavar="QUEUE", help="move them here (default: each to the queue that it came from)")
    redrive.add_argument("-n", "--max", type=positive, metavar="N", help="without MID: at most N messages")


def _add_claims(add: AddCommand) -> None:
    claims = add(
        "claims",
        "command_queues:claims",
        "list the claims on a queue: consumer, messages, time",
        "--release gives up the claims of a consumer that will not come back: their messages are visible again. A "
        "consumer that does come back gets these messages, or others, a second time.",
    )
    name_queue(claims, hint=True)
    claims.add_argument("--release", metavar="CONSUMER", help="give up the claims of this consumer")
    claims.add_argument("--seq", type=positive, metavar="N", help="with --release: only this claim")
    claims.add_argument(
        "--owner",
        metavar="NAME",
        help="with --release: the principal whose consumer it is, '' for clients without one (default: yourself). "
        "Needs the right admin",
    )
