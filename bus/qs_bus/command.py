"""Runs the command queue-bus.py: reads the flags, runs the bus, and reports errors in one line."""

import argparse
import logging
import os
import re
from collections.abc import Sequence
from functools import partial

from qs_client.server_arguments import DEFAULT_SERVER, add_security, make_security, read_address, server
from qs_schemas.extras import importing
from qs_schemas.limits import QID
from qs_serving.arguments import number_group, parse_arguments
from qs_serving.flags import LOG_FILE, add_buckers, add_limits, make_parser, read_common

from .options import PORT, BusOptions, Policy, ServerSecurity

_logger = logging.getLogger(__name__)
_PROGRAM = "queue-bus.py"
_SERVER = "--server-"
"""The beginning of the flags for TLS and a token towards the queue server."""
_DESCRIPTION = (
    "The qs bus: pushes new messages of a queue server to its subscribers. A client that connects and sends nothing "
    "gets the messages of every monitored queue."
)
_INVALID = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that the protocol or XML does not allow in a queue's name."""


def _names(text: str) -> list[str]:
    """Splits a comma-separated list of queue names."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} contains an empty queue name")
    for name in names:
        if len(name) > QID or _INVALID.search(name):
            raise argparse.ArgumentTypeError(
                f"{name!r} is not a queue name: use 1 to {QID} characters, no control characters"
            )
    return names


def _warn(text: str) -> None:
    _logger.warning("%s", text)


def bus_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command's flags."""
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
        help="monitor this queue, and create it if it is missing; may be repeated or be a comma-separated list "
        "(default: every existing queue that a client subscribes to)",
    )
    parser.add_argument(
        "--policy",
        choices=[policy.value for policy in Policy],
        default=defaults.policy.value,
        help="what to do with a subscriber for which more than --outbox bytes wait: 'hold' keeps them until it reads "
        "(default), 'disconnect' disconnects it",
    )
    text = "seconds to wait for acknowledging subscribers to come back after the bus was killed"
    number_group(parser, "S")("--settle", defaults.settle, text, 0)
    text = "How the bus speaks to the queue server. The files are read again on SIGHUP."
    add_security(parser.add_argument_group("towards the queue server", text), _SERVER)
    group = parser.add_argument_group("limits")
    number_group(group, "N")("--max-hold", defaults.hold, "messages that 'hold' keeps for one subscriber")
    add_limits(group, outbox=("--outbox", "--max-outbox"))
    add_buckers(parser, {"-p": "write --port VALUE", "-l": LOG_FILE})
    return parser


def read_options(arguments: Sequence[str] | None) -> tuple[BusOptions, int]:
    """Reads the options and the verbosity from the command line. Exits on --help and on a wrong flag."""
    parser = bus_parser()
    parsed = parse_arguments(parser, arguments)
    address = read_address(parser, parsed, prefix=_SERVER)
    options = BusOptions(
        server=(address.host, address.port),
        security=partial(make_security, parsed, address, _warn, prefix=_SERVER),
        queues=tuple(dict.fromkeys(parsed.queue)),
        policy=Policy(parsed.policy),
        hold=parsed.max_hold,
        settle=parsed.settle,
        **read_common(parser, parsed),
    )
    return options, parsed.verbose


def _describe_server(options: BusOptions) -> list[str]:
    """Returns a line that says how the bus connects to the queue server. Raises StartError if a file cannot be used."""
    return ServerSecurity(options.security).describe(options.server)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Exit codes: 0 after a requested stop; 1 if the bus could not start, or not stop in time; 2 for
    wrong flags, or if the extra is not installed."""
    options, verbose = read_options(arguments)
    with importing("server", _PROGRAM):  # so that --help needs no extra
        from qs_serving.command import check_command, run_command  # noqa: PLC0415
        from qs_serving.service_manager import ServiceManager  # noqa: PLC0415

        from .bus import run_bus  # noqa: PLC0415
    if options.check:
        return check_command(_PROGRAM, verbose, options, partial(_describe_server, options), options.log_format)
    run = partial(run_bus, manager=ServiceManager(os.environ))
    return run_command(_PROGRAM, verbose, run, options, options.log_format)


if __name__ == "__main__":
    raise SystemExit(main())
