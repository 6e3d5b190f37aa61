"""The command queue-server.py: reads flags, opens the engines, and serves until it is told to stop."""

import errno
import os
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from qs_serving.command import check_command, guards_of, run_command
from qs_serving.figures import Histogram
from qs_serving.inherited_sockets import inherited_sockets
from qs_serving.listening import Announce, StartError, fit_descriptors, open_listeners
from qs_serving.service_manager import ServiceManager
from qs_serving.stopping import StopError, serve_until_signalled

from ..history.record import recording
from ..storage.engine import Clock, Engine, UnfinishedError
from ..storage.lifecycle import Lifecycle
from . import flags
from .opening import ENGINES, REMOTE, belongs_to_another, open_clock, open_remotes, open_storage
from .options import ServerOptions
from .server import Server

_LEAST_DESCRIPTORS = 128
"""Open files of a server whose queues are in the journal: 64 segments that are read, those that are written, locks,
the event loop, and what requests open for a moment."""
_MOST_DESCRIPTORS = 1536
"""With queues of files too: a list of messages has a file for each until all are synced, 1,300 at most. And with queues
on other servers: 100 connections to each."""


def make_parser() -> ArgumentParser:
    return flags.server_parser([*ENGINES, *REMOTE])


def read_options(arguments: Sequence[str] | None) -> tuple[ServerOptions, int]:
    """Returns (options, verbosity). Ends the process on --help and on a wrong flag."""
    return flags.read_options(arguments, [*ENGINES, *REMOTE])


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 stopped as asked; 1 could not start, or did not stop cleanly; 2 wrong flags."""
    options, verbose = read_options(arguments)
    if options.check:
        return check_command(flags.PROGRAM, verbose, options, partial(check_root, options), options.log_format)
    os.umask(options.umask)
    run = partial(run_server, manager=ServiceManager(os.environ))
    return run_command(flags.PROGRAM, verbose, run, options, options.log_format)


def check_root(options: ServerOptions) -> list[str]:
    """Checks the root directory, without changing it. Returns a line about it. StartError if it cannot be used."""
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


async def run_server(options: ServerOptions, announce: Announce, manager: ServiceManager) -> None:
    """Serves until SIGTERM or SIGINT. StartError, StopError."""
    options = replace(options, limits=fit_descriptors(options.limits, _LEAST_DESCRIPTORS, _MOST_DESCRIPTORS))
    inherited = inherited_sockets(manager.environ, manager.pid)
    guards, syncs = guards_of(options, inherited), Histogram()
    with (
        open_clock(options) as clock,
        recording(options.history, options.root, clock) as history,
        _storage_of(options, clock, history, syncs.observe) as storage,
    ):
        remotes = open_remotes(options, clock, history)
        try:
            listeners = await open_listeners(options.host, options.port, inherited)
            server = Server(
                storage,
                options,
                clock,
                history=history,
                remotes=remotes,
                tls=guards.tls,
                access=guards.access,
                syncs=syncs,
            )
            serve, grace = partial(server.serve, listeners), options.limits.grace
            await serve_until_signalled(
                server,
                serve,
                listeners,
                announce,
                grace,
                reloads=guards.reloads,
                manager=manager,
                probe=server.probe,
            )
        finally:
            remotes.close()


@contextmanager
def _storage_of(
    options: ServerOptions, clock: Clock, lifecycle: Lifecycle | None, on_sync: Callable[[float], object]
) -> Iterator[Engine]:
    """Opens and closes the engine. StartError; StopError if closing fails, unless the with block failed."""
    storage = open_storage(options, clock, lifecycle, on_sync)
    try:
        yield storage
    except BaseException:
        with suppress(OSError, UnfinishedError):
            storage.close()
        raise
    try:
        storage.close()
    except UnfinishedError as error:
        raise StopError(str(error)) from None
    except OSError as error:
        raise StopError(f"the last changes may not survive a power loss: {error}") from None
