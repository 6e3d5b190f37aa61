"""The arguments of the subcommands in this package."""

import argparse
from collections.abc import Callable
from typing import Any

from .backup import backup
from .convert import convert
from .export import export

_EXPORT = """\
Writes the messages of a journal to files in the layout of vsqs, a directory in DIR for each queue, as it would be in a
root: `queue-server.py --root DIR` starts on it. The journal stays as it is. Nothing is overwritten; interrupted, give
the command again. No server may be running: through a running one, `qs export` writes the messages of a queue.
Exit codes: 0 done, 1 not all could be written, 2 wrong usage."""
_BACKUP = """\
Copies a journal and the queues' options to DIR, while the server runs or not: complete up to one moment. Segments that
are full are hard links where DIR is on the same file system. A server starts on the result.
Exit codes: 0 done, 1 there is no backup, 2 wrong usage."""
_CONVERT = """\
Changes where a queue keeps its messages: journal or files. Messages, their order, counts and windows are the same
afterwards. No server may be running, and no program may use the queue's directory. Interrupted, nothing is lost: give
the command again.
Exit codes: 0 done, 1 it could not be done, 2 wrong usage."""


def add_commands(commands: Any) -> None:
    """Adds them. What each does is `run` in its arguments: a function of these that returns the exit code."""
    added = _add(commands, "export", export, "write messages to files", _EXPORT)
    added.add_argument("queues", metavar="QUEUE", nargs="*", help="only these (default: all)")
    added.add_argument("--to", required=True, metavar="DIR", help="made if it is missing")
    added = _add(commands, "backup", backup, "copy the journal of a server, which may be running", _BACKUP)
    added.add_argument("--to", required=True, metavar="DIR", help="must not exist")
    added = _add(commands, "convert", convert, "change the storage of a queue", _CONVERT)
    added.add_argument("queue", metavar="QUEUE")
    added.add_argument("--to", required=True, metavar="STORAGE", choices=["journal", "files"])


def _add(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], summary: str, text: str
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=text,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "--root", default="qs-data", metavar="DIR", help="directory of the queues (default: ./%(default)s)"
    )
    command.set_defaults(run=run)
    return command
