"""Runs queue-server.py, queue-bus.py and queue-web.py: the line that says where they listen, --check, exit codes."""

import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio

from qs_schemas.terminal import silence_stdout

from .errors import StartError, StopError
from .guards import Guards
from .listening import Announce, listening_line
from .logs import error_line, log_to_stderr


def _announcing(program: str) -> Announce:
    def announce(host: str, port: int) -> None:
        try:
            print(listening_line(host, port), flush=True)
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                print(f"{program}: cannot say where it listens: {error.strerror}", file=sys.stderr)
            silence_stdout()

    return announce


def guards_of(options: Any, sockets: Sequence[socket.socket] = ()) -> Guards:
    """Returns who is let in, by the options of either command. sockets: that it has inherited. StartError."""
    return Guards(options.host, options.tls, options.access, is_open=options.open, sockets=sockets)


def run_command(
    program: str,
    verbose: int,
    run: Callable[[Any, Announce], Awaitable[None]],
    options: object,
    log_format: str = "text",
) -> int:
    """Runs a server. Exit codes: 0 stopped as asked; 1 could not start, or not stop as it should: a line says why; 130
    interrupted before it listened."""
    log_to_stderr(verbose, log_format)
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
    """Reads the files that the flags name, as --check asks, and prints what is in them. more: lines about the command's
    own options, or a StartError. Exit codes: 0 a server would start with them; 1 a line says why not."""
    return check_files(program, verbose, lambda: [*guards_of(options).describe(), *more()], log_format)


def check_files(program: str, verbose: int, describe: Callable[[], list[str]], log_format: str = "text") -> int:
    """Prints what `describe` returns, or the StartError that it raises. Exit codes: those of `check_command`."""
    log_to_stderr(verbose, log_format)
    try:
        lines = describe()
    except StartError as error:
        sys.stderr.write(error_line(program, str(error)))
        return 1
    print("\n".join(lines))
    return 0
