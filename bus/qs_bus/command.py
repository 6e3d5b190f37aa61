"""The command queue-bus.py: flags to options, options to a running bus, errors to one line."""

import argparse
import os
import re
from collections.abc import Sequence

from qs_client.command_arguments import DEFAULT_SERVER, server
from qs_schemas.limits import QID
from qs_serving.command import add_limits, make_parser, number_group, read_common, run_command

from .bus import run_bus
from .options import PORT, BusOptions, Policy

_PROGRAM = "queue-bus.py"
_DESCRIPTION = (
    "The qs bus: pushes the new messages of a queue server to whoever is connected. A client that only connects gets "
    "those of every queue that is monitored."
)
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that the protocol or XML does not allow in the name of a queue."""


def _names(text: str) -> list[str]:
    """A comma list."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name of a queue in it")
    for name in names:
        if len(name) > QID or _UNFIT.search(name):
            raise argparse.ArgumentTypeError(
                f"{name!r} cannot be the name of a queue: 1 to {QID} characters, no control characters"
            )
    return names


def _parser() -> argparse.ArgumentParser:
    defaults = BusOptions()
    parser = make_parser(_PROGRAM, _DESCRIPTION, PORT)
    parser.add_argument(
        "-s",
        "--server",
        type=server,
        metavar="HOST:PORT",
        help=f"default: $QS_SERVER, else {DEFAULT_SERVER}",
    )
    parser.add_argument(
        "-q",
        "--queue",
        type=_names,
        action="extend",
        default=[],
        metavar="NAME",
        help="monitor this queue, which is made if there is none; can be given several times, and as a comma list "
        "(default: whichever existing queue a client subscribes to)",
    )
    parser.add_argument(
        "--policy",
        choices=[policy.value for policy in Policy],
        default=defaults.policy.value,
        help="what happens to a subscriber for which more than --outbox bytes wait: 'hold' (default), it gets them "
        "when it reads again; 'disconnect'",
    )
    text = "seconds that acknowledging subscribers have to come back after the bus was killed"
    number_group(parser, "S")("--settle", defaults.settle, text, 0)
    group = parser.add_argument_group("limits")
    number_group(group, "N")("--max-hold", defaults.hold, "messages that 'hold' keeps for one subscriber")
    add_limits(group, outbox=("--outbox", "--max-outbox"))
    return parser


def read_options(arguments: Sequence[str] | None) -> tuple[BusOptions, int]:
    """Options and verbosity from the command line. Ends the process on --help and on a wrong flag."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.server is None:
        try:
            parsed.server = server(os.environ.get("QS_SERVER") or DEFAULT_SERVER)
        except argparse.ArgumentTypeError as error:
            parser.error(f"QS_SERVER: {error}")
    options = BusOptions(
        server=parsed.server,
        queues=tuple(dict.fromkeys(parsed.queue)),
        policy=Policy(parsed.policy),
        hold=parsed.max_hold,
        settle=parsed.settle,
        **read_common(parsed),
    )
    return options, parsed.verbose


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Exit codes: 0 stopped as asked; 1 could not start, or not stop in time; 2 wrong flags."""
    options, verbose = read_options(arguments)
    return run_command(_PROGRAM, verbose, run_bus, options)
