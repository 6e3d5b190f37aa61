"""Runs the command queue-server.py: reads flags, and runs a server until a signal stops it."""

import errno
import os
from argparse import ArgumentParser
from collections.abc import Sequence
from functools import partial
from typing import Any

from qs_schemas.extras import NotInstalledError, importing
from qs_serving.errors import StartError
from qs_storage.engine import StorageError

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
        from qs_serving.command import run_command  # noqa: PLC0415
        from qs_serving.service_manager import ServiceManager  # noqa: PLC0415

        from .server import run_server  # noqa: PLC0415
    if options.migrate or options.check:
        return _look(options, verbose)
    os.umask(options.umask)
    run = partial(run_server, manager=ServiceManager(os.environ))
    return run_command(flags.PROGRAM, verbose, run, options, options.log_format)


def _look(options: ServerOptions, verbose: int) -> int:
    """Runs --migrate or --check. Returns the exit code."""
    from qs_serving.command import check_command, check_files  # noqa: PLC0415

    dsn = options.engines.get("postgres", {}).get("dsn")
    if options.migrate:
        return check_files(flags.PROGRAM, verbose, lambda: [_ask_database(dsn, migrate=True)], options.log_format)

    def more() -> list[str]:
        if dsn is None and options.storage == "postgres":
            raise StartError("the storage 'postgres' needs a database: name it with --postgres DSN, or in QS_POSTGRES")
        about = check_root(options) + ([] if options.schemas is None else _check_schemas(options.schemas))
        return [*about, *([] if dsn is None else [_ask_database(dsn, migrate=False)])]

    return check_command(flags.PROGRAM, verbose, options, more, options.log_format)


def _ask_database(dsn: Any, *, migrate: bool) -> str:
    """Makes the schema of the storage postgres, or only looks. Returns a line about the database. Raises StartError."""
    try:
        from qs_storage.postgres import links  # noqa: PLC0415 - its library is an extra
    except ModuleNotFoundError as error:
        raise StartError(str(NotInstalledError("postgres", error))) from None
    try:
        return f"postgres: {links.migrate(dsn) if migrate else links.describe(dsn)}"
    except StorageError as error:
        raise StartError(f"postgres: {error}") from None


def _check_schemas(directory: str) -> list[str]:
    """Returns a line about the schemas of payloads. Raises StartError if one cannot be used."""
    from .opening import read_schemas  # noqa: PLC0415 - reading them needs lxml

    schemas, faults = read_schemas(directory)
    if faults:
        raise StartError("; ".join(faults))
    return [f"schemas in {directory}: {', '.join(schemas.names) or 'none'}"]


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
