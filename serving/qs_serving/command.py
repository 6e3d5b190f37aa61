"""Runs queue-server.py, queue-bus.py and queue-web.py: prints the line that says where they listen, handles --check,
and chooses the exit code.

A command that cannot start ends with one line on standard error and exit code 1, never with a traceback: the line is
for the person who wrote the flags or the files.
"""

import logging
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio

from qs_schemas.command_line import version_line
from qs_schemas.terminal import silence_stdout

from .errors import StartError, StopError
from .guards import Guards
from .listening import Announce, listening_line
from .logs import error_line, log_to_stderr

_logger = logging.getLogger(__name__)


def _announcing(program: str) -> Announce:
    def announce(host: str, port: int) -> None:
        try:
            print(listening_line(host, port), flush=True)
        except OSError as error:  # the server still serves, only nobody reads where
            if not isinstance(error, BrokenPipeError):
                print(f"{program}: cannot say where it listens: {error.strerror}", file=sys.stderr)
            silence_stdout()

    return announce


def guards_of(options: Any, sockets: Sequence[socket.socket] = ()) -> Guards:
    """Makes the guards that the options of the server or the bus ask for. sockets: the sockets that the process has
    inherited. Raises StartError."""
    return Guards(options.host, options.tls, options.access, is_open=options.open, sockets=sockets)


def run_command(
    program: str,
    verbose: int,
    run: Callable[[Any, Announce], Awaitable[None]],
    options: object,
    log_format: str = "text",
) -> int:
    """Runs a server until it has stopped. Returns the exit code: 0 after a requested stop; 1 if the server could not
    start or did not stop cleanly, which one line on standard error explains; 130 after an interrupt before the server
    listened."""
    log_to_stderr(verbose, log_format)
    if _logger.isEnabledFor(logging.INFO):  # looking up the version takes some 40 ms of a start
        _logger.info("%s", version_line(program))
    try:
        trio.run(run, options, _announcing(program))
    except (StartError, StopError) as error:
        sys.stderr.write(error_line(program, str(error)))
        return 1
    except KeyboardInterrupt:
        return 130  # the signal came before the server listened for it
    return 0


def check_command(
    program: str, verbose: int, options: Any, more: Callable[[], list[str]], log_format: str = "text"
) -> int:
    """Reads the files that the flags name, as --check asks, and prints what is in them. more: returns lines about the
    command's own options, or raises StartError. Returns the exit code: 0 if a server would start with these files, 1 if
    not, which one line on standard error explains."""
    return check_files(program, verbose, lambda: [*guards_of(options).describe(), *more()], log_format)


def check_files(program: str, verbose: int, describe: Callable[[], list[str]], log_format: str = "text") -> int:
    """Prints the lines that `describe` returns, or the StartError that `describe` raises. Returns the exit code of
    `check_command`."""
    log_to_stderr(verbose, log_format)
    try:
        lines = describe()
    except StartError as error:
        sys.stderr.write(error_line(program, str(error)))
        return 1
    print("\n".join(lines))
    return 0
