"""Runs the command queue-server.py: reads flags, and runs a server until a signal stops it."""

import errno
import os
from argparse import ArgumentParser
from collections.abc import Sequence
from functools import partial

from qs_schemas.extras import importing
from qs_serving.errors import StartError

from . import flags
from .opening import Storages, belongs_to_another
from .options import ServerOptions


def make_parser() -> ArgumentParser:
    """Makes the parser. The man page and the completions use it too."""
    return flags.server_parser(Storages())


def read_options(arguments: Sequence[str] | None) -> tuple[ServerOptions, int]:
    """Returns (options, verbosity). Ends the process on --help and on a wrong flag."""
    return flags.read_options(arguments, Storages())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns the exit code: 0 after a requested stop; 1 if the server could not start, or did not
    stop cleanly. Ends the process with 2 if flags are wrong, or the extra is not installed."""
    options, verbose = read_options(arguments)
    # Here and not at the top, so that --help and wrong flags need no extra, and a missing extra gets one line.
    with importing("server", flags.PROGRAM):
        from qs_serving.command import check_command, run_command  # noqa: PLC0415
        from qs_serving.service_manager import ServiceManager  # noqa: PLC0415

        from .server import run_server  # noqa: PLC0415
    if options.check:
        return check_command(flags.PROGRAM, verbose, options, partial(check_root, options), options.log_format)
    os.umask(options.umask)
    run = partial(run_server, manager=ServiceManager(os.environ))
    return run_command(flags.PROGRAM, verbose, run, options, options.log_format)


def check_root(options: ServerOptions) -> list[str]:
    """Checks the root directory without changing it. Returns a line about the directory. Raises StartError if the
    directory cannot be used."""
    root = os.path.abspath(options.root)
    if not os.path.exists(root):
        return [f"root {root}: is made at the start"]
    if not os.path.isdir(root):
        raise StartError(f"cannot use root {root}: it is a file; name a directory with --root")
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        raise StartError(f"cannot use root {root}: {os.strerror(errno.EACCES)}; name another with --root")
    if reason := belongs_to_another(root):
        raise StartError(f"cannot use root {root}: {reason}")
    return [f"root {root}: is there"]


if __name__ == "__main__":
    raise SystemExit(main())
